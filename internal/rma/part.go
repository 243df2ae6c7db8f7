package rma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// maxRails is the number of rails for which a Part can hold a registration. Over other rails a
// window uses no RMA.
const maxRails = 4

// PartSize is the size of an encoded Part, in bytes.
const PartSize = 56 + 16*maxRails

// Part describes a rank's part of a window to the other ranks.
type Part struct {
	Size      int    // bytes
	Elem      int    // bytes of an element
	Chunk     int    // maximum number of data bytes of one message to this rank
	Native    int    // 1 + the rail whose atomics the rank can use for all accumulates; 0: none
	Direct    int    // bit r: the part is registered with rail r
	Flags     int    // bits that say what memory ranks of the same host can map
	LockTable uint64 // key of the shared memory that is the lock table
	Key       uint64 // key of the shared memory that contains the part
	Offset    int    // offset of the part in that memory, in bytes
	Nonce     uint64 // a random number, from which the ranks make the key of the seals of regions

	Regions remoteKeys // of the part's registrations
}

// remoteKeys holds, by rail, the key and the base address of a registration of memory.
type remoteKeys [maxRails]struct{ Key, Base uint64 }

// The bits of Part.Flags.
const (
	partLockTable = 1 << iota // LockTable is a key
	partMemory                // Key and Offset locate the part, or the part is empty

	partFlags // the first invalid value: 1 << 2
)

var errPart = errors.New("a rank's description of its part of the window is invalid")

// Encode writes p into b, which has at least PartSize bytes, little endian:
//
//	 0      8      12      16       20       22      24      32    40       48      56
//	┌──────┬──────┬───────┬────────┬────────┬───────┬───────┬─────┬────────┬───────┬────────────────────────┐
//	│ size │ elem │ chunk │ native │ direct │ flags │ table │ key │ offset │ nonce │ maxRails × (key, base) │
//	└──────┴──────┴───────┴────────┴────────┴───────┴───────┴─────┴────────┴───────┴────────────────────────┘
func (p *Part) Encode(b []byte) {
	_ = b[PartSize-1]
	binary.LittleEndian.PutUint64(b, uint64(p.Size))
	binary.LittleEndian.PutUint32(b[8:], uint32(p.Elem))
	binary.LittleEndian.PutUint32(b[12:], uint32(p.Chunk))
	binary.LittleEndian.PutUint32(b[16:], uint32(p.Native))
	binary.LittleEndian.PutUint16(b[20:], uint16(p.Direct))
	binary.LittleEndian.PutUint16(b[22:], uint16(p.Flags))
	binary.LittleEndian.PutUint64(b[24:], p.LockTable)
	binary.LittleEndian.PutUint64(b[32:], p.Key)
	binary.LittleEndian.PutUint64(b[40:], uint64(p.Offset))
	binary.LittleEndian.PutUint64(b[48:], p.Nonce)
	for i, r := range p.Regions {
		binary.LittleEndian.PutUint64(b[56+16*i:], r.Key)
		binary.LittleEndian.PutUint64(b[64+16*i:], r.Base)
	}
}

// Decode reads the format of Encode, and checks it.
func (p *Part) Decode(b []byte) error {
	if len(b) < PartSize {
		return fmt.Errorf("%w: %d bytes", errPart, len(b))
	}
	size, offset := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[40:])
	elem, chunk, native := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint32(b[16:])
	direct, flags := binary.LittleEndian.Uint16(b[20:]), binary.LittleEndian.Uint16(b[22:])
	if size > math.MaxInt || offset > math.MaxInt || elem > math.MaxInt32 || chunk > math.MaxInt32 ||
		native > math.MaxUint8 || direct >= 1<<maxRails || flags >= partFlags {
		return errPart
	}
	*p = Part{
		Size: int(size), Elem: int(elem), Chunk: int(chunk), Native: int(native), Direct: int(direct), Flags: int(flags),
		LockTable: binary.LittleEndian.Uint64(b[24:]), Key: binary.LittleEndian.Uint64(b[32:]), Offset: int(offset),
		Nonce: binary.LittleEndian.Uint64(b[48:]),
	}
	for i := range p.Regions {
		p.Regions[i].Key = binary.LittleEndian.Uint64(b[56+16*i:])
		p.Regions[i].Base = binary.LittleEndian.Uint64(b[64+16*i:])
	}
	return nil
}
