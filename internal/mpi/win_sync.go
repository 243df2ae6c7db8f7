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

// Assert is the type behind comm.Assert: a set of assertions about a synchronization.
type Assert uint

// The assertions (MPI 4.1 §12.5.5).
const (
	NoCheck Assert = 1 << iota
	NoStore
	NoPut
	NoPrecede
	NoSucceed
)

// only returns an error if a has other bits than those of allowed.
func (a Assert) only(allowed Assert) error {
	if a&^allowed != 0 {
		return fmt.Errorf("%w: the call does not permit the assertion %#x", ErrArg, uint(a&^allowed))
	}
	return nil
}

// Fence implements comm.Win.Fence, which documents the call.
func (x *Win) Fence() error {
	err := x.live()
	if err != nil {
		return x.fail("Fence", noRank, err)
	}
	return x.fence("Fence", calls.KindFence, false)
}

// FenceWith implements comm.Win.FenceWith, which documents the call.
func (x *Win) FenceWith(a Assert) error {
	err := x.live()
	if err == nil {
		err = a.only(NoStore | NoPut | NoPrecede | NoSucceed)
	}
	if err != nil {
		return x.fail("Fence", noRank, err)
	}
	sign := calls.KindFence // all ranks pass the same of these two assertions
	switch a & (NoPrecede | NoSucceed) {
	case NoPrecede:
		sign = calls.KindFenceFirst
	case NoSucceed:
		sign = calls.KindFenceLast
	case NoPrecede | NoSucceed:
		sign = calls.KindFenceAlone
	default:
	}
	return x.fence("Fence", sign, false)
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
	if (sign == calls.KindFenceFirst || sign == calls.KindFenceAlone) && x.win.Pending() {
		return l.end(fmt.Errorf("%w: operations precede, although the program asserts that none does", ErrRMASync))
	}
	if err := x.win.Fence(l.ctx, last || sign == calls.KindFenceLast || sign == calls.KindFenceAlone); err != nil {
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
func (x *Win) Lock(target int, kind LockKind) error { return x.LockWith(target, kind, 0) }

// LockWith implements comm.Win.LockWith, which documents the call.
func (x *Win) LockWith(target int, kind LockKind, a Assert) error {
	t := x.timing()
	err := x.checkTarget(target)
	if err == nil {
		err = a.only(NoCheck)
	}
	if err == nil && kind != LockShared && kind != LockExclusive {
		err = fmt.Errorf("%w: %d", ErrLockType, kind)
	}
	switch {
	case err != nil || target == ProcNull:
	case a == NoCheck:
		err = x.win.LockUnchecked(x.c.ctx, target, kind == LockExclusive)
	default:
		err = x.win.Lock(x.c.ctx, target, kind == LockExclusive)
	}
	return x.ended(&t, opLock, target, err)
}

// TryLock implements comm.Win.TryLock, which documents the call.
func (x *Win) TryLock(target int, kind LockKind) (bool, error) {
	t := x.timing()
	err := x.checkTarget(target)
	if err == nil && kind != LockShared && kind != LockExclusive {
		err = fmt.Errorf("%w: %d", ErrLockType, kind)
	}
	got := err == nil
	if got && target != ProcNull {
		got, err = x.win.TryLock(x.c.ctx, target, kind == LockExclusive)
	}
	return got, x.ended(&t, opTryLock, target, err)
}

// Unlock implements comm.Win.Unlock, which documents the call.
func (x *Win) Unlock(target int) error {
	t := x.timing()
	err := x.checkTarget(target)
	if err == nil && target != ProcNull {
		err = x.win.Unlock(x.c.ctx, target)
	}
	return x.ended(&t, opUnlock, target, err)
}

// LockAll implements comm.Win.LockAll, which documents the call.
func (x *Win) LockAll() error {
	return x.checked(opLockAll, func() error { return x.win.LockAll(x.c.ctx) })
}

// LockAllWith implements comm.Win.LockAllWith, which documents the call.
func (x *Win) LockAllWith(a Assert) error {
	return x.checked(opLockAll, func() error {
		switch err := a.only(NoCheck); {
		case err != nil:
			return err
		case a == NoCheck:
			return x.win.LockAllUnchecked()
		}
		return x.win.LockAll(x.c.ctx)
	})
}

// UnlockAll implements comm.Win.UnlockAll, which documents the call.
func (x *Win) UnlockAll() error {
	return x.checked(opUnlockAll, func() error { return x.win.UnlockAll(x.c.ctx) })
}

// Flush implements comm.Win.Flush, which documents the call.
//
// Hot path: no allocation.
func (x *Win) Flush(target int) error {
	t := x.timing()
	err := x.checkTarget(target)
	if err == nil && target != ProcNull {
		err = x.win.Flush(x.c.ctx, target)
	}
	if err != nil {
		return x.fail("Flush", target, err)
	}
	t.end(opFlush, target, noRank, 0)
	return nil
}

// FlushLocal implements comm.Win.FlushLocal, which documents the call.
//
// Hot path: no allocation.
func (x *Win) FlushLocal(target int) error {
	t := x.timing()
	err := x.checkTarget(target)
	if err == nil && target != ProcNull {
		err = x.win.FlushLocal(x.c.ctx, target)
	}
	return x.ended(&t, opFlushLocal, target, err)
}

// FlushAll implements comm.Win.FlushAll, which documents the call.
func (x *Win) FlushAll() error {
	return x.checked(opFlushAll, func() error { return x.win.FlushAll(x.c.ctx) })
}

// FlushLocalAll implements comm.Win.FlushLocalAll, which documents the call.
func (x *Win) FlushLocalAll() error {
	return x.checked(opFlushLocalAll, func() error { return x.win.FlushLocalAll(x.c.ctx) })
}

// Sync implements comm.Win.Sync, which documents the call.
func (x *Win) Sync() error {
	return x.checked(opSync, func() error { return x.win.Sync() })
}

// checkTarget checks that the window can be used, and that it has the rank target, which may be
// ProcNull.
func (x *Win) checkTarget(target int) error {
	_, err := x.checkElements(0, target, 0)
	return err
}

// checked runs f, which does the work of the call op, if the window can be used, and returns the
// error of the call. It serves calls without a target.
func (x *Win) checked(op callName, f func() error) error {
	t := x.timing()
	err := x.live()
	if err == nil {
		err = f()
	}
	return x.ended(&t, op, noRank, err)
}

// ended returns the error of the call op, which has returned err. If err is nil, it records the call.
func (x *Win) ended(t *timing, op callName, target int, err error) error {
	if err != nil {
		return x.fail(op.String(), target, err)
	}
	t.end(op, target, noRank, 0)
	return nil
}
