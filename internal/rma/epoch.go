package rma

import (
	"context"
	"fmt"
)

// The epochs of an origin (MPI 4.1, 12.5). At most one kind is open at a time:
//
//	Fence(more) ─────── all targets ────────── Fence
//	Start(targets) ──── those targets ──────── Complete
//	Lock(target) ────── that target, others ── Unlock
//	LockAll ─────────── all targets ────────── UnlockAll
//
// An epoch of another kind may open while a fence epoch is open, and then closes the fence epoch.
// Package internal/mpi implements the target's side, by barriers and messages.

// admit checks that an epoch permits an operation with a target. Under LockAll it first acquires
// the lock of the target's part, if this rank does not have it.
func (w *Window) admit(ctx context.Context, t *target) error {
	switch {
	case t.down != nil:
		return t.down
	case t.lock == lockHeld && !t.abandoned, w.fence, t.begun, t.unchecked, w.allUnchecked:
		return nil
	case w.all:
		if err := w.acquire(ctx, t, false); err != nil || w.all || t.locked {
			return err
		}
		t.releaseLock() // the epoch has ended, and no other call releases this lock
	}
	return fmt.Errorf("%w: this rank has neither a lock of rank %d's part nor another epoch with it", ErrEpoch, t.rank)
}

// mayOpen returns an error if the window is unusable, or an epoch of LockAll or Start is open.
func (w *Window) mayOpen() error {
	if err := w.invalid(); err != nil {
		return err
	}
	if w.all || w.begun > 0 {
		return fmt.Errorf("%w: another epoch is open", ErrEpoch)
	}
	return nil
}

// endFence closes the fence epoch, if one is open, because another epoch opens. The standard
// permits that only if the fence epoch has no operations; endFence does not check this.
func (w *Window) endFence() {
	if w.fence {
		w.fence = false
		w.updateAllFlags()
	}
}

// Lock opens an epoch with one target (MPI_Win_lock). It blocks until this rank has the lock of the
// target's part, exclusive or shared. Locks are granted in the order of the requests. If ctx ends
// first, Lock returns ctx's error and gives the request up; if the request is granted nevertheless,
// and no other call waits for the lock by then, the lock is released at once.
func (w *Window) Lock(ctx context.Context, target int, exclusive bool) error {
	return w.lock(ctx, target, exclusive, false)
}

// LockUnchecked is [Window.Lock] without the lock (MPI_MODE_NOCHECK): the program makes sure that no
// other rank has a lock of the part that is not compatible, until Unlock. If the locks are in shared
// memory and another rank has such a lock, LockUnchecked returns ErrEpoch.
func (w *Window) LockUnchecked(ctx context.Context, target int, exclusive bool) error {
	return w.lock(ctx, target, exclusive, true)
}

func (w *Window) lock(ctx context.Context, target int, exclusive, unchecked bool) error {
	w.port.Lock()
	defer w.port.Unlock()
	t, err := w.mayLockTarget(target)
	if err != nil {
		return err
	}
	if unchecked {
		return t.enterUnchecked(exclusive)
	}
	w.endFence()
	t.locking = true // from here on LockAll, Start and Fence fail, and another Lock of this part
	w.locked++
	err = w.acquire(ctx, t, exclusive)
	t.locking = false
	if err != nil {
		w.locked--
		return err
	}
	t.locked = true
	return nil
}

// TryLock is [Window.Lock], except that it does not wait for ranks that have the lock or wait for
// it: it reports whether it has opened the epoch. If the locks are not in shared memory, it waits
// for the target's answer; if ctx ends first, TryLock returns ctx's error and gives the request up.
func (w *Window) TryLock(ctx context.Context, target int, exclusive bool) (bool, error) {
	w.port.Lock()
	defer w.port.Unlock()
	t, err := w.mayLockTarget(target)
	if err != nil {
		return false, err
	}
	t.locking = true
	w.locked++
	got, err := t.tryAcquire(ctx, exclusive)
	t.locking = false
	if err != nil || !got {
		w.locked--
		return false, err
	}
	w.endFence()
	t.locked = true
	return true, nil
}

// mayLockTarget returns the target with a rank, if this rank may open an epoch of Lock with it.
func (w *Window) mayLockTarget(target int) (*target, error) {
	if err := w.mayLock(); err != nil {
		return nil, err
	}
	if target < 0 || target >= len(w.targets) {
		return nil, fmt.Errorf("%w: rank %d of %d", ErrRange, target, len(w.targets))
	}
	t := &w.targets[target]
	if t.locked || t.locking || t.lock != lockNone && !t.abandoned {
		return nil, fmt.Errorf("%w: rank %d's part is locked already", ErrEpoch, target)
	}
	return t, nil
}

// enterUnchecked opens the epoch of LockUnchecked.
func (t *target) enterUnchecked(exclusive bool) error {
	w := t.w
	if t.down != nil {
		return t.down
	}
	if w.tableLocks && t.lockTable.conflicts(w.rank, exclusive) {
		return fmt.Errorf("%w: another rank has a lock of rank %d's part, although the program asserts that none has", ErrEpoch, t.rank)
	}
	w.endFence()
	w.locked++
	t.locked, t.unchecked = true, true
	t.updateFlags()
	return nil
}

// mayLock is mayOpen for an epoch with locks.
func (w *Window) mayLock() error {
	if w.cfg.NoLocks {
		return fmt.Errorf("%w: the window was made without locks", ErrEpoch)
	}
	return w.mayOpen()
}

// Unlock closes the epoch of [Window.Lock]. It blocks until all operations are complete at the
// target, releases the lock, and returns the first error of the operations since Lock. If ctx ends
// first, Unlock returns ctx's error, and the epoch stays open.
func (w *Window) Unlock(ctx context.Context, target int) error {
	w.port.Lock()
	defer w.port.Unlock()
	if target < 0 || target >= len(w.targets) {
		return fmt.Errorf("%w: rank %d of %d", ErrRange, target, len(w.targets))
	}
	t := &w.targets[target]
	var err error
	if t.locked {
		err = w.drain(ctx, t, false)
	}
	switch {
	case err != nil:
		return err
	case !t.locked: // the part was not locked, or another call of Unlock has unlocked it during drain
		return fmt.Errorf("%w: rank %d's part is not locked", ErrEpoch, target)
	}
	t.locked = false
	w.locked--
	if t.unchecked {
		t.unchecked = false
		t.updateFlags()
	}
	t.releaseLock()
	if err := t.epochError(); err != nil {
		return err
	}
	return t.down
}

// LockAll opens an epoch with all targets (MPI_Win_lock_all). It does not block. The first
// operation with a target acquires a shared lock of its part.
func (w *Window) LockAll(context.Context) error { return w.lockAll(false) }

// LockAllUnchecked is [Window.LockAll] without locks: the program makes sure that no other rank has an
// exclusive lock of any part until UnlockAll.
func (w *Window) LockAllUnchecked() error { return w.lockAll(true) }

func (w *Window) lockAll(unchecked bool) error {
	w.port.Lock()
	defer w.port.Unlock()
	if err := w.mayLock(); err != nil {
		return err
	}
	if w.locked > 0 {
		return fmt.Errorf("%w: a part is locked", ErrEpoch)
	}
	w.endFence()
	w.all, w.allUnchecked = true, unchecked
	if unchecked {
		w.updateAllFlags()
	}
	return nil
}

// UnlockAll closes the epoch of [Window.LockAll], as Unlock does for one target.
func (w *Window) UnlockAll(ctx context.Context) error {
	w.port.Lock()
	defer w.port.Unlock()
	if !w.all {
		return fmt.Errorf("%w: LockAll was not called", ErrEpoch)
	}
	return w.finishEpoch(ctx, func() {
		w.all, w.allUnchecked = false, false
		w.updateAllFlags()
	})
}

// Fence closes the fence epoch, if one is open, and opens another one unless last is set
// (MPI_Win_fence). It blocks until all operations of this rank are complete at their targets, and
// returns their first error. The operations of other ranks are complete only after a barrier, which
// the caller calls after Fence.
func (w *Window) Fence(ctx context.Context, last bool) error {
	w.port.Lock()
	defer w.port.Unlock()
	if w.err == nil && (w.all || w.begun > 0 || w.locked > 0) {
		return fmt.Errorf("%w: another epoch is open", ErrEpoch)
	}
	return w.finishEpoch(ctx, func() {
		if w.fence == last {
			w.fence = !last
			w.updateAllFlags()
		}
	})
}

// Start opens an epoch with some targets (MPI_Win_start). The caller has received a message from
// each target, which says that the target has called MPI_Win_post. Start does not block.
func (w *Window) Start(targets []int) error {
	w.port.Lock()
	defer w.port.Unlock()
	if err := w.mayOpen(); err != nil {
		return err
	}
	if w.locked > 0 {
		return fmt.Errorf("%w: a part is locked", ErrEpoch)
	}
	for _, i := range targets {
		if i < 0 || i >= len(w.targets) {
			return fmt.Errorf("%w: rank %d of %d", ErrRange, i, len(w.targets))
		}
	}
	w.endFence()
	for _, i := range targets {
		w.targets[i].begun = true
		w.targets[i].updateFlags()
	}
	w.begun = max(1, len(targets))
	return nil
}

// Complete closes the epoch of [Window.Start] (MPI_Win_complete). It blocks until all operations
// are complete at their targets, and returns their first error.
func (w *Window) Complete(ctx context.Context) error {
	w.port.Lock()
	defer w.port.Unlock()
	if w.begun == 0 {
		return fmt.Errorf("%w: Start was not called", ErrEpoch)
	}
	return w.finishEpoch(ctx, func() {
		w.begun = 0
		for i := range w.targets {
			w.targets[i].begun = false
			w.targets[i].updateFlags()
		}
	})
}

// finishEpoch waits for all operations, closes an epoch of LockAll, Fence or Start, releases all
// locks that this rank has, and returns the first error of the epoch's operations. It calls closed,
// which records that the epoch is closed.
func (w *Window) finishEpoch(ctx context.Context, closed func()) error {
	epoch := w.epochs
	if err := w.drainAll(ctx, false); err != nil {
		return err
	}
	if w.epochs != epoch && w.err == nil {
		return fmt.Errorf("%w: another call has closed it", ErrEpoch)
	}
	w.epochs++
	closed()
	var first error
	for i := range w.targets {
		t := &w.targets[i]
		t.releaseLock()
		if err := t.epochError(); first == nil {
			first = err
		}
	}
	if first == nil {
		first = w.err
	}
	return first
}

// epochError returns the first error of the epoch with a target, and clears it for the next epoch.
// If there is none, it returns why the window is unusable, or nil.
func (t *target) epochError() error {
	err := t.firstError()
	t.lost = false
	if t.err != nil {
		t.err = nil
		t.updateFlags()
	}
	if err == nil {
		err = t.w.err
	}
	return err
}

// firstError returns the first error of the epoch with a target, or nil. If the target's part is mapped,
// operations are stores, which cannot fail. So if the target has failed during the epoch, firstError returns
// the failure: no rank reads what this rank has stored.
func (t *target) firstError() error {
	if t.err == nil && t.lost {
		return t.down
	}
	return t.err
}

// Flush blocks until all operations of this rank with the target are complete there
// (MPI_Win_flush). It returns the first error of the operations since the epoch began; the call
// that ends the epoch returns it again.
//
// Hot path: no allocation; no lock if the part is mapped.
func (w *Window) Flush(ctx context.Context, target int) error {
	return w.flush(ctx, target, false)
}

// FlushLocal blocks until the caller may reuse the buffers of all operations with the target
// (MPI_Win_flush_local). The buffers of Get and of fetches have the data then.
func (w *Window) FlushLocal(ctx context.Context, target int) error {
	return w.flush(ctx, target, true)
}

func (w *Window) flush(ctx context.Context, target int, local bool) error {
	if uint(target) < uint(len(w.targets)) && w.targets[target].idle.Load() {
		return nil
	}
	w.port.Lock()
	defer w.port.Unlock()
	if target < 0 || target >= len(w.targets) {
		return fmt.Errorf("%w: rank %d of %d", ErrRange, target, len(w.targets))
	}
	t := &w.targets[target]
	if err := w.drain(ctx, t, local); err != nil {
		return err
	}
	switch {
	case t.err != nil:
		return t.err
	case t.isMapped && t.down != nil: // the target has ended, so no rank sees the stores
		return t.down
	}
	return w.err
}

// FlushAll is [Window.Flush] for all targets. It does not report the failure of a target with which
// an epoch of [Window.LockAll] has had no operation.
func (w *Window) FlushAll(ctx context.Context) error { return w.flushAll(ctx, false) }

// FlushLocalAll is [Window.FlushLocal] for all targets.
func (w *Window) FlushLocalAll(ctx context.Context) error { return w.flushAll(ctx, true) }

func (w *Window) flushAll(ctx context.Context, local bool) error {
	if w.allMapped && w.allIdle() {
		return nil
	}
	w.port.Lock()
	defer w.port.Unlock()
	if err := w.drainAll(ctx, local); err != nil {
		return err
	}
	for i := range w.targets {
		if err := w.targets[i].firstError(); err != nil {
			return err
		}
	}
	return w.err
}

// Pending reports whether an operation of this rank is not complete.
func (w *Window) Pending() bool {
	w.port.Lock()
	defer w.port.Unlock()
	for i := range w.targets {
		if w.targets[i].pending > 0 {
			return true
		}
	}
	return false
}

// allIdle reports whether target.idle is set for all targets.
func (w *Window) allIdle() bool {
	for i := range w.targets {
		if !w.targets[i].idle.Load() {
			return false
		}
	}
	return true
}

// Sync makes progress, and orders this rank's loads and stores of mapped memory, including its own
// part, with those of peers (MPI_Win_sync). Callers typically call it in a loop, so Sync also lets
// other goroutines run.
func (w *Window) Sync() error {
	w.port.Lock()
	w.port.Poll()
	err := w.err
	w.port.Unlock()
	w.port.Yield()
	return err
}

// drain blocks until all operations with a target that have started before the call are complete,
// with or without an error. If local is set, it waits only until the caller may reuse their
// buffers.
//
// Hot path: no allocation.
func (w *Window) drain(ctx context.Context, t *target, local bool) error {
	if t.pending == 0 {
		w.port.Poll()
		return nil
	}
	f := &t.flushes[0]
	if local {
		f = &t.flushes[1]
	}
	f.n++
	defer func() { f.n-- }()
	for n := t.started; !t.complete(n, local); {
		if !local {
			t.requestAck()
		}
		f.goal = min(f.goal, n)
		if err := w.port.Await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// drainAll is drain for all targets. Unless local is set, it requests the acknowledgements of all
// targets before it waits for the first one.
func (w *Window) drainAll(ctx context.Context, local bool) error {
	if !local {
		for i := range w.targets {
			if t := &w.targets[i]; t.pending > 0 {
				t.requestAck()
			}
		}
	}
	for i := range w.targets {
		if t := &w.targets[i]; t.pending > 0 {
			if err := w.drain(ctx, t, local); err != nil {
				return err
			}
		}
	}
	w.port.Poll()
	return nil
}
