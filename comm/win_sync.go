package comm

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/coll"
)

// LockKind says with whom a lock is shared.
type LockKind int

// The kinds of lock (MPI 4.1 §12.5.3).
const (
	LockShared    LockKind = iota + 1 // with others that lock it so (MPI_LOCK_SHARED)
	LockExclusive                     // with nobody (MPI_LOCK_EXCLUSIVE)
)

// Fence ends the operations of all ranks and opens an epoch in which every rank
// may start operations with all others (MPI_Win_fence, MPI 4.1 §12.5.1). When it
// returns, what was put before it is in place on all ranks and what was got is
// there. It is collective over the window's ranks and blocks. The first Fence
// opens the first epoch; after the last, nothing need be said: Lock, LockAll,
// Start and Free may follow.
//
// Errors: ErrRMASync within another epoch; what has failed since the last Fence;
// as all collectives (see Barrier). Any error revokes the window.
func (w *Win[T]) Fence() error {
	x, err := w.live()
	if err != nil {
		return w.fail("Fence", noRank, err)
	}
	return x.together("Fence", kindFence, false)
}

// together closes this rank's fence epoch and waits for all ranks to do so.
func (x *window) together(name string, sign coll.Kind, last bool) error {
	l, err := barrier(x.c, name, sign)
	if err != nil {
		return err
	}
	if x.pscw.open() {
		return l.end(fmt.Errorf("%w: Wait has not been called since Post", ErrRMASync))
	}
	if err := x.win.Fence(l.ctx, last); err != nil {
		return l.end(err)
	}
	if last {
		x.win.Leave()
	}
	err = l.run()
	if err == nil && last {
		x.c.s.giveBack()
	}
	return err
}

// Lock opens an epoch with one target: it blocks until this rank has the lock of
// the target's part, which is given in the order in which ranks ask (MPI_Win_lock,
// MPI 4.1 §12.5.3). The target does nothing for it. Locks order epochs: what was
// done in one is to be seen by the next that has an exclusive lock, or follows
// one. A rank may have locks of several targets, and of its own part. Lock succeeds if the
// target is in Finalize. If a rank calls Finalize while it holds a lock, Lock of the same
// part on another rank blocks until the context of that rank's window ends.
//
// Errors: ErrRank, ErrLockType; ErrRMASync where the target is locked already or
// LockAll's or Start's epoch is open; ErrWin, ErrProcFailed, ErrRevoked,
// ErrClosed, the context's, and then the lock is not held.
func (w *Win[T]) Lock(target int, kind LockKind) error {
	x, err := w.peer(target)
	if err == nil && kind != LockShared && kind != LockExclusive {
		err = fmt.Errorf("%w: %d", ErrLockType, kind)
	}
	if err == nil && target != ProcNull {
		err = x.win.Lock(x.c.ctx, target, kind == LockExclusive)
	}
	return w.fail("Lock", target, err)
}

// Unlock closes the epoch of Lock: it blocks until all operations with the
// target are complete there and here, and gives the lock back (MPI_Win_unlock).
// Errors: ErrRMASync where the target is not locked; what has failed since Lock,
// and then the lock is given back all the same; where a context ends, the epoch
// is still open.
func (w *Win[T]) Unlock(target int) error {
	x, err := w.peer(target)
	if err == nil && target != ProcNull {
		err = x.win.Unlock(x.c.ctx, target)
	}
	return w.fail("Unlock", target, err)
}

// LockAll opens an epoch with all targets, with a shared lock of each
// (MPI_Win_lock_all, MPI 4.1 §12.5.3). It is not collective: each rank calls it
// or not. It does not block; the first operation with a target waits for its
// lock. Programs that keep to atomic operations call it once, and UnlockAll at
// their end. Errors: those of Lock.
func (w *Win[T]) LockAll() error {
	return w.all("LockAll", func(x *window) error { return x.win.LockAll(x.c.ctx) })
}

// UnlockAll closes the epoch of LockAll, as Unlock does with one target
// (MPI_Win_unlock_all).
func (w *Win[T]) UnlockAll() error {
	return w.all("UnlockAll", func(x *window) error { return x.win.UnlockAll(x.c.ctx) })
}

// Flush blocks until all operations of this rank with the target are complete,
// there and here (MPI_Win_flush, MPI 4.1 §12.5.4). The epoch stays open. Errors:
// ErrRank; the first of what has failed with the target in this epoch; ErrWin,
// ErrProcFailed, ErrRevoked, ErrClosed, the context's.
//
// Hot path: no allocation.
func (w *Win[T]) Flush(target int) error {
	x, err := w.peer(target)
	if err == nil && target != ProcNull {
		err = x.win.Flush(x.c.ctx, target)
	}
	if err != nil {
		return w.fail("Flush", target, err)
	}
	return nil
}

// FlushLocal blocks until the buffers of all operations of this rank with the
// target are the caller's again: those of Get and GetAccumulate have the
// elements, those of Put may be written to (MPI_Win_flush_local). Errors: those
// of Flush.
//
// Hot path: no allocation.
func (w *Win[T]) FlushLocal(target int) error {
	x, err := w.peer(target)
	if err == nil && target != ProcNull {
		err = x.win.FlushLocal(x.c.ctx, target)
	}
	return w.fail("FlushLocal", target, err)
}

// FlushAll is Flush of all targets (MPI_Win_flush_all).
func (w *Win[T]) FlushAll() error {
	return w.all("FlushAll", func(x *window) error { return x.win.FlushAll(x.c.ctx) })
}

// FlushLocalAll is FlushLocal of all targets (MPI_Win_flush_local_all).
func (w *Win[T]) FlushLocalAll() error {
	return w.all("FlushLocalAll", func(x *window) error { return x.win.FlushLocalAll(x.c.ctx) })
}

// Sync orders this rank's reads and writes of Local with what others do to it,
// and moves messages on once: for programs that wait for an element to change
// (MPI_Win_sync). Errors: ErrWin, ErrRevoked, ErrClosed.
func (w *Win[T]) Sync() error {
	return w.all("Sync", func(x *window) error { return x.win.Sync() })
}

// peer checks a call that is about a target.
func (w *Win[T]) peer(target int) (*window, error) {
	x, _, err := w.reach(0, target, 0)
	return x, err
}

// all does a call that is about all targets, or none.
func (w *Win[T]) all(op string, f func(x *window) error) error {
	x, err := w.live()
	if err == nil {
		err = f(x)
	}
	return w.fail(op, noRank, err)
}
