package mpi

import (
	"context"
	"slices"
	"time"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/mpi/arena"
)

// The slot of a communicator
//
// The arena of a communicator is memory that the ranks of a host share; see arena.Arena. On each
// rank one collective at a time uses it, in the order in which the collectives were started, which
// is the same on all ranks. The slot is the permission to use the arena: each rank has one slot per
// communicator, and a collective uses the arena only while its link holds the slot.
//
//	         the slot is free                   end: the slot is free, or the first
//	begin ───────────────────────► holds the slot ────────────► of the queue gets it
//	  │                              ▲        │
//	  │ the slot is taken    granted │        │ the call turns out to use messages
//	  ▼                              │        ▼
//	no slot ── wants the arena ──► queue   continues without the slot
//
// A link that no call uses is stored with the free slot. So if no other collective of the
// communicator runs, a collective gets the slot and a link by one atomic swap, and gives both back
// by one store.
//
// The slot adds no deadlock. Of the collectives that any rank has started and not finished, let C
// be the first one. A rank that has started C has finished all collectives before C. So on this
// rank C holds the slot, or C can get the slot because the slot is free, or the slot is held by a
// later call that uses messages and gives the slot up without waiting for C. So C runs on each rank
// that has started it, and the other ranks can start C without waiting for later collectives.
//
// Invariants:
//   - If state.slotFree is 1, no link holds the slot, and state.slotLink is a link that no call
//     uses. If it is 0, a link holds the slot, closeSlot has acquired the slot for ever, or a
//     goroutine is about to store 1 again.
//   - A goroutine that queues a link, or that makes the slot free while links are queued, then
//     calls grantSlot. So the slot does not stay free while a link waits.

// slotQueue holds the links that wait for the slot.
type slotQueue struct {
	links  []*link // in the order of their calls
	closed bool    // closeSlot was called: no further collective may queue its link
}

// tryAcquireSlot acquires the slot if the slot is free and no link is queued, and returns the link
// that was stored with the slot. Otherwise it returns nil. It does not block.
//
// Hot path: no allocation, no lock.
func (s *state) tryAcquireSlot() *link {
	if s.slotFree.Swap(0) == 0 {
		return nil
	}
	l := s.slotLink
	if s.queued.Load() > 0 { // releaseSlot grants the slot to the first link of the queue
		s.releaseSlot(l)
		return nil
	}
	return l
}

// releaseSlot makes the slot free, or grants it to the first link of the queue. The caller holds
// the slot. l is a link that no call uses; releaseSlot stores it with the slot.
//
// Hot path: no allocation, no lock if no link is queued.
func (s *state) releaseSlot(l *link) {
	s.slotLink = l
	s.slotFree.Store(1)
	if s.queued.Load() > 0 {
		s.grantSlot()
	}
}

// grantSlot grants the slot to the first link of the queue, if the slot is free.
func (s *state) grantSlot() {
	s.linkMu.Lock()
	defer s.linkMu.Unlock()
	q := &s.queue
	if len(q.links) == 0 || s.slotFree.Swap(0) == 0 {
		return // if a link holds the slot, its releaseSlot calls grantSlot again
	}
	s.slotLink.clearWait()
	s.links = append(s.links, s.slotLink)
	l := q.links[0]
	q.links = slices.Delete(q.links, 0, 1)
	s.queued.Add(-1)
	// The send does not block, because the channel has room for one value. awaitSlot or dequeue
	// receives the value and sets l.hasSlot.
	l.granted <- struct{}{}
}

// enqueue appends l to the queue for the slot and sets l.queued, unless the queue is closed. It
// does not block; awaitSlot waits for the slot.
func (s *state) enqueue(l *link) {
	if l.granted == nil {
		l.granted = make(chan struct{}, 1)
	}
	s.linkMu.Lock()
	l.queued = !s.queue.closed
	if l.queued {
		s.queue.links = append(s.queue.links, l)
		s.queued.Add(1)
	}
	s.linkMu.Unlock()
	s.grantSlot()
}

// awaitSlot blocks until l, which enqueue has queued, holds the slot. If the context of the call
// ends first, awaitSlot calls dequeue and returns the error of the context.
func (s *state) awaitSlot(l *link) error {
	select {
	case <-l.granted:
		l.queued, l.hasSlot = false, true
		return nil
	case <-l.ctx.Done():
		s.dequeue(l)
		return l.ctx.Err()
	}
}

// dequeue removes l, which enqueue has queued, from the queue. If the slot was granted to l before
// that, l holds the slot when dequeue returns.
func (s *state) dequeue(l *link) {
	l.queued = false
	s.linkMu.Lock()
	i := slices.Index(s.queue.links, l)
	if i >= 0 {
		s.queue.links = slices.Delete(s.queue.links, i, i+1)
		s.queued.Add(-1)
	}
	s.linkMu.Unlock()
	if i < 0 {
		<-l.granted // grantSlot has removed l from the queue, and has sent a value to l.granted
		l.hasSlot = true
	}
}

// dropSlot gives up the slot that l holds. The call of l continues without the slot, so dropSlot
// stores another link with the slot.
func (l *link) dropSlot() {
	s, free := l.s, l.spare
	l.hasSlot, l.spare = false, nil
	if free == nil {
		s.linkMu.Lock()
		free = s.freeLinkLocked()
		s.linkMu.Unlock()
	}
	s.releaseSlot(free)
}

// closeSlot blocks until no collective uses the arena, and makes sure that no collective uses it
// later. It closes the queue, acquires the slot after all links that are queued, and never releases
// the slot. If ctx ends first, closeSlot returns the error of ctx, and a collective may still use
// the arena. A second call returns ErrClosed.
func (s *state) closeSlot(ctx context.Context) error {
	s.linkMu.Lock()
	closed := s.queue.closed
	s.queue.closed = true
	s.linkMu.Unlock()
	if closed {
		return ErrClosed
	}
	if l := s.tryAcquireSlot(); l != nil {
		s.linkMu.Lock()
		s.links = append(s.links, l)
		s.linkMu.Unlock()
		return nil
	}
	last := &link{s: s, ctx: ctx, granted: make(chan struct{}, 1)}
	s.linkMu.Lock()
	s.queue.links = append(s.queue.links, last)
	s.queued.Add(1)
	s.linkMu.Unlock()
	s.grantSlot()
	return s.awaitSlot(last)
}

// requestArena decides whether the call uses the arena. If so, and if l does not hold the slot,
// requestArena queues l for the slot. A call runs requestArena when it starts, so that calls queue
// in their order. count is the call's count in bytes, as coll.Pick expects it. If the communicator
// has no arena yet, requestArena cannot decide: it queues the call, and enterArena decides.
//
// Hot path: no allocation.
func (l *link) requestArena(count int) {
	s := l.s
	a := s.arena.Load()
	if a == arena.None {
		return
	}
	l.count, l.wantsArena = count, true
	switch {
	case a == nil:
	case count <= a.UpTo[l.what] && l.op.Size <= 64:
		l.shared = true
	default:
		if l.algorithm, l.wantsArena = coll.Pick(s.job.coll, a.Host, l.what, count, l.op); !l.wantsArena {
			if l.hasSlot {
				l.dropSlot()
			}
			return
		}
	}
	if !l.hasSlot {
		s.enqueue(l)
	}
}

// enterArena blocks until l holds the slot, and makes the arena if this is the first call that
// needs one. If the call uses the arena, enterArena sets l.arena. Otherwise it leaves l.arena nil,
// and the call uses messages.
//
// Hot path: no allocation, and no lock if l holds the slot already.
func (l *link) enterArena() error {
	s := l.s
	switch {
	case l.queued:
		if err := s.awaitSlot(l); err != nil {
			return err
		}
	case !l.hasSlot: // enqueue did not queue l, because the queue is closed
		return ErrClosed
	}
	if version := s.job.eng.StateVersion(); version != s.stateVersion {
		if err := s.coll.Usable(); err != nil {
			return err
		}
		s.stateVersion = version
	}
	a := s.arena.Load()
	if a == nil {
		var err error
		l.recordCall() // in Make, this rank may wait for a rank that made another call
		sig := l.env.Sig
		if l.hood != nil {
			l.env.Sig = l.signed.ForAllRanks()
		}
		a, err = s.job.arenas.Make(l, arena.Comm{ID: s.id, Ranks: s.ranks, Context: s.coll, Config: s.job.coll})
		if l.env.Sig = sig; err != nil {
			return err
		}
		s.arena.Store(a)
	}
	if a == arena.None {
		return nil
	}
	if !l.shared && l.algorithm == coll.Unpicked {
		var uses bool
		if l.algorithm, uses = coll.Pick(s.job.coll, a.Host, l.what, l.count, l.op); !uses {
			l.dropSlot()
			return nil
		}
	}
	l.arena = a
	return nil
}

// recycleArena puts the arena of the communicator, if it has one, into this rank's pool of arenas.
// The caller makes sure that no rank uses the arena any more.
func (s *state) recycleArena() {
	if a := s.arena.Swap(arena.None); a != nil && a != arena.None {
		s.job.arenas.Recycle(a, s.coll)
	}
}

// closeSlotTimeout is the maximum time for which the engine, when it closes, waits in closeSlots
// until the collectives of this rank have left the arenas. The engine ends their waits for other
// ranks before that, so only a reduction operation of the program (OpFunc) can delay a collective.
const closeSlotTimeout = 5 * time.Second

// closeSlots closes the slots of all communicators, so that no collective uses an arena while the
// engine frees its memory. The engine calls closeSlots when it closes.
func (j *job) closeSlots() {
	ctx, cancel := context.WithTimeout(context.Background(), closeSlotTimeout)
	defer cancel()
	j.stall.mu.Lock()
	states := make([]*state, 0, len(j.stall.states))
	for _, s := range j.stall.states {
		states = append(states, s)
	}
	j.stall.mu.Unlock()
	for _, s := range states {
		_ = s.closeSlot(ctx) // if it fails, nothing else can end the collective
	}
}
