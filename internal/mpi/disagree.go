package mpi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
)

// Ranks that disagree about a collective
//
// Each message of a collective carries the call's fingerprint, so a rank detects that
// another rank made a different call. The fingerprint does not say which call that was.
// So the rank sends a query that holds its own last calls in full. The other rank
// compares them with its own calls and revokes the communicator with a text that names
// both calls.
//
//	rank 0: Barrier      ◄── fingerprint of Bcast ──      rank 1: Bcast
//	   │
//	   └── query: communicator, last calls of rank 0 ──► compares them with its own
//	 all ranks ◄── revoked: rank 0 called Barrier, rank 1 Bcast of 10 float64 ──┘
//
// A rank that waits for a long time sends the same query; see stallDetector.

// signedCall holds the properties of a collective call that must be the same on all ranks.
type signedCall struct {
	what        coll.Kind
	root, count int // count: bytes; for calls with a count per rank: coll.Fold of the counts
	elem        int // bytes per element
	typ         uint16
	opID        int
}

// fingerprint is the call's signature; see coll.Signature.
func (k *signedCall) fingerprint() uint16 {
	return coll.Signature(k.what, k.root, k.count, k.elem<<16|int(k.typ), k.opID)
}

// String returns the call as error texts name it, such as "Bcast of 3 × int64 from root 0".
func (k *signedCall) String() string {
	if k.what >= kindDup {
		return kindNames[k.what-kindDup]
	}
	var b strings.Builder
	b.WriteString(k.what.String())
	if k.what == coll.KindBarrier {
		return b.String()
	}
	b.WriteString(" of ")
	switch k.what {
	case coll.KindGatherv, coll.KindScatterv, coll.KindAllgatherv, coll.KindAlltoallv, coll.KindReduceScatter:
	default:
		if k.elem > 0 && k.elem < maxElem {
			fmt.Fprintf(&b, "%d × ", k.count/k.elem)
		}
	}
	b.WriteString(elem.SigName(k.typ))
	switch k.what {
	case coll.KindGather, coll.KindScatter, coll.KindAllgather, coll.KindAlltoall, coll.KindReduceScatterBlock:
		b.WriteString(" per rank")
	default:
	}
	switch {
	case k.opID == opOfProgram:
		b.WriteString(" by OpFunc")
	case k.opID != 0:
		b.WriteString(" by " + opNames[k.opID-1])
	}
	switch k.what {
	case coll.KindBcast, coll.KindScatter, coll.KindScatterv:
		fmt.Fprintf(&b, " from root %d", k.root)
	case coll.KindReduce, coll.KindGather, coll.KindGatherv:
		fmt.Fprintf(&b, " to root %d", k.root)
	default:
	}
	return b.String()
}

// callRecord is a collective that a rank has called, in three words. Each word holds
// bits of the call's number, so that a reader detects words of different calls:
//
//	│ number 32              │ fingerprint 16 │
//	│ count 40           │ element bytes 16 │ number 8 │
//	│ root 24 │ kind 8 │ type 16 │ operation 8 │ number 8 │
type callRecord [3]uint64

const maxElem = 1<<16 - 1 // the element bytes in a record of longer elements

func recordOf(seq uint32, sig uint16, k *signedCall) callRecord {
	lap := uint64(byte(seq / signedCalls))
	return callRecord{
		uint64(seq)<<16 | uint64(sig),
		uint64(k.count)<<24 | uint64(min(k.elem, maxElem))<<8 | lap,
		uint64(k.root)<<40 | uint64(k.what)<<32 | uint64(k.typ)<<16 | uint64(k.opID)<<8 | lap,
	}
}

func (r callRecord) seq() uint32 { return uint32(r[0] >> 16) }
func (r callRecord) sig() uint16 { return uint16(r[0]) }

// whole reports whether all three words belong to one call.
func (r callRecord) whole() bool {
	lap := byte(r.seq() / signedCalls)
	return r.seq() != 0 && byte(r[1]) == lap && byte(r[2]) == lap
}

// call returns the call that the record describes. ok is false if no call has such a record; another
// rank may send any bits.
func (r callRecord) call() (k signedCall, ok bool) {
	k = signedCall{
		what: coll.Kind(byte(r[2] >> 32)), root: int(r[2] >> 40), count: int(r[1] >> 24), elem: int(uint16(r[1] >> 8)),
		typ: uint16(r[2] >> 16), opID: int(byte(r[2] >> 8)),
	}
	known := k.what >= coll.KindBarrier && k.what <= coll.KindExscan || k.what >= kindDup && k.what < kindEnd
	return k, known && (k.opID <= len(opNames) || k.opID == opOfProgram)
}

// signedCalls is the number of collectives of a communicator that a rank remembers.
const signedCalls = 64

// callRing holds the last collectives of a communicator, by number. The goroutine that runs
// a collective writes its record; any goroutine may read it. Collectives that run at the same
// time and whose numbers differ by a multiple of signedCalls write to the same entry. If they
// do so at once, the entry holds one of the records, or words of both, for which get returns false.
type callRing [signedCalls][3]atomic.Uint64

func (c *callRing) put(r callRecord) {
	at := &c[r.seq()%signedCalls]
	at[0].Store(r[0])
	at[1].Store(r[1])
	at[2].Store(r[2])
}

// get returns the record of the call with number seq. ok is false if a later call has overwritten
// it.
func (c *callRing) get(seq uint32) (r callRecord, ok bool) {
	at := &c[seq%signedCalls]
	r = callRecord{at[0].Load(), at[1].Load(), at[2].Load()}
	return r, r.seq() == seq && r.whole()
}

// query is the message in which a rank sends its last calls to another rank, which
// compares them with its own.
//
//	0    8        32
//	│ id │ record │ record │ …        at most queryCalls records, the newest call first
type query []byte

// queryCalls is the number of calls in a query: as many as ranks in shared memory may
// have made since the call that differs.
const queryCalls = 16

const (
	recordBytes = 24
	maxQuery    = 8 + queryCalls*recordBytes
)

// newQuery returns the query about the collective with number seq and the collectives before it.
func (s *state) newQuery(seq uint32) query {
	q := binary.LittleEndian.AppendUint64(nil, s.id)
	for range queryCalls {
		r, ok := s.called.get(seq)
		if !ok {
			break
		}
		for _, w := range r {
			q = binary.LittleEndian.AppendUint64(q, w)
		}
		seq--
	}
	return q
}

// parse returns the communicator and the calls, the newest first.
func (q query) parse() (id uint64, calls []callRecord, ok bool) {
	if len(q) < 8 || (len(q)-8)%recordBytes != 0 || len(q) > maxQuery {
		return 0, nil, false
	}
	for at := 8; at < len(q); at += recordBytes {
		var r callRecord
		for i := range r {
			r[i] = getUint64(q[at+8*i:])
		}
		calls = append(calls, r)
	}
	return getUint64(q), calls, true
}

// sendQuery sends a query to a rank of the communicator. It does not block.
func (s *state) sendQuery(rank int, q query) {
	s.job.final.p2p.SendBuffered(q, engine.Env{Peer: s.group.ranks[rank]})
}

// handleQuery handles a query from world rank sender. It compares the calls of the query with the
// calls of this rank. If they differ, handleQuery revokes the communicator with both calls in the
// text.
func (j *job) handleQuery(q query, sender int) {
	id, calls, ok := q.parse()
	if !ok {
		return
	}
	j.stall.mu.Lock()
	s := j.stall.states[id]
	j.stall.mu.Unlock()
	if s == nil {
		return
	}
	rank := slices.Index(s.group.ranks, sender)
	for i := len(calls) - 1; i >= 0 && rank >= 0; i-- { // find the first call that differs
		theirs := calls[i]
		own, ok := s.called.get(theirs.seq())
		if !ok || own.sig() == theirs.sig() {
			continue
		}
		a, known := theirs.call()
		b, _ := own.call()
		switch {
		case !known:
		case a.String() == b.String(): // they differ in something that String does not show
			s.revoke(fmt.Errorf("%w: ranks %d and %d called %v with other counts, or with elements of another layout", ErrMismatch, rank, s.rank, &a))
		default:
			s.revoke(fmt.Errorf("%w: rank %d called %v, rank %d called %v", ErrMismatch, rank, &a, s.rank, &b))
		}
		return
	}
}

// disagreement returns the error of a collective in which another rank made a different
// call. If that rank revokes the communicator in time, the error names both calls.
func (l *link) disagreement(rank int) error {
	s, j := l.s, l.s.job
	if l.unrecorded {
		l.recordCall()
	}
	if q := s.newQuery(uint32(l.env.Tag)); len(q) > 8 && rank != s.rank {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := range int(replyIntervals * j.stall.interval / (10 * time.Millisecond)) {
			if i%25 == 0 { // repeat it: the rank may not have recorded its call when the last query arrived
				s.sendQuery(rank, q)
			}
			<-tick.C
			// The other rank may have sent a query to this rank, so handle queries here too.
			if !j.handleQueries() || l.ctx.Err() != nil || j.eng.Gone(s.group.ranks[rank]) != nil {
				break
			}
			var revoked *engine.RevokedError
			if errors.As(s.coll.Err(), &revoked) {
				if what, ok := strings.CutPrefix(revoked.Cause, ErrMismatch.Error()+": "); ok {
					return fmt.Errorf("%w: %s", ErrMismatch, what)
				}
				break
			}
		}
	}
	return fmt.Errorf("%w: rank %d made another call than rank %d, in this collective or an earlier one; rank %d called %v", ErrMismatch, rank, s.rank, s.rank, &l.signed)
}

// replyIntervals is the number of stall intervals for which a rank waits for the reply to a query.
const replyIntervals = 4
