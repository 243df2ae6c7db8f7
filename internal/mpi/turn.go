package mpi

import (
	"context"
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
)

// The turn
//
// The arena of a communicator is used by one collective at a time, in the order
// in which they were started, which is the same on all ranks. Who may use it has
// the turn:
//
//	           free: take it                       end: free again, or
//	begin ───────────────────────► has the turn ─────────────────────► the first of the queue's
//	  │                              ▲        │
//	  │ taken                granted │        │ to be made of messages, as it turns out
//	  ▼                              │        ▼
//	no turn ── wants the arena ──► queue   goes on without
//
// Who takes the turn takes the link that lies with it, so that a collective that
// nobody contends with gets both by one swap, and gives both back by one store.
//
// Nobody waits in vain. Of the collectives that any rank has started and not
// finished, look at the one that was started first: a rank that has started it
// has finished those before it, so the turn is its or free, or with one that is
// made of messages and gives it up without waiting for this one. So on every
// rank that has started it, it runs; and the others will start it without
// waiting for later ones.
//
// Invariants:
//   - state.turn is 1 while and only while nobody has the turn; then state.spare
//     is a link that nobody uses.
//   - a link that finds the turn free while others queue gives it to the first.
type turnQueue struct {
	links []*link // first come first
	over  bool    // the arena goes: nobody gets a turn any more
}

// takeTurn takes the turn, and the link with it, if it is free and nobody
// queues for it; else nil.
//
// Hot path: no allocation, no lock.
func (s *state) takeTurn() *link {
	if s.turn.Swap(0) == 0 {
		return nil
	}
	l := s.spare
	if s.queued.Load() > 0 { // it is somebody else's
		s.freeTurn(l)
		return nil
	}
	return l
}

// freeTurn gives the turn back; l is a link that nobody uses.
//
// Hot path: no allocation, no lock where nobody queues.
func (s *state) freeTurn(l *link) {
	s.spare = l
	s.turn.Store(1)
	if s.queued.Load() > 0 {
		s.grant()
	}
}

// grant gives the turn, if it is free, to the first of the queue.
func (s *state) grant() {
	s.linkMu.Lock()
	defer s.linkMu.Unlock()
	q := &s.queue
	if len(q.links) == 0 || s.turn.Swap(0) == 0 {
		return // who has it will come here
	}
	s.spare.rest()
	s.links = append(s.links, s.spare)
	l := q.links[0]
	q.links = slices.Delete(q.links, 0, 1)
	s.queued.Add(-1)
	l.granted <- struct{}{} // l takes note itself
}

// queueUp waits for the turn in the order of the calls; awaitTurn does the
// waiting.
func (s *state) queueUp(l *link) {
	if l.granted == nil {
		l.granted = make(chan struct{}, 1)
	}
	s.linkMu.Lock()
	l.queues = !s.queue.over
	if l.queues {
		s.queue.links = append(s.queue.links, l)
		s.queued.Add(1)
	}
	s.linkMu.Unlock()
	s.grant()
}

// awaitTurn blocks until l has the turn that it has queued for.
func (s *state) awaitTurn(l *link) error {
	select {
	case <-l.granted:
		l.queues, l.hasTurn = false, true
		return nil
	case <-l.ctx.Done():
		s.leaveQueue(l)
		return l.ctx.Err()
	}
}

// leaveQueue gives up the place in the queue. l may have the turn then.
func (s *state) leaveQueue(l *link) {
	l.queues = false
	s.linkMu.Lock()
	i := slices.Index(s.queue.links, l)
	if i >= 0 {
		s.queue.links = slices.Delete(s.queue.links, i, i+1)
		s.queued.Add(-1)
	}
	s.linkMu.Unlock()
	if i < 0 {
		<-l.granted // it was sent, or is about to be
		l.hasTurn = true
	}
}

// dropTurn has a call that has the turn go on without it.
func (l *link) dropTurn() {
	l.hasTurn = false
	s := l.s
	s.linkMu.Lock()
	free := s.spareLocked()
	s.linkMu.Unlock()
	s.freeTurn(free)
}

// lastTurn waits until no collective is in the arena, and sees to it that none gets
// there any more: it takes the turn, behind all that have been started, and keeps
// it. It returns ctx's error if ctx ends before, and ErrClosed if it was called
// before.
func (s *state) lastTurn(ctx context.Context) error {
	s.linkMu.Lock()
	over := s.queue.over
	s.queue.over = true
	s.linkMu.Unlock()
	if over {
		return ErrClosed
	}
	if l := s.takeTurn(); l != nil {
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
	s.grant()
	return s.awaitTurn(last)
}

// seek decides, in the order of the calls, whether one needs the arena; count is
// bytes, as for coll.Pick. What cannot be known before an arena is made is
// decided by those that have the turn.
//
// Hot path: no allocation.
func (l *link) seek(count int) {
	s := l.s
	a := s.arena.Load()
	if a == noArena {
		return
	}
	l.count, l.seeks = count, true
	switch {
	case a == nil:
	case count <= a.upTo[l.what] && l.op.Size <= 64:
		l.shared = true
	default:
		if l.picked, l.seeks = coll.Pick(s.job.coll, a.host, l.what, count, l.op); !l.seeks {
			if l.hasTurn {
				l.dropTurn()
			}
			return
		}
	}
	if !l.hasTurn {
		s.queueUp(l)
	}
}

// enter waits for the turn of a call that needs the arena, and makes the arena
// if it is the first.
//
// Hot path: no allocation, no lock where the turn is there already.
func (l *link) enter() error {
	s := l.s
	switch {
	case l.queues:
		if err := s.awaitTurn(l); err != nil {
			return err
		}
	case !l.hasTurn: // the queue is over
		return ErrClosed
	}
	if news := s.job.eng.StateVersion(); news != s.news {
		if err := s.coll.Usable(); err != nil {
			return err
		}
		s.news = news
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
	if !l.shared && l.picked == coll.Unpicked {
		var uses bool
		if l.picked, uses = coll.Pick(s.job.coll, a.host, l.what, l.count, l.op); !uses {
			l.dropTurn()
			return nil
		}
	}
	l.arena = a
	return nil
}
