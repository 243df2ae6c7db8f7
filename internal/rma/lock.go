package rma

import (
	"context"

	"github.com/weft-hpc/weft/internal/wire"
)

// Locks of parts, first come first:
//
//	                 shared asked, nobody waits
//	       free ───────────────────────────────► shared × n
//	        ▲ │ exclusive asked                      │ exclusive asked: waits,
//	        │ ▼                                      ▼ and all who ask after it
//	       owned ◄───────────────────────────── the last gives it back
//
// Where all ranks share memory the lock is on the target's board, and whoever
// changes it does so himself: what can be had at once costs no message and
// nothing of the target. Who has to wait sleeps in the engine until WinGrant
// comes from the rank that gave the lock back, or news of a rank's death.
// Otherwise the target keeps the lock, and is asked by messages.

// lockState says how a rank stands to the lock of a part.
type lockState uint8

const (
	lockNone lockState = iota
	lockAsked
	lockHeld
)

// acquire gets the lock of a part.
func (w *Window) acquire(ctx context.Context, t *target, exclusive bool) error {
	t.lockWaiters++
	defer func() { t.lockWaiters-- }()
	if w.locks {
		w.port.Poll() // a message would hear of the target's death
	}
	for {
		if err := t.unfit(); err != nil {
			return err
		}
		switch {
		case t.lock == lockNone:
			if err := t.request(exclusive); err != nil {
				return err
			}
			continue
		case t.exclusive == exclusive && t.abandoned:
			t.abandoned = false // the question still stands
			continue
		case t.lock == lockHeld && !t.abandoned:
			return nil
		case w.locks && t.arrived():
			continue
		}
		if err := w.port.Await(ctx); err != nil {
			if t.lockWaiters == 1 && t.lock == lockAsked {
				t.abandon()
			}
			return err
		}
	}
}

// request asks for the lock of a part.
func (t *target) request(exclusive bool) error {
	w := t.w
	if w.locks {
		if !t.seize() {
			return t.unfit()
		}
		defer t.board.open()
		if t.lock != lockNone { // another goroutine was quicker
			return nil
		}
		t.board.ask(w.rank, exclusive)
		t.lock, t.exclusive = lockAsked, exclusive
		if t.board.holds(w.rank) {
			t.lock = lockHeld
			t.look()
		}
		return nil
	}
	t.lock, t.exclusive, t.abandoned = lockAsked, exclusive, false
	if t.rank == w.rank {
		return w.enqueue(t, exclusive)
	}
	t.say(wire.Window{Kind: wire.WinLock, Flag: exclusive})
	return nil
}

// abandon gives up waiting for the lock of a part.
func (t *target) abandon() {
	if !t.w.locks {
		t.abandoned = true
		return
	}
	if t.w.unfit() == nil && t.seize() {
		if t.lockWaiters == 1 && t.lock == lockAsked {
			t.yield()
		}
		t.board.open()
	}
}

// granted takes the lock of a part.
func (t *target) granted() {
	t.lock = lockHeld
	if t.abandoned {
		t.giveBack()
	}
	t.look()
	t.w.port.WakeAwait()
}

// giveBack gives the lock of a part back.
func (t *target) giveBack() {
	w := t.w
	switch {
	case t.lock != lockHeld:
		return
	case w.locks:
		if t.seize() {
			if t.lock == lockHeld { // else another goroutine was quicker
				t.yield()
			}
			t.board.open()
		}
		return
	}
	t.lock, t.abandoned = lockNone, false
	t.look()
	if t.rank == w.rank {
		w.dequeue(t)
	} else {
		t.say(wire.Window{Kind: wire.WinUnlock})
	}
}

// Locks on boards

// seize takes the latch of a board; false: the window has ended. The engine's
// lock is open where it has to wait.
func (t *target) seize() bool {
	w := t.w
	for i := 0; !t.board.try(w.rank); i++ {
		if i < latchTries {
			continue
		}
		if t.inherit() {
			return true
		}
		w.port.Unlock()
		w.port.Pause()
		w.port.Lock()
		if w.unfit() != nil {
			return false
		}
	}
	return true
}

// yield gives up what this rank has of a lock. It has the latch.
func (t *target) yield() {
	t.lock = lockNone
	t.look()
	t.board.drop(t.w.rank)
	t.grant()
}

// grant gives a lock to who is next, and tells them. It has the latch.
func (t *target) grant() {
	w := t.w
	w.granted = t.board.grant(w.granted[:0])
	for _, r := range w.granted {
		if r == w.rank {
			w.port.WakeAwait()
		} else {
			w.targets[r].say(wire.Window{Kind: wire.WinGrant})
		}
	}
}

// arrived says whether something has changed for who waits for the lock of a
// part: that it is ours, or that ranks have died, which may have had it.
func (t *target) arrived() bool {
	w := t.w
	switch {
	case t.board.holds(w.rank):
		t.lock = lockHeld
		t.look()
		w.port.WakeAwait()
		return true
	case t.mourned == w.losses:
		return false
	}
	t.mourned = w.losses
	if t.seize() {
		t.board.repair(w.gone)
		t.grant()
		t.board.open()
	}
	return true
}

// Locks by messages

// lockRequest is a rank that waits for the lock of this rank's part.
type lockRequest struct {
	rank      int
	exclusive bool
}

// enqueue takes a rank's question for the lock.
func (w *Window) enqueue(t *target, exclusive bool) error {
	if t.holds != lockNone {
		return errLocking
	}
	if t.notes >= maxAnswers {
		return errFlood
	}
	t.holds = lockAsked
	w.queue = append(w.queue, lockRequest{t.rank, exclusive})
	w.grant()
	return nil
}

// grant gives the lock to who is first, as long as it can be had.
func (w *Window) grant() {
	for len(w.queue) > 0 {
		q := w.queue[0]
		if w.owned || q.exclusive && w.shared > 0 {
			return
		}
		w.queue = append(w.queue[:0], w.queue[1:]...) // before it is granted, which may give it back
		w.shared++
		w.owned = q.exclusive
		t := &w.targets[q.rank]
		t.holds = lockHeld
		if q.rank == w.rank {
			t.granted()
		} else {
			x := t.note()
			x.answer = true
			t.notes++
			x.send(wire.Window{Kind: wire.WinGrant})
		}
	}
}

// dequeue takes the lock back from a rank, or its question for it.
func (w *Window) dequeue(t *target) {
	switch t.holds {
	case lockHeld:
		w.shared--
		w.owned = false
	case lockAsked:
		for i := range w.queue {
			if w.queue[i].rank == t.rank {
				w.queue = append(w.queue[:i], w.queue[i+1:]...)
				break
			}
		}
	default:
		return
	}
	t.holds = lockNone
	w.grant()
}
