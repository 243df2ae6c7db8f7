package calls

import (
	"encoding/binary"
	"slices"
)

// Query is the message in which a rank sends its last calls in a communicator to another rank,
// which compares them with its own. Offsets are in bytes, and numbers are little endian:
//
//	0    8        32
//	│ id │ record │ record │ …        at most QueryCalls records, the newest call first
type Query []byte

// QueryCalls is the maximum number of calls in a query. It is larger than the number of calls that
// a rank in shared memory can be ahead of another one, so a query holds the first call that
// differs.
const QueryCalls = 16

const recordBytes = 24 // size of a record in a query

// MaxQuery is the maximum length of a query in bytes.
const MaxQuery = 8 + QueryCalls*recordBytes

// Query returns the query with the records of the collective with number seq and of the collectives
// before it, as far as the ring has them. c is the ring of the communicator with the id. If it has
// no record of the collective with number seq, Query returns nil.
func (c *Ring) Query(id uint64, seq uint32) Query {
	q := binary.LittleEndian.AppendUint64(nil, id)
	for range QueryCalls {
		r, ok := c.Get(seq)
		if !ok {
			break
		}
		for _, w := range r {
			q = binary.LittleEndian.AppendUint64(q, w)
		}
		seq--
	}
	if len(q) == 8 {
		return nil
	}
	return q
}

// Parse returns the id of the communicator and the calls, the newest first. If the length of the
// query is wrong, ok is false.
func (q Query) Parse() (id uint64, calls []Record, ok bool) {
	if len(q) < 8 || (len(q)-8)%recordBytes != 0 || len(q) > MaxQuery {
		return 0, nil, false
	}
	for at := 8; at < len(q); at += recordBytes {
		var r Record
		for i := range r {
			r[i] = binary.LittleEndian.Uint64(q[at+8*i:])
		}
		calls = append(calls, r)
	}
	return binary.LittleEndian.Uint64(q), calls, true
}

// Differs compares the calls of another rank, the newest first, with the calls of this rank that
// have the same numbers. It returns the oldest call that differs: theirs is the other rank's, own
// is this rank's. ok is false if no call differs, or if the record of the other rank's call
// describes none. neighbors says that the two ranks are neighbours in a topology. The elements of a
// neighbour collective need be the same for neighbours only. inGroup reports whether a rank of the world is
// in the same group of an intercommunicator as this rank (mine) or as the other rank. If one of the two
// takes no part in the call (NoPart), the calls agree only if the root is in its group.
func (c *Ring) Differs(calls []Record, neighbors bool, inGroup func(world int, mine bool) bool) (theirs, own Call, ok bool) {
	for _, r := range slices.Backward(calls) {
		o, found := c.Get(r.Seq())
		if !found || o.Sig() == r.Sig() {
			continue
		}
		theirs, ok = r.Call()
		own, _ = o.Call()
		if ok && theirs.What == own.What && (theirs.Root == NoPart && inGroup(own.Root, false) || own.Root == NoPart && inGroup(theirs.Root, true)) {
			continue
		}
		if ok && !neighbors && theirs.isNeighbor() && theirs.What == own.What {
			continue
		}
		return theirs, own, ok
	}
	return Call{}, Call{}, false
}
