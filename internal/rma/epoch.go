package rma

import (
	"context"
	"fmt"
)

// Epochs of an origin (MPI 4.1, 12.5), of which one is open at a time:
//
//	Fence(more) ─────── all targets ────────── Fence
//	Start(targets) ──── those targets ──────── Complete
//	Lock(target) ────── that target, others ── Unlock
//	LockAll ─────────── all targets ────────── UnlockAll
//
// A fence epoch in which nothing was done does not keep the others from
// opening. The side of the target is comm's: barriers and messages.

// enter permits an operation with a target, and under LockAll gets the lock
// first.
func (w *Window) enter(ctx context.Context, t *target) error {
	switch {
	case t.down != nil:
		return t.down
	case t.lock == lockHeld && !t.abandoned, w.fence, t.begun:
		return nil
	case w.all:
		if err := w.acquire(ctx, t, false); err != nil || w.all || t.locked {
			return err
		}
		t.giveBack() // the epoch is over, and nobody else would
	}
	return fmt.Errorf("%w: neither a lock of rank %d's part nor another epoch with it", ErrEpoch, t.rank)
}

// opening says whether another epoch may open.
func (w *Window) opening() error {
	if err := w.unfit(); err != nil {
		return err
	}
	if w.all || w.begun > 0 {
		return fmt.Errorf("%w: another one is open", ErrEpoch)
	}
	return nil
}

// endFence closes a fence epoch in which nothing was done.
func (w *Window) endFence() {
	if w.fence {
		w.fence = false
		w.lookAll()
	}
}

// Lock opens an epoch with one target (MPI_Win_lock): it blocks until this rank
// has the lock of the target's part, shared or alone. Who asks first gets it
// first. If ctx ends first its error is returned, and the lock is given back
// when it comes.
func (w *Window) Lock(ctx context.Context, target int, exclusive bool) error {
	w.port.Lock()
	defer w.port.Unlock()
	if err := w.opening(); err != nil {
		return err
	}
	if target < 0 || target >= len(w.targets) {
		return fmt.Errorf("%w: rank %d of %d", ErrRange, target, len(w.targets))
	}
	t := &w.targets[target]
	if t.locked || t.locking || t.lock != lockNone && !t.abandoned {
		return fmt.Errorf("%w: rank %d's part is locked already", ErrEpoch, target)
	}
	w.endFence()
	t.locking = true // from here on the epoch keeps others from opening
	w.locked++
	err := w.acquire(ctx, t, exclusive)
	t.locking = false
	if err != nil {
		w.locked--
		return err
	}
	t.locked = true
	return nil
}

// Unlock closes the epoch of Lock: it blocks until all operations with the
// target are complete there, and gives the lock back. The error is the first of
// the operations since Lock. If ctx ends first its error is returned and the
// epoch is still open.
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
	case !t.locked: // or not any more
		return fmt.Errorf("%w: rank %d's part is not locked", ErrEpoch, target)
	}
	t.locked = false
	w.locked--
	t.giveBack()
	if err := t.outcome(); err != nil {
		return err
	}
	return t.down
}

// LockAll opens an epoch with all targets (MPI_Win_lock_all): a shared lock of
// each part, which is got at the first operation with it.
func (w *Window) LockAll(context.Context) error {
	w.port.Lock()
	defer w.port.Unlock()
	if err := w.opening(); err != nil {
		return err
	}
	if w.locked > 0 {
		return fmt.Errorf("%w: a part is locked", ErrEpoch)
	}
	w.endFence()
	w.all = true
	return nil
}

// UnlockAll closes the epoch of LockAll as Unlock does with one target.
func (w *Window) UnlockAll(ctx context.Context) error {
	w.port.Lock()
	defer w.port.Unlock()
	if !w.all {
		return fmt.Errorf("%w: LockAll was not called", ErrEpoch)
	}
	return w.finishEpoch(ctx, func() { w.all = false })
}

// Fence closes the fence epoch, if one is open, and opens another unless last
// (MPI_Win_fence). It blocks until all operations of this rank are complete at
// their targets, and returns their first error; that those of other ranks are
// is for a barrier of the caller's, after it.
func (w *Window) Fence(ctx context.Context, last bool) error {
	w.port.Lock()
	defer w.port.Unlock()
	if w.err == nil && (w.all || w.begun > 0 || w.locked > 0) {
		return fmt.Errorf("%w: another one is open", ErrEpoch)
	}
	return w.finishEpoch(ctx, func() {
		if w.fence == last {
			w.fence = !last
			w.lookAll()
		}
	})
}

// Start opens an epoch with some targets (MPI_Win_start). The caller has heard
// from all of them that they are ready.
func (w *Window) Start(targets []int) error {
	w.port.Lock()
	defer w.port.Unlock()
	if err := w.opening(); err != nil {
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
		w.targets[i].look()
	}
	w.begun = max(1, len(targets))
	return nil
}

// Complete closes the epoch of Start: it blocks until all operations are
// complete at their targets, and returns their first error (MPI_Win_complete).
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
			w.targets[i].look()
		}
	})
}

// finishEpoch closes an epoch with all targets.
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
		t.giveBack()
		if err := t.outcome(); first == nil {
			first = err
		}
	}
	if first == nil {
		first = w.err
	}
	return first
}

// outcome is the first error of the epoch with a target, which is over.
func (t *target) outcome() error {
	err := t.err
	if t.err != nil {
		t.err = nil
		t.look()
	}
	if err == nil {
		err = t.w.err
	}
	return err
}

// Flush blocks until all operations of this rank with the target are complete
// there (MPI_Win_flush). The error is the first of them since the epoch began;
// the end of the epoch has it again.
//
// Hot path: no allocation, and to a part that is mapped no lock.
func (w *Window) Flush(ctx context.Context, target int) error {
	return w.flush(ctx, target, false)
}

// FlushLocal blocks until the buffers of all operations with the target may be
// used: those of Get and of fetches are filled (MPI_Win_flush_local).
func (w *Window) FlushLocal(ctx context.Context, target int) error {
	return w.flush(ctx, target, true)
}

func (w *Window) flush(ctx context.Context, target int, local bool) error {
	if uint(target) < uint(len(w.targets)) && w.targets[target].calm.Load() {
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
	case t.near && t.down != nil: // of stores that nobody will see
		return t.down
	}
	return w.err
}

// FlushAll is Flush of all targets.
func (w *Window) FlushAll(ctx context.Context) error { return w.flushAll(ctx, false) }

// FlushLocalAll is FlushLocal of all targets.
func (w *Window) FlushLocalAll(ctx context.Context) error { return w.flushAll(ctx, true) }

func (w *Window) flushAll(ctx context.Context, local bool) error {
	if w.whole && w.allCalm() {
		return nil
	}
	w.port.Lock()
	defer w.port.Unlock()
	if err := w.drainAll(ctx, local); err != nil {
		return err
	}
	for i := range w.targets {
		if err := w.targets[i].err; err != nil {
			return err
		}
	}
	return w.err
}

// allCalm says whether nothing is under way with any target.
func (w *Window) allCalm() bool {
	for i := range w.targets {
		if !w.targets[i].calm.Load() {
			return false
		}
	}
	return true
}

// Sync moves the engine on and orders this rank's loads and stores of mapped
// memory, its own too, with what peers do to it (MPI_Win_sync). Who calls it does
// so again and again, so it lets others run.
func (w *Window) Sync() error {
	w.port.Lock()
	w.port.Poll()
	err := w.err
	w.port.Unlock()
	w.port.Yield()
	return err
}

// drain blocks until the operations with a target that have been started are
// complete, whatever came of them, or locally so.
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
			t.ask()
		}
		f.goal = min(f.goal, n)
		if err := w.port.Await(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *Window) drainAll(ctx context.Context, local bool) error {
	if !local {
		for i := range w.targets {
			if t := &w.targets[i]; t.pending > 0 {
				t.ask()
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
