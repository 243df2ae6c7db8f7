package comm

import (
	"github.com/weft-hpc/weft/internal/mpi"
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
func (w *Win[T]) Fence() error { return w.in().Fence() }

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
	return w.in().Lock(target, mpi.LockKind(kind))
}

// Unlock closes the epoch of Lock: it blocks until all operations with the
// target are complete there and here, and gives the lock back (MPI_Win_unlock).
// Errors: ErrRMASync where the target is not locked; what has failed since Lock,
// and then the lock is given back all the same; where a context ends, the epoch
// is still open.
func (w *Win[T]) Unlock(target int) error { return w.in().Unlock(target) }

// LockAll opens an epoch with all targets, with a shared lock of each
// (MPI_Win_lock_all, MPI 4.1 §12.5.3). It is not collective: each rank calls it
// or not. It does not block; the first operation with a target waits for its
// lock. Programs that keep to atomic operations call it once, and UnlockAll at
// their end. Errors: those of Lock.
func (w *Win[T]) LockAll() error { return w.in().LockAll() }

// UnlockAll closes the epoch of LockAll, as Unlock does with one target
// (MPI_Win_unlock_all).
func (w *Win[T]) UnlockAll() error { return w.in().UnlockAll() }

// Flush blocks until all operations of this rank with the target are complete,
// there and here (MPI_Win_flush, MPI 4.1 §12.5.4). The epoch stays open. Errors:
// ErrRank; the first of what has failed with the target in this epoch; ErrWin,
// ErrProcFailed, ErrRevoked, ErrClosed, the context's.
//
// Hot path: no allocation.
func (w *Win[T]) Flush(target int) error { return w.in().Flush(target) }

// FlushLocal blocks until the buffers of all operations of this rank with the
// target are the caller's again: those of Get and GetAccumulate have the
// elements, those of Put may be written to (MPI_Win_flush_local). Errors: those
// of Flush.
//
// Hot path: no allocation.
func (w *Win[T]) FlushLocal(target int) error { return w.in().FlushLocal(target) }

// FlushAll is Flush of all targets (MPI_Win_flush_all).
func (w *Win[T]) FlushAll() error { return w.in().FlushAll() }

// FlushLocalAll is FlushLocal of all targets (MPI_Win_flush_local_all).
func (w *Win[T]) FlushLocalAll() error { return w.in().FlushLocalAll() }

// Sync orders this rank's reads and writes of Local with what others do to it,
// and moves messages on once: for programs that wait for an element to change
// (MPI_Win_sync). Errors: ErrWin, ErrRevoked, ErrClosed.
func (w *Win[T]) Sync() error { return w.in().Sync() }

// Post opens this rank's part to some ranks, which begin with Start
// (MPI_Win_post, MPI 4.1 §12.5.2). What this rank has written there before, they
// see. It does not block; Wait must follow. origins has no rank twice.
//
// Errors: ErrRank, ErrArg; ErrRMASync where Wait has not followed the last Post;
// ErrWin, ErrProcFailed, ErrRevoked, ErrClosed.
func (w *Win[T]) Post(origins []int) error { return w.in().Post(origins) }

// Start opens an epoch with the targets, which have called Post for this rank,
// or will: it blocks until they have (MPI_Win_start, MPI 4.1 §12.5.2). targets
// has no rank twice.
//
// Errors: ErrRank, ErrArg; ErrRMASync where another epoch is open; ErrWin,
// ErrProcFailed, ErrRevoked, ErrClosed, the context's. An error that comes after
// it has begun to wait revokes the window.
func (w *Win[T]) Start(targets []int) error { return w.in().Start(targets) }

// Complete closes the epoch of Start: it blocks until all operations are
// complete, at their targets and here (MPI_Win_complete, MPI 4.1 §12.5.2).
// Errors: ErrRMASync without Start; what has failed since, and then the epoch is
// closed all the same; where a context ends, it is still open.
func (w *Win[T]) Complete() error { return w.in().Complete() }

// Wait closes the epoch of Post: it blocks until every origin has called
// Complete, and what they have put is in place (MPI_Win_wait, MPI 4.1 §12.5.2).
// Errors: ErrRMASync without Post; ErrWin, ErrProcFailed, ErrRevoked, ErrClosed,
// the context's, and then it may be called again.
func (w *Win[T]) Wait() error { return w.in().Wait() }

// Test is Wait that does not block; it says whether the epoch is closed
// (MPI_Win_test).
func (w *Win[T]) Test() (bool, error) { return w.in().Test() }
