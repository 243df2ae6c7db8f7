package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The stream of a tcp connection is a sequence of frames. All numbers are
// little endian.
//
//	0      1        2      4        8
//	┌──────┬────────┬──────┬────────┬───────────────────────┬──────────────┐
//	│ type │ status │ zero │ length │ fixed part of the type │ length bytes │
//	└──────┴────────┴──────┴────────┴───────────────────────┴──────────────┘
//	msg    –                          –                        header and data
//	read   –         length 0         id key addr total        –
//	data   of read                    id                       next bytes of the read, a status
//	write  –                          id key addr total offset bytes at addr+offset
//	ack    of write  length 0         id                       –
//	bye    –         length 0         –                        –
//
// A read is answered by data frames whose lengths add up to total, or at any
// point by one with a status and no bytes. The bytes of a data frame are
// followed by one more, a status that length does not count: it says whether
// they are the region's, which may be withdrawn while they are written. Each write frame is answered by an
// ack; the frames of one write repeat key, addr and total.

// TCPType is the first byte of a frame.
type TCPType uint8

// The types of frame.
const (
	TCPMsg TCPType = iota + 1
	TCPRead
	TCPData
	TCPWrite
	TCPAck
	TCPBye
)

// TCPStatus is how a read or write went at its target.
type TCPStatus uint8

// The statuses.
const (
	TCPOK     TCPStatus = iota
	TCPKey              // no such memory region
	TCPBounds           // outside the region
	TCPAccess           // the region does not permit it
	tcpStatusEnd
)

// Sizes of frames.
const (
	TCPHeaderSize = 8       // the part that all frames begin with, and all of msg and bye
	TCPReadSize   = 40      // a read
	TCPDataSize   = 16      // a data frame without its bytes
	TCPWriteSize  = 48      // a write without its bytes
	TCPAckSize    = 16      // an ack
	TCPMaxHeader  = 48      // the largest of them
	TCPMaxMsg     = 1 << 17 // bytes of a msg
	TCPMaxChunk   = 1 << 20 // bytes of a data or write frame
)

// ErrTCPFrame says that bytes are not a frame.
var ErrTCPFrame = errors.New("malformed tcp frame")

// Valid reports whether s is one of the statuses.
func (s TCPStatus) Valid() bool { return s < tcpStatusEnd }

// TCPFrame is a frame without its bytes.
type TCPFrame struct {
	Type   TCPType
	Status TCPStatus
	Length uint32 // bytes that follow
	ID     uint64 // of the read or write, chosen by its initiator
	Key    uint64
	Addr   uint64 // where the whole read or write begins
	Total  uint64 // bytes of the whole read or write
	Offset uint64 // of this frame's bytes in the whole write
}

func tcpFixed(t TCPType) int {
	switch t {
	case TCPMsg, TCPBye:
		return TCPHeaderSize
	case TCPRead:
		return TCPReadSize
	case TCPData, TCPAck:
		return TCPDataSize
	case TCPWrite:
		return TCPWriteSize
	}
	return 0
}

// PutTCPMsg writes the header of a msg with n bytes to b.
func PutTCPMsg(b []byte, n int) {
	binary.LittleEndian.PutUint64(b, uint64(TCPMsg)|uint64(n)<<32)
}

// Put writes the frame's header to b, which has room for TCPMaxHeader bytes,
// and returns how many it took.
func (f *TCPFrame) Put(b []byte) int {
	le := binary.LittleEndian
	le.PutUint64(b, uint64(f.Type)|uint64(f.Status)<<8|uint64(f.Length)<<32)
	switch f.Type {
	case TCPData, TCPAck:
		le.PutUint64(b[8:], f.ID)
	case TCPRead, TCPWrite:
		le.PutUint64(b[8:], f.ID)
		le.PutUint64(b[16:], f.Key)
		le.PutUint64(b[24:], f.Addr)
		le.PutUint64(b[32:], f.Total)
		if f.Type == TCPWrite {
			le.PutUint64(b[40:], f.Offset)
		}
	case TCPMsg, TCPBye:
	}
	return tcpFixed(f.Type)
}

// TCPMsgLen reads the header of a msg; ok is false for anything else, which
// Parse then judges. b has at least TCPHeaderSize bytes.
func TCPMsgLen(b []byte) (n int, ok bool) {
	w := binary.LittleEndian.Uint64(b)
	return int(w >> 32), w&0xffffffff == uint64(TCPMsg) && w>>32 <= TCPMaxMsg
}

// Parse reads a frame's header from the front of b and returns its size, 0
// where b is too short to tell.
func (f *TCPFrame) Parse(b []byte) (int, error) {
	if len(b) < TCPHeaderSize {
		return 0, nil
	}
	le := binary.LittleEndian
	*f = TCPFrame{Type: TCPType(b[0]), Status: TCPStatus(b[1]), Length: le.Uint32(b[4:])}
	size := tcpFixed(f.Type)
	if size == 0 || b[2] != 0 || b[3] != 0 {
		return 0, fmt.Errorf("%w: type %d", ErrTCPFrame, f.Type)
	}
	limit := uint32(0)
	switch f.Type {
	case TCPMsg:
		limit = TCPMaxMsg
	case TCPData, TCPWrite:
		limit = TCPMaxChunk
	case TCPRead, TCPAck, TCPBye:
	}
	answer := f.Type == TCPData || f.Type == TCPAck
	if f.Status != TCPOK && (!answer || f.Status >= tcpStatusEnd) {
		return 0, fmt.Errorf("%w: status %d in type %d", ErrTCPFrame, f.Status, f.Type)
	}
	if f.Length > limit || f.Status != TCPOK && f.Length != 0 {
		return 0, fmt.Errorf("%w: length %d in type %d", ErrTCPFrame, f.Length, f.Type)
	}
	if len(b) < size {
		return 0, nil
	}
	switch f.Type {
	case TCPData, TCPAck:
		f.ID = le.Uint64(b[8:])
	case TCPRead, TCPWrite:
		f.ID = le.Uint64(b[8:])
		f.Key = le.Uint64(b[16:])
		f.Addr = le.Uint64(b[24:])
		f.Total = le.Uint64(b[32:])
		if f.Type == TCPWrite {
			f.Offset = le.Uint64(b[40:])
			if f.Offset > f.Total || uint64(f.Length) > f.Total-f.Offset {
				return 0, fmt.Errorf("%w: write of %d at %d of %d bytes", ErrTCPFrame, f.Length, f.Offset, f.Total)
			}
		}
	case TCPMsg, TCPBye:
	}
	return size, nil
}
