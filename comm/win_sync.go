package comm

import (
	"github.com/weft-hpc/weft/internal/mpi"
)

// LockKind is the kind of the lock that [Win.Lock] gets: shared or exclusive.
type LockKind int

// The kinds of lock (MPI 4.1 §12.5.3).
const (
	// LockShared: other ranks may hold shared locks of the same part at the same time
	// (MPI_LOCK_SHARED).
	LockShared LockKind = iota + 1
	// LockExclusive: no other rank holds a lock of the same part (MPI_LOCK_EXCLUSIVE).
	LockExclusive
)

// Fence completes the operations of all ranks and opens an epoch in which every rank may start
// operations with all others (MPI_Win_fence, MPI 4.1 §12.5.1). When Fence returns, the results of
// all earlier operations are in place on all ranks. Fence is collective over the window's ranks and
// blocks. The first Fence opens the first epoch. Lock, LockAll, Start or Free may follow a Fence,
// and end its epoch.
//
// Errors: ErrRMASync if another kind of epoch is open; failures of operations since the last Fence;
// as for all collectives, see [Comm.Barrier]. Every error revokes the window.
func (w *Win[T]) Fence() error { return w.in().Fence() }

// Lock opens an epoch with one target (MPI_Win_lock, MPI 4.1 §12.5.3). It blocks until this rank
// has the lock of the target's part. Ranks get the lock in the order in which they ask for it, except
// that a rank that has a lock already gets a shared one before those that wait. The target calls
// nothing. Locks order epochs: the operations of an epoch see the results of an
// earlier epoch with the same part, if one of the two locks is exclusive. A rank may hold the locks
// of several targets, and of its own part.
//
// Lock succeeds if the target is in Finalize. If a rank calls Finalize while it holds a lock, Lock
// of the same part on another rank blocks until the context of that rank's window ends.
//
// Errors: ErrRank, ErrLockType; ErrRMASync if this rank has locked the target already, or if an
// epoch of LockAll or Start is open; ErrWin, ErrProcFailed, ErrRevoked, ErrClosed, or the context's
// error. After an error, this rank does not hold the lock.
func (w *Win[T]) Lock(target int, kind LockKind) error {
	return w.in().Lock(target, mpi.LockKind(kind))
}

// TryLock is [Win.Lock], except that it does not wait for ranks that have the lock or wait for it. It
// reports whether it has opened the epoch, which [Win.Unlock] closes. If not all ranks share memory,
// TryLock blocks until the target has answered, for which the target calls nothing. TryLock may return
// false for a short time after another rank's Unlock has returned. MPI has no such call.
//
// Errors: those of [Win.Lock]. The context's error means that the target has not answered; if it
// grants the lock later, this rank releases it.
func (w *Win[T]) TryLock(target int, kind LockKind) (bool, error) {
	return w.in().TryLock(target, mpi.LockKind(kind))
}

// Unlock closes the epoch of [Win.Lock] (MPI_Win_unlock, MPI 4.1 §12.5.3). It blocks until all
// operations with the target are complete on both ranks, and releases the lock.
//
// Errors: ErrRMASync if the target is not locked; the first failure since Lock, and then Unlock has
// released the lock; the context's error, and then the epoch is still open.
func (w *Win[T]) Unlock(target int) error { return w.in().Unlock(target) }

// LockAll opens an epoch with all targets, with a shared lock of each part (MPI_Win_lock_all, MPI
// 4.1 §12.5.3). It is not collective and does not block: the first operation with a target waits
// for the lock of its part. A program that uses only atomic operations calls LockAll once, and
// UnlockAll at its end. Errors: those of [Win.Lock].
func (w *Win[T]) LockAll() error { return w.in().LockAll() }

// UnlockAll closes the epoch of [Win.LockAll], as [Win.Unlock] does for one target
// (MPI_Win_unlock_all). Errors: those of [Win.FlushAll].
func (w *Win[T]) UnlockAll() error { return w.in().UnlockAll() }

// Flush blocks until all operations of this rank with the target are complete on both ranks
// (MPI_Win_flush, MPI 4.1 §12.5.4). The epoch stays open.
//
// Errors: ErrRank; the first failure of an operation with the target in this epoch; ErrWin,
// ErrProcFailed, ErrRevoked, ErrClosed, or the context's error.
//
// Flush does not allocate.
func (w *Win[T]) Flush(target int) error { return w.in().Flush(target) }

// FlushLocal blocks until the program may reuse the buffers of all operations of this rank with the
// target (MPI_Win_flush_local, MPI 4.1 §12.5.4). The result buffers of Get and GetAccumulate then
// hold the elements, and the program may write to the other buffers. Errors: those of [Win.Flush].
//
// FlushLocal does not allocate.
func (w *Win[T]) FlushLocal(target int) error { return w.in().FlushLocal(target) }

// FlushAll is [Win.Flush] of all targets with which the epoch has had operations
// (MPI_Win_flush_all). In an epoch of [Win.LockAllWith] and NoCheck it may also report the failure of
// another target.
func (w *Win[T]) FlushAll() error { return w.in().FlushAll() }

// FlushLocalAll is [Win.FlushLocal] of all targets (MPI_Win_flush_local_all). Errors: those of [Win.FlushAll].
func (w *Win[T]) FlushLocalAll() error { return w.in().FlushLocalAll() }

// Sync orders this rank's loads and stores of its part with the operations of other ranks, and
// polls for messages once (MPI_Win_sync). A program that waits for an element to change calls Sync
// in its loop. Errors: ErrWin, ErrRevoked, ErrClosed.
func (w *Win[T]) Sync() error { return w.in().Sync() }

// Post exposes this rank's part to the ranks in origins, which call Start (MPI_Win_post, MPI 4.1
// §12.5.2). They see the values that this rank has stored in its part before Post. Post does not
// block. This rank must call Wait, or Test until it returns true, later. origins must not contain a
// rank twice.
//
// Errors: ErrRank, ErrArg; ErrRMASync if the epoch of an earlier Post is still open; ErrWin,
// ErrProcFailed, ErrRevoked, ErrClosed.
func (w *Win[T]) Post(origins []int) error { return w.in().Post(origins) }

// Start opens an epoch with the ranks in targets, each of which calls Post with this rank
// (MPI_Win_start, MPI 4.1 §12.5.2). It blocks until they have called Post. targets must not contain
// a rank twice.
//
// Errors: ErrRank, ErrArg; ErrRMASync if another epoch is open; ErrWin, ErrProcFailed, ErrRevoked,
// ErrClosed, or the context's error. If Start fails after it has begun to wait, it revokes the
// window.
func (w *Win[T]) Start(targets []int) error { return w.in().Start(targets) }

// Complete closes the epoch of [Win.Start] (MPI_Win_complete, MPI 4.1 §12.5.2). It blocks until all
// operations of this rank are complete on both sides.
//
// Errors: ErrRMASync if Start was not called; the first failure of an operation, and then the epoch
// is closed; the context's error, and then the epoch is still open.
func (w *Win[T]) Complete() error { return w.in().Complete() }

// Wait closes the epoch of [Win.Post] (MPI_Win_wait, MPI 4.1 §12.5.2). It blocks until every origin
// has called Complete. Then the results of the origins' operations are in place.
//
// Errors: ErrRMASync if Post was not called; ErrWin, ErrProcFailed, ErrRevoked, ErrClosed; the
// context's error, and then Wait may be called again.
func (w *Win[T]) Wait() error { return w.in().Wait() }

// Test is [Win.Wait], except that it does not block (MPI_Win_test). It reports whether it has
// closed the epoch.
func (w *Win[T]) Test() (bool, error) { return w.in().Test() }
