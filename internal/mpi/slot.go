package mpi

import (
	"context"
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
)

// The slot of a communicator
//
// One collective at a time uses the arena of a communicator, in the order in which the
// collectives were started. This order is the same on all ranks. A collective uses the arena
// only while it holds the communicator's slot:
//
//	         the slot is free                   end: the slot is free, or the first
//	begin ───────────────────────► holds the slot ────────────► of the queue gets it
//	  │                              ▲        │
//	  │ the slot is taken    granted │        │ the call turns out to use messages
//	  ▼                              │        ▼
//	no slot ── wants the arena ──► queue   continues without the slot
//
// A free link is stored with the free slot. So a collective that meets no other one gets the slot
// and a link by one swap, and gives both back by one store.
//
// No collective waits forever. Of the collectives that any rank has started and not finished,
// consider the one that was started first. A rank that has started it has finished all
// collectives before it. So on this rank the collective holds the slot, or the slot is free, or a
// call that uses messages holds the slot and gives it up without waiting for this collective. So
// the collective runs on each rank that has started it, and the other ranks start it without
// waiting for later collectives.
//
// Invariants:
//   - state.slotFree is 1 if and only if no link holds the slot. Then state.slotLink is a link
//     that no call uses.
//   - After the slot becomes free or a link is queued, the goroutine that did it calls grantSlot, so
//     the slot does not stay free while a link waits.

// slotQueue holds the links that wait for the slot.
type slotQueue struct {
	links  []*link // in the order of their calls
	closed bool    // closeSlot was called: no other link may queue
}

// tryAcquireSlot acquires the slot if it is free and no link is queued. It returns the link that was
// stored with the slot, or nil if it has not acquired the slot.
//
// Hot path: no allocation, no lock.
func (s *state) tryAcquireSlot() *link {
	if s.slotFree.Swap(0) == 0 {
		return nil
	}
	l := s.slotLink
	if s.queued.Load() > 0 { // the first of the queue gets it
		s.releaseSlot(l)
		return nil
	}
	return l
}

// releaseSlot makes the slot free, or grants it to the first link of the queue. The caller holds the
// slot. l is a link that no call uses any more; releaseSlot stores it with the slot.
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
	l.granted <- struct{}{} // awaitSlot and dequeue receive it, and set l.hasSlot
}

// enqueue appends l to the queue for the slot, unless the queue is closed. It does not block;
// awaitSlot waits for the slot.
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

// awaitSlot blocks until l, which is in the queue, holds the slot. If the context of the call ends
// first, awaitSlot removes l from the queue and returns the error of the context.
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

// dequeue removes l from the queue. If the slot was granted to l in the meantime, l holds the slot
// afterwards.
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
		<-l.granted // grantSlot has sent it, or is about to
		l.hasSlot = true
	}
}

// dropSlot gives up the slot that l holds. The call continues without it, so dropSlot stores another
// link with the slot.
func (l *link) dropSlot() {
	l.hasSlot = false
	s := l.s
	s.linkMu.Lock()
	free := s.freeLinkLocked()
	s.linkMu.Unlock()
	s.releaseSlot(free)
}

// closeSlot waits until no collective uses the arena, and makes sure that none uses it later: it
// closes the queue, acquires the slot after all collectives that were started before, and keeps it.
// If ctx ends first, closeSlot returns the error of ctx. A second call returns ErrClosed.
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

// requestArena decides whether the call uses the arena, and queues for the slot if so. It is called
// when the call starts, so that calls queue in their order. count is the call's count in bytes, as
// for coll.Pick. Before the communicator has an arena, some calls cannot decide; these queue, and
// decide in enterArena.
//
// Hot path: no allocation.
func (l *link) requestArena(count int) {
	s := l.s
	a := s.arena.Load()
	if a == noArena {
		return
	}
	l.count, l.wantsArena = count, true
	switch {
	case a == nil:
	case count <= a.upTo[l.what] && l.op.Size <= 64:
		l.shared = true
	default:
		if l.algorithm, l.wantsArena = coll.Pick(s.job.coll, a.host, l.what, count, l.op); !l.wantsArena {
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

// enterArena waits for the slot, and makes the arena if this is the first call that needs one. It
// sets l.arena if the call uses the arena; otherwise the call uses messages.
//
// Hot path: no allocation, and no lock if l holds the slot already.
func (l *link) enterArena() error {
	s := l.s
	switch {
	case l.queued:
		if err := s.awaitSlot(l); err != nil {
			return err
		}
	case !l.hasSlot: // the queue is closed
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
		if a, err = l.makeArena(); err != nil {
			return err
		}
		s.arena.Store(a)
	}
	if a == noArena {
		return nil
	}
	if !l.shared && l.algorithm == coll.Unpicked {
		var uses bool
		if l.algorithm, uses = coll.Pick(s.job.coll, a.host, l.what, l.count, l.op); !uses {
			l.dropSlot()
			return nil
		}
	}
	l.arena = a
	return nil
}
