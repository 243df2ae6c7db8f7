package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// LockKind is the type behind comm.LockKind: whether several ranks may hold the lock of a part at
// the same time.
type LockKind int

// The kinds of lock (MPI 4.1 §12.5.3).
const (
	// Other ranks may hold shared locks of the same part at the same time (MPI_LOCK_SHARED).
	LockShared LockKind = iota + 1
	// No other rank holds a lock of the same part (MPI_LOCK_EXCLUSIVE).
	LockExclusive
)

// Fence implements comm.Win.Fence, which documents the call.
func (x *Win) Fence() error {
	err := x.live()
	if err != nil {
		return x.fail("Fence", noRank, err)
	}
	return x.fence("Fence", calls.KindFence, false)
}

// fence closes this rank's fence epoch and blocks until all ranks have closed theirs. last says
// that the call is Free, which also gives up the window's memory and arena. name and sign are the
// name and the kind of the call.
func (x *Win) fence(name string, sign coll.Kind, last bool) error {
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
		x.c.s.recycleArena()
	}
	return err
}

// Lock implements comm.Win.Lock, which documents the call.
func (x *Win) Lock(target int, kind LockKind) error {
	err := x.checkTarget(target)
	if err == nil && kind != LockShared && kind != LockExclusive {
		err = fmt.Errorf("%w: %d", ErrLockType, kind)
	}
	if err == nil && target != ProcNull {
		err = x.win.Lock(x.c.ctx, target, kind == LockExclusive)
	}
	return x.fail("Lock", target, err)
}

// Unlock implements comm.Win.Unlock, which documents the call.
func (x *Win) Unlock(target int) error {
	err := x.checkTarget(target)
	if err == nil && target != ProcNull {
		err = x.win.Unlock(x.c.ctx, target)
	}
	return x.fail("Unlock", target, err)
}

// LockAll implements comm.Win.LockAll, which documents the call.
func (x *Win) LockAll() error {
	return x.checked("LockAll", func() error { return x.win.LockAll(x.c.ctx) })
}

// UnlockAll implements comm.Win.UnlockAll, which documents the call.
func (x *Win) UnlockAll() error {
	return x.checked("UnlockAll", func() error { return x.win.UnlockAll(x.c.ctx) })
}

// Flush implements comm.Win.Flush, which documents the call.
//
// Hot path: no allocation.
func (x *Win) Flush(target int) error {
	err := x.checkTarget(target)
	if err == nil && target != ProcNull {
		err = x.win.Flush(x.c.ctx, target)
	}
	if err != nil {
		return x.fail("Flush", target, err)
	}
	return nil
}

// FlushLocal implements comm.Win.FlushLocal, which documents the call.
//
// Hot path: no allocation.
func (x *Win) FlushLocal(target int) error {
	err := x.checkTarget(target)
	if err == nil && target != ProcNull {
		err = x.win.FlushLocal(x.c.ctx, target)
	}
	return x.fail("FlushLocal", target, err)
}

// FlushAll implements comm.Win.FlushAll, which documents the call.
func (x *Win) FlushAll() error {
	return x.checked("FlushAll", func() error { return x.win.FlushAll(x.c.ctx) })
}

// FlushLocalAll implements comm.Win.FlushLocalAll, which documents the call.
func (x *Win) FlushLocalAll() error {
	return x.checked("FlushLocalAll", func() error { return x.win.FlushLocalAll(x.c.ctx) })
}

// Sync implements comm.Win.Sync, which documents the call.
func (x *Win) Sync() error {
	return x.checked("Sync", func() error { return x.win.Sync() })
}

// checkTarget checks that the window can be used, and that it has the rank target, which may be
// ProcNull.
func (x *Win) checkTarget(target int) error {
	_, err := x.checkElements(0, target, 0)
	return err
}

// checked runs f, which does the work of the call op, if the window can be used, and returns the
// error of the call. It serves calls without a target.
func (x *Win) checked(op string, f func() error) error {
	err := x.live()
	if err == nil {
		err = f()
	}
	return x.fail(op, noRank, err)
}
