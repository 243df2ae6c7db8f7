package rma

import (
	"context"

	"github.com/weft-hpc/weft/internal/wire"
)

// Locks of parts, granted in the order of the requests:
//
//	                 shared request, no rank waits
//	       free ───────────────────────────────► shared × n
//	        ▲ │ exclusive request                    │ exclusive request: it waits,
//	        │ ▼                                      ▼ and all later requests wait too
//	      exclusive ◄────────────────────────── the last holder releases it
//
// If all ranks share memory, the lock is in the target's lock table, and each rank changes the
// table itself. So a lock that is free costs no message, and the target does nothing. A rank that
// must wait sleeps in the engine until it gets WinGrant from the rank that released the lock, or
// until the engine reports that a rank has died. Otherwise the target keeps the state of the lock,
// and the others send it messages.

// lockState is a rank's state with respect to the lock of a part.
type lockState uint8

const (
	lockNone lockState = iota
	lockRequested
	lockHeld
)

// acquire blocks until this rank has the lock of a part. If ctx ends first, and no other goroutine
// waits for the lock, acquire gives the request up.
func (w *Window) acquire(ctx context.Context, t *target, exclusive bool) error {
	t.lockWaiters++
	defer func() { t.lockWaiters-- }()
	if w.tableLocks {
		// Poll sets t.down if the target has died. With lock tables this rank sends no message to the
		// target whose failure would report that.
		w.port.Poll()
	}
	for {
		if err := t.invalid(); err != nil {
			return err
		}
		switch {
		case t.lock == lockNone:
			if err := t.request(exclusive); err != nil {
				return err
			}
			continue
		case t.exclusive == exclusive && t.abandoned:
			t.abandoned = false // the request that was given up is still pending, so take it over
			continue
		case t.lock == lockHeld && !t.abandoned:
			return nil
		case w.tableLocks && t.lockChanged():
			continue
		}
		if err := w.port.Await(ctx); err != nil {
			if t.lockWaiters == 1 && t.lock == lockRequested {
				t.abandon()
			}
			return err
		}
	}
}

// request requests the lock of a part.
func (t *target) request(exclusive bool) error {
	w := t.w
	if w.tableLocks {
		if !t.acquireLatch() {
			return t.invalid()
		}
		defer t.lockTable.unlatch()
		if t.lock != lockNone { // another goroutine has requested it in the meantime
			return nil
		}
		t.lockTable.request(w.rank, exclusive)
		t.lock, t.exclusive = lockRequested, exclusive
		if t.lockTable.holds(w.rank) {
			t.lock = lockHeld
			t.updateFlags()
		}
		return nil
	}
	t.lock, t.exclusive, t.abandoned = lockRequested, exclusive, false
	if t.rank == w.rank {
		return w.enqueue(t, exclusive)
	}
	t.sendControl(wire.Window{Kind: wire.WinLock, Flag: exclusive})
	return nil
}

// abandon gives up a request for the lock of a part, because no call waits for it any more. In a
// lock table it withdraws the request. A request by message stays; when the lock is granted, the
// method granted releases it.
func (t *target) abandon() {
	if !t.w.tableLocks {
		t.abandoned = true
		return
	}
	if t.w.invalid() == nil && t.acquireLatch() {
		if t.lockWaiters == 1 && t.lock == lockRequested {
			t.dropLock()
		}
		t.lockTable.unlatch()
	}
}

// granted records that this rank has got the lock of a part, by messages. If no call waits for the
// lock any more, granted releases it.
func (t *target) granted() {
	t.lock = lockHeld
	if t.abandoned {
		t.releaseLock()
	}
	t.updateFlags()
	t.w.port.WakeAwait()
}

// releaseLock releases the lock of a part, if this rank has it.
func (t *target) releaseLock() {
	w := t.w
	switch {
	case t.lock != lockHeld:
		return
	case w.tableLocks:
		if t.acquireLatch() {
			if t.lock == lockHeld { // otherwise another goroutine has released it in the meantime
				t.dropLock()
			}
			t.lockTable.unlatch()
		}
		return
	}
	t.lock, t.abandoned = lockNone, false
	t.updateFlags()
	if t.rank == w.rank {
		w.dequeue(t)
	} else {
		t.sendControl(wire.Window{Kind: wire.WinUnlock})
	}
}

// Locks in lock tables

// acquireLatch takes the latch of the target's lock table. It returns false if the window is
// unusable. While it waits, it releases the engine's lock at times.
func (t *target) acquireLatch() bool {
	w := t.w
	for i := 0; !t.lockTable.tryLatch(w.rank); i++ {
		if i < latchTries {
			continue
		}
		if t.takeDeadLatch() {
			return true
		}
		w.port.Unlock()
		w.port.Pause()
		w.port.Lock()
		if w.invalid() != nil {
			return false
		}
	}
	return true
}

// dropLock releases this rank's lock or withdraws its request, and grants the lock to the next
// ranks. The caller holds the latch.
func (t *target) dropLock() {
	t.lock = lockNone
	t.updateFlags()
	t.lockTable.release(t.w.rank)
	t.grant()
}

// grant grants the lock of the target's part to the next ranks that wait for it in the lock table,
// and notifies them. The caller holds the latch.
func (t *target) grant() {
	w := t.w
	w.granted = t.lockTable.grant(w.granted[:0])
	for _, r := range w.granted {
		if r == w.rank {
			w.port.WakeAwait()
		} else {
			w.targets[r].sendControl(wire.Window{Kind: wire.WinGrant})
		}
	}
}

// lockChanged reports whether the state of a requested lock may have changed: this rank has the
// lock now, or ranks have died that may have had it. In the latter case lockChanged repairs the
// lock table.
func (t *target) lockChanged() bool {
	w := t.w
	switch {
	case t.lockTable.holds(w.rank):
		t.lock = lockHeld
		t.updateFlags()
		w.port.WakeAwait()
		return true
	case t.endedSeen == w.endedRanks:
		return false
	}
	t.endedSeen = w.endedRanks
	if t.acquireLatch() {
		t.lockTable.repair(w.gone)
		t.grant()
		t.lockTable.unlatch()
	}
	return true
}

// Locks by messages

// lockRequest is the request of a rank that waits for the lock of this rank's part.
type lockRequest struct {
	rank      int
	exclusive bool
}

// enqueue puts a rank's request for the lock of this rank's part into the queue, and grants the
// lock if it is free. t is the target struct of the rank that requests the lock. enqueue returns an
// error if a correct peer sends no such request now.
func (w *Window) enqueue(t *target, exclusive bool) error {
	if t.peerLock != lockNone {
		return errLocking
	}
	if t.answers >= maxAnswers {
		return errFlood
	}
	t.peerLock = lockRequested
	w.queue = append(w.queue, lockRequest{t.rank, exclusive})
	w.grant()
	return nil
}

// grant grants the lock of this rank's part to the first ranks in the queue, until a request is not
// compatible with the ranks that have the lock.
func (w *Window) grant() {
	for len(w.queue) > 0 {
		q := w.queue[0]
		if w.owned || q.exclusive && w.shared > 0 {
			return
		}
		// Remove the request before the call of granted below, because granted may release the lock,
		// which calls grant again.
		w.queue = append(w.queue[:0], w.queue[1:]...)
		w.shared++
		w.owned = q.exclusive
		t := &w.targets[q.rank]
		t.peerLock = lockHeld
		if q.rank == w.rank {
			t.granted()
		} else {
			x := t.newControl()
			x.answer = true
			t.answers++
			x.send(wire.Window{Kind: wire.WinGrant})
		}
	}
}

// dequeue releases the lock of this rank's part that the rank of t has, or removes that rank's
// request from the queue. Then it grants the lock to the next ranks.
func (w *Window) dequeue(t *target) {
	switch t.peerLock {
	case lockHeld:
		w.shared--
		w.owned = false
	case lockRequested:
		for i := range w.queue {
			if w.queue[i].rank == t.rank {
				w.queue = append(w.queue[:i], w.queue[i+1:]...)
				break
			}
		}
	default:
		return
	}
	t.peerLock = lockNone
	w.grant()
}
