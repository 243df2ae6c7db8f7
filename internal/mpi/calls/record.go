package calls

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/coll"
)

// Record is a collective that a rank has called, in three words. Each word holds bits of the call's
// number, so that a reader detects words of different calls. The second and the third word hold
// bits of the number divided by the size of a [Ring]. The width of each field is in bits:
//
//	│ number 32              │ fingerprint 16 │
//	│ count 40           │ element bytes 16 │ number 8 │
//	│ root 24 │ kind 8 │ type 16 │ operation 8 │ number 8 │
type Record [3]uint64

const maxElem = 1<<16 - 1 // largest size of elements in a record, in bytes; stands for larger sizes, too

// NewRecord returns the record of the call with number seq and the fingerprint sig.
func NewRecord(seq uint32, sig uint16, k *Call) Record {
	lap := uint64(byte(seq / remembered)) // differs between calls that have the same entry in a Ring
	return Record{
		uint64(seq)<<16 | uint64(sig),
		uint64(k.Count)<<24 | uint64(min(k.Elem, maxElem))<<8 | lap,
		uint64(k.Root)<<40 | uint64(k.What)<<32 | uint64(k.Type)<<16 | uint64(k.OpID)<<8 | lap,
	}
}

// Seq returns the number of the call.
func (r Record) Seq() uint32 { return uint32(r[0] >> 16) }

// Sig returns the fingerprint of the call.
func (r Record) Sig() uint16 { return uint16(r[0]) }

// whole reports whether the record is not empty, and its three words belong to one call.
func (r Record) whole() bool {
	lap := byte(r.Seq() / remembered)
	return r.Seq() != 0 && byte(r[1]) == lap && byte(r[2]) == lap
}

// Call returns the call that the record describes. ok is false if the record describes no call,
// which can happen because another rank may send any bits.
func (r Record) Call() (k Call, ok bool) {
	k = Call{
		What: coll.Kind(byte(r[2] >> 32)), Root: int(r[2] >> 40), Count: int(r[1] >> 24), Elem: int(uint16(r[1] >> 8)),
		Type: uint16(r[2] >> 16), OpID: int(byte(r[2] >> 8)),
	}
	known := k.What >= coll.KindBarrier && k.What <= coll.KindExscan || k.What >= KindDup && k.What < kindEnd
	return k, known && (k.OpID <= len(OpNames) || k.OpID == OpOfProgram)
}

// remembered is the number of collectives of a communicator that a rank remembers.
const remembered = 64

// Ring holds the last collectives of a communicator, by number. The goroutine that runs a
// collective writes its record; any goroutine may read it. Collectives that run at the same time
// and whose numbers differ by a multiple of the ring's length write to the same entry. If they
// write at the same moment, the entry holds one of the records, or words of both; then Get returns
// false for either number.
type Ring [remembered][3]atomic.Uint64

// Put stores a record.
func (c *Ring) Put(r Record) {
	at := &c[r.Seq()%remembered]
	at[0].Store(r[0])
	at[1].Store(r[1])
	at[2].Store(r[2])
}

// Get returns the record of the call with number seq. ok is false if the ring does not have it, for
// example because a later call has overwritten it.
func (c *Ring) Get(seq uint32) (r Record, ok bool) {
	at := &c[seq%remembered]
	r = Record{at[0].Load(), at[1].Load(), at[2].Load()}
	return r, r.Seq() == seq && r.whole()
}
