package mpi

import (
	"fmt"

	"github.com/weft-hpc/weft/internal/coll"
)

// LockKind is comm.LockKind.
type LockKind int

// The kinds of lock (MPI 4.1 §12.5.3).
const (
	LockShared    LockKind = iota + 1 // other ranks may hold a shared lock at the same time (MPI_LOCK_SHARED)
	LockExclusive                     // no other rank holds a lock (MPI_LOCK_EXCLUSIVE)
)

// Fence is comm.Win.Fence.
func (x *Win) Fence() error {
	err := x.live()
	if err != nil {
		return x.fail("Fence", noRank, err)
	}
	return x.fence("Fence", kindFence, false)
}

// fence closes this rank's fence epoch and waits until all ranks have closed theirs. last reports that
// the call is Free.
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

// Lock is comm.Win.Lock.
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

// Unlock is comm.Win.Unlock.
func (x *Win) Unlock(target int) error {
	err := x.checkTarget(target)
	if err == nil && target != ProcNull {
		err = x.win.Unlock(x.c.ctx, target)
	}
	return x.fail("Unlock", target, err)
}

// LockAll is comm.Win.LockAll.
func (x *Win) LockAll() error {
	return x.checked("LockAll", func() error { return x.win.LockAll(x.c.ctx) })
}

// UnlockAll is comm.Win.UnlockAll.
func (x *Win) UnlockAll() error {
	return x.checked("UnlockAll", func() error { return x.win.UnlockAll(x.c.ctx) })
}

// Flush is comm.Win.Flush.
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

// FlushLocal is comm.Win.FlushLocal.
//
// Hot path: no allocation.
func (x *Win) FlushLocal(target int) error {
	err := x.checkTarget(target)
	if err == nil && target != ProcNull {
		err = x.win.FlushLocal(x.c.ctx, target)
	}
	return x.fail("FlushLocal", target, err)
}

// FlushAll is comm.Win.FlushAll.
func (x *Win) FlushAll() error {
	return x.checked("FlushAll", func() error { return x.win.FlushAll(x.c.ctx) })
}

// FlushLocalAll is comm.Win.FlushLocalAll.
func (x *Win) FlushLocalAll() error {
	return x.checked("FlushLocalAll", func() error { return x.win.FlushLocalAll(x.c.ctx) })
}

// Sync is comm.Win.Sync.
func (x *Win) Sync() error {
	return x.checked("Sync", func() error { return x.win.Sync() })
}

// checkTarget checks the target of a call that names one.
func (x *Win) checkTarget(target int) error {
	_, err := x.checkElements(0, target, 0)
	return err
}

// checked runs f, the body of the call op, if the window can be used. It is for calls without a target.
func (x *Win) checked(op string, f func() error) error {
	err := x.live()
	if err == nil {
		err = f()
	}
	return x.fail(op, noRank, err)
}
