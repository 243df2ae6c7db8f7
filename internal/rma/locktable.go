package rma

import (
	"math"
	"sync/atomic"
)

// lockTable is the state of the lock of one rank's part, in memory that all ranks of its host map:
//
//	0          64                                 128              128+8n
//	┌──────────┬──────────────────────────────────┬─────────────────┐
//	│ latch    │ tickets, waiting, sharing, owned │ n states        │
//	└──────────┴──────────────────────────────────┴─────────────────┘
//
// The latch is a spin lock: 0, or 1 + the rank that holds it. It guards the rest of the lock table,
// and elements of the part that the processor cannot change atomically. A rank holds it for a few
// stores, for a pass over the states, or for a chunk of elements (latchBytes).
//
// Each rank has a state with respect to the lock of the part:
//
//	  ┌───────── request, lock free ────────┐
//	  │                                     ▼
//	free ── request ──► waiting ─ grant ──► shared or exclusive ── release ──► free
//	  ▲                   │
//	  └───── release ─────┘       left: the rank does not use the window any more
//
// The states are authoritative: each change is one store, and the counts can be computed from the
// states. So if a rank dies while it holds the latch, the rank that takes the latch over computes
// the counts again (repair).
//
// A faulty rank can overwrite all of this memory. That can break locks, but nothing else: no word
// of it is an address or a length.
type lockTable struct {
	*lockTableHead
	states []atomic.Uint64 // by rank: ticket << stateBits | state; ticket 0: the request passes the others
}

type lockTableHead struct {
	latch atomic.Uint64
	_     [56]byte

	tickets uint64 // number of requests that had to wait in their order, ever
	waiting uint64 // number of states that are stateWaitsShared or stateWaitsExclusive
	sharing uint64 // number of states that are stateShared
	owned   uint64 // number of states that are stateExclusive
	_       [32]byte
}

// lockTableHeadSize is the offset of the states.
const lockTableHeadSize = 128

// lockTableAlign is the alignment of a lock table: a cache line.
const lockTableAlign = 64

// lockTableSize returns the size in bytes of the lock table for n ranks.
func lockTableSize(n int) int { return lockTableHeadSize + 8*n }

// The states.
const (
	stateFree uint64 = iota
	stateWaitsShared
	stateWaitsExclusive
	stateShared
	stateExclusive
	stateLeft

	stateBits = 3
	stateMask = 1<<stateBits - 1
)

// state returns the state of a rank.
func (t lockTable) state(rank int) uint64 { return t.states[rank].Load() & stateMask }

// holds reports whether a rank has the lock. The caller need not hold the latch.
func (t lockTable) holds(rank int) bool {
	s := t.state(rank)
	return s == stateShared || s == stateExclusive
}

// conflicts reports whether another rank has a lock that excludes a lock of this rank. The caller need
// not hold the latch.
func (t lockTable) conflicts(rank int, exclusive bool) bool {
	for r := range t.states {
		if s := t.state(r); r != rank && (s == stateExclusive || exclusive && s == stateShared) {
			return true
		}
	}
	return false
}

// tryLatch takes the latch for a rank if the latch is free, and reports whether it was.
func (t lockTable) tryLatch(rank int) bool { return t.latch.CompareAndSwap(0, uint64(rank)+1) }

// unlatch releases the latch.
func (t lockTable) unlatch() { t.latch.Store(0) }

// The caller of the following methods holds the latch.

// request requests the lock for a rank. If no rank waits and the holders permit it, the rank has
// the lock at once; otherwise its state is stateWaitsShared or stateWaitsExclusive. A shared request
// with passes set does not wait for ranks that wait.
func (t lockTable) request(rank int, exclusive, passes bool) {
	if t.tryRequest(rank, exclusive, passes) {
		return
	}
	s := stateWaitsShared
	if exclusive {
		s = stateWaitsExclusive
	}
	ticket := uint64(0)
	if !passes {
		t.tickets++
		ticket = t.tickets
	}
	t.states[rank].Store(ticket<<stateBits | s)
	t.waiting++
}

// tryRequest is request, except that the rank does not wait: tryRequest reports whether the rank has
// the lock, and if it does not, changes nothing.
func (t lockTable) tryRequest(rank int, exclusive, passes bool) bool {
	switch {
	case (t.waiting == 0 || passes) && t.owned == 0 && !exclusive:
		t.states[rank].Store(stateShared)
		t.sharing++
	case t.waiting == 0 && t.owned == 0 && t.sharing == 0:
		t.states[rank].Store(stateExclusive)
		t.owned++
	default:
		return false
	}
	return true
}

// release releases a rank's lock, or withdraws its request.
func (t lockTable) release(rank int) {
	switch t.state(rank) {
	case stateWaitsShared, stateWaitsExclusive:
		t.waiting--
	case stateShared:
		t.sharing--
	case stateExclusive:
		t.owned--
	default:
		return
	}
	t.states[rank].Store(stateFree)
}

// grant grants the lock to waiting ranks, in the order of their tickets, until a request is not
// compatible with the ranks that have the lock. It appends the ranks that have got the lock to
// ranks.
func (t lockTable) grant(ranks []int) []int {
	if t.waiting == 0 || t.owned != 0 {
		return ranks
	}
	// Grant all shared requests with a ticket before that of the first exclusive request.
	exclusive, first := -1, uint64(math.MaxUint64)
	for r := range t.states {
		if s := t.states[r].Load(); s&stateMask == stateWaitsExclusive && s>>stateBits < first {
			exclusive, first = r, s>>stateBits
		}
	}
	for r := range t.states {
		if s := t.states[r].Load(); s&stateMask == stateWaitsShared && s>>stateBits < first {
			t.states[r].Store(stateShared)
			t.waiting--
			t.sharing++
			ranks = append(ranks, r)
		}
	}
	if exclusive >= 0 && t.sharing == 0 {
		t.states[exclusive].Store(stateExclusive)
		t.waiting--
		t.owned++
		ranks = append(ranks, exclusive)
	}
	return ranks
}

// repair sets the states of ranks that are gone to stateFree, which releases their locks and
// withdraws their requests; it keeps stateLeft. Then it computes the counts from the states.
func (t lockTable) repair(gone func(rank int) bool) {
	t.waiting, t.sharing, t.owned = 0, 0, 0
	for r := range t.states {
		s := t.state(r)
		if s != stateFree && s != stateLeft && gone(r) {
			t.states[r].Store(stateFree)
			s = stateFree
		}
		switch s {
		case stateWaitsShared, stateWaitsExclusive:
			t.waiting++
		case stateShared:
			t.sharing++
		case stateExclusive:
			t.owned++
		}
	}
}
