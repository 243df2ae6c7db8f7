package rma

import (
	"context"
	"slices"

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
// A process that has a lock passes the ranks that wait: its shared request waits only for a rank that
// has the lock exclusively. Otherwise ranks could wait for each other: 0 and 1 in LockAll, 2 and 3
// for an exclusive lock of their own parts,
//
//	0 has a lock of 3, and waits at 2 behind 2, which waits for 1;
//	1 has a lock of 2, and waits at 3 behind 3, which waits for 0.
//
// So an epoch of LockAll requests its first lock in the order of all requests, and while it waits it
// has and requests no other.
//
// A request of TryLock is granted at once or refused. It never waits for another rank's lock, so it
// adds nothing to such a circle. It passes the ranks that wait under the same rule.
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
		case t.lock == lockNone && w.all && w.requested > 0 && w.cfg.Locks.Load() == 0:
			// The epoch's first request is pending.
		case t.lock == lockNone:
			if err := t.request(exclusive, false); err != nil {
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

// tryAcquire is acquire, except that it does not wait for other ranks that have the lock: it reports
// whether this rank has got the lock. By messages it waits for the target's answer. If ctx ends
// first, tryAcquire gives the request up. The caller has set t.locking, so no other goroutine requests
// the lock meanwhile.
func (t *target) tryAcquire(ctx context.Context, exclusive bool) (bool, error) {
	w := t.w
	t.lockWaiters++
	defer func() { t.lockWaiters-- }()
	w.port.Poll() // for failures, as in acquire, and for the answer to a request that was given up
	if err := t.invalid(); err != nil {
		return false, err
	}
	if t.lock != lockNone { // the request that was given up is pending
		return false, nil
	}
	if err := t.request(exclusive, true); err != nil {
		return false, err
	}
	for t.lock == lockRequested {
		if err := w.port.Await(ctx); err != nil {
			if t.lock == lockRequested {
				t.abandon()
				return false, err
			}
			break
		}
	}
	if err := t.invalid(); err != nil {
		t.releaseLock()
		return false, err
	}
	return t.lock == lockHeld, nil
}

// request requests the lock of a part. If try is set and the lock is not free, the request ends: at
// once, or with the target's answer.
func (t *target) request(exclusive, try bool) error {
	w := t.w
	if w.tableLocks {
		if !t.acquireLatch() {
			return t.invalid()
		}
		defer t.lockTable.unlatch()
		if err := t.invalid(); err != nil { // the target has died while this rank waited for the latch
			return err
		}
		if t.lock != lockNone { // another goroutine has requested it in the meantime
			return nil
		}
		if try {
			t.repairLock() // no later call does it for a rank that does not wait
			if !t.lockTable.tryRequest(w.rank, exclusive, t.passes(exclusive)) {
				return nil
			}
		} else {
			t.lockTable.request(w.rank, exclusive, t.passes(exclusive))
		}
		t.exclusive = exclusive
		t.setLock(lockRequested)
		if t.lockTable.holds(w.rank) {
			t.setLock(lockHeld)
			t.updateFlags()
		}
		return nil
	}
	passes := t.passes(exclusive)
	if t.rank == w.rank && try && !w.grantable(exclusive, passes) {
		return nil
	}
	t.exclusive, t.abandoned = exclusive, false
	t.setLock(lockRequested)
	if t.rank == w.rank {
		return w.enqueue(t, exclusive, passes)
	}
	t.trying = try
	t.sendControl(wire.Window{Kind: wire.WinLock, Flag: exclusive, Passes: passes, Try: try})
	return nil
}

// passes reports whether a request passes the ranks that wait for the lock: see above.
func (t *target) passes(exclusive bool) bool { return !exclusive && t.w.cfg.Locks.Load() > 0 }

// setLock changes the state of the lock, and the counts of such states.
func (t *target) setLock(s lockState) {
	w := t.w
	count := func(s lockState, n int) {
		switch s {
		case lockNone:
		case lockRequested:
			w.requested += n
		case lockHeld:
			w.cfg.Locks.Add(int64(n))
		}
	}
	count(t.lock, -1)
	count(s, 1)
	t.lock = s
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
			t.w.port.WakeAwait() // for calls that wait because of this request
		}
		t.lockTable.unlatch()
	}
}

// granted records that this rank has got the lock of a part, by messages. If no call waits for the
// lock any more, granted releases it.
func (t *target) granted() {
	t.trying = false
	t.setLock(lockHeld)
	if t.abandoned {
		t.releaseLock()
	}
	t.updateFlags()
	t.w.port.WakeAwait()
}

// refused records that the target has refused a request of TryLock. A call that has taken over the
// request, because no call waited for it any more, requests the lock again.
func (t *target) refused() error {
	if !t.trying || t.lock != lockRequested {
		if t.down != nil {
			return nil
		}
		return errLocking
	}
	t.trying, t.abandoned = false, false
	t.setLock(lockNone)
	t.w.port.WakeAwait()
	return nil
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
	t.setLock(lockNone)
	t.abandoned = false
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
	t.setLock(lockNone)
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
		t.setLock(lockHeld)
		t.updateFlags()
		w.port.WakeAwait()
		return true
	case t.endedSeen == w.endedRanks:
		return false
	}
	if t.acquireLatch() {
		t.repairLock()
		t.lockTable.unlatch()
	}
	return true
}

// repairLock repairs the lock table if ranks have ended since the last repair. The caller holds the
// latch.
func (t *target) repairLock() {
	if t.endedSeen != t.w.endedRanks {
		t.endedSeen = t.w.endedRanks
		t.lockTable.repair(t.w.gone)
		t.grant()
	}
}

// Locks by messages

// lockRequest is the request of a rank that waits for the lock of this rank's part.
type lockRequest struct {
	rank      int
	exclusive bool
}

// enqueue puts a rank's request for the lock of this rank's part into the queue, and grants the
// lock if it is free. t is the target struct of the rank that requests the lock. A request that
// passes the others goes to the front. enqueue returns an error if a correct peer sends no such
// request now.
func (w *Window) enqueue(t *target, exclusive, passes bool) error {
	if t.peerLock != lockNone {
		return errLocking
	}
	if t.answers >= maxAnswers {
		return errFlood
	}
	t.peerLock = lockRequested
	at := len(w.queue)
	if passes {
		at = 0
	}
	w.queue = slices.Insert(w.queue, at, lockRequest{t.rank, exclusive})
	w.grant()
	return nil
}

// grantable reports whether enqueue would grant the lock at once.
func (w *Window) grantable(exclusive, passes bool) bool {
	return (len(w.queue) == 0 || passes) && !w.owned && (!exclusive || w.shared == 0)
}

// refuse answers the request of TryLock of the rank of t, which enqueue would not grant at once.
func (t *target) refuse() error {
	switch {
	case t.peerLock != lockNone:
		return errLocking
	case t.answers >= maxAnswers:
		return errFlood
	}
	x := t.newControl()
	x.answer = true
	t.answers++
	x.send(wire.Window{Kind: wire.WinBusy})
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
