package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Win is a window: memory of every rank of a communicator that all of them can read and write
// without the owner's participation (MPI_Win, MPI 4.1 §12). The part of each rank is a slice of T.
// Displacements count elements from 0.
//
// An operation needs an open epoch. A rank has one kind of epoch for its operations open at a time:
//
//	calls                  ranks that take part             typical use
//	Fence … Fence          all ranks                        bulk-synchronous programs
//	Post, Start … Wait     the ranks that the calls name    halo exchanges
//	Lock … Unlock          this rank; the target does not   queues, tables, counters
//	LockAll … UnlockAll    this rank; the targets do not    queues, tables, counters
//
// An operation passes through these states; the labels are the calls that end a state:
//
//	Put, Get, Accumulate ─► in progress ─► FlushLocal ─► Flush, Unlock, Fence
//	                                       buffers are   complete at
//	                                       reusable      the target
//
// The buffers of Put, Get and Accumulate belong to the window until one of these calls, or
// Complete, has returned. FetchOp and CompareSwap block and return the value that they fetched. The
// forms whose names begin with R, such as [Win.RPut], return a [Request].
//
// The owner reads and writes its part as memory, see [Win.Local]. It sees the values that other
// ranks have put there after Fence or Wait, while it holds the lock of its own part, or after a
// message of another rank that was sent after that rank's Flush. A plain read of an element that
// other ranks change at the same time is a data race. FetchOp with [NoOp] reads an element at any
// time, also of the rank's own part. [Win.Shared] returns the parts of the other ranks of the host
// as memory.
//
// Any number of goroutines may call the methods at the same time. An epoch that one goroutine of a
// rank has opened is open for all of them. All ranks must call the collective methods, Fence and
// Free, in the same order.
//
// A window has a message space of its own. If Fence or Free fails, it revokes the window, not the
// communicator that the window was made from. On a nil or freed window, the methods that return an
// error return ErrWin.
type Win[T any] struct {
	x     *mpi.Win
	local []T
}

func (w *Win[T]) in() *mpi.Win {
	if w == nil {
		return nil
	}
	return w.x
}

// NewWin makes a window in which this rank has n elements, set to zero (MPI_Win_allocate, MPI 4.1
// §12.2.2). n may differ between ranks and may be 0. T is any type without pointers, and the same
// on all ranks. NewWin is collective over c and blocks. Free gives the memory back: the program
// must not use slices of it, such as those of Local and Shared, after Free or Finalize.
//
// If a transport of the job has shared memory, ranks of one host map each other's parts; see
// [Win.Shared]. Put and Get are then a copy by the caller, which is complete when the call returns.
// If all ranks of the window share memory, accumulates are atomic instructions for elements of 4
// and 8 bytes and use a short lock in memory for others, and a free lock is acquired without a
// message.
//
// While a window with other ranks is open, a rank that waits in a call polls instead of sleeping,
// if its transport needs that to serve the other ranks and there is a core for each rank.
//
// The hints are the same on all ranks.
//
// Errors: ErrCount if n is negative, or if this host has less memory; ErrType; ErrMismatch on all
// ranks if their types or hints differ, without revoking c; as for all collectives, see
// [Comm.Barrier].
func NewWin[T any](c *Comm, n int, hints ...WinHint) (*Win[T], error) {
	x, err := c.in().NewWin(elem.Of[T](), n, winOptions(hints))
	return allocated[T](x, n, err)
}

// allocated returns the window x, whose memory package mpi has allocated: n elements on this rank.
func allocated[T any](x *mpi.Win, n int, err error) (*Win[T], error) {
	if err != nil {
		return nil, err
	}
	if n == 0 || elem.SizeOf[T]() == 0 {
		return &Win[T]{x, make([]T, n)}, nil
	}
	return &Win[T]{x, elem.Slice[T](x.Local())}, nil
}

// WinOf is [NewWin] with buf as this rank's part, which the window uses until Free (MPI_Win_create,
// MPI 4.1 §12.2.1). Memory of [Alloc] needs no further registration, and ranks that share memory
// with this one map it. Ranks without a mapping use RMA or messages. The parts of windows must not
// overlap.
//
// If a window is revoked, or one of its ranks has failed, another rank that does not know of this
// yet may still write to this rank's part for a while after Free, if the part is memory of Alloc.
func WinOf[T any](c *Comm, buf []T, hints ...WinHint) (*Win[T], error) {
	x, err := c.in().WinOf(elem.View(buf), winOptions(hints))
	if err != nil {
		return nil, err
	}
	return &Win[T]{x, buf}, nil
}

// NewSharedWin makes a window whose ranks all share memory, with n elements on this rank, set to
// zero (MPI_Win_allocate_shared, MPI 4.1 §12.2.3). The parts of the ranks follow each other in
// memory, in the order of the ranks, without gaps. [Win.All] returns them as one slice, and
// [Win.Shared] returns each part. With the hint [NonContiguous] each part begins on a page of its
// own, in memory that its rank has allocated. NewSharedWin is collective over c, for example a
// communicator of [Comm.SplitNode]. It blocks. In all other respects the window is like one of
// [NewWin].
//
// Errors: ErrRMAShared on all ranks if the ranks do not all share memory; without [NonContiguous],
// ErrCount on all ranks if the parts together need more memory than the host has; those of NewWin. After
// either of the first two c stays usable.
func NewSharedWin[T any](c *Comm, n int, hints ...WinHint) (*Win[T], error) {
	x, err := c.in().NewSharedWin(elem.Of[T](), n, winOptions(hints))
	return allocated[T](x, n, err)
}

// All returns the parts of all ranks of a window of [NewSharedWin] as one slice, in the order of
// the ranks. For other windows, and with [NonContiguous], it returns nil. The rules for loads and
// stores are those of [Win.Shared]. The slice is valid until Free. All is local.
func (w *Win[T]) All() []T {
	mem := w.in().Joint()
	if mem == nil {
		return nil
	}
	return elem.Slice[T](mem)
}

// Local returns this rank's part, or nil for a nil window. It is local.
func (w *Win[T]) Local() []T {
	if w == nil {
		return nil
	}
	return w.local
}

// Len returns the number of elements of a rank's part, or 0 for a rank that the window does not
// have. It is local.
func (w *Win[T]) Len(rank int) int { return w.in().Len(rank) }

// Comm returns the communicator that the window was made from, or nil for a nil window. It is
// local.
func (w *Win[T]) Comm() *Comm { return (*Comm)(w.in().Comm()) }

// Group returns the group of the window's ranks (MPI_Win_get_group). It is local.
func (w *Win[T]) Group() Group { return Group(w.in().Group()) }

// SetName gives the window a name on this rank. The errors of its calls contain the name
// (MPI_Win_set_name). It is local.
func (w *Win[T]) SetName(name string) { w.in().SetName(name) }

// Name returns the name that SetName has set. If the program has not named the window, Name returns
// the default name, such as "win 0.1" (MPI_Win_get_name). It is local.
func (w *Win[T]) Name() string { return w.in().Name() }

// Flavor returns how the window was made (MPI_WIN_CREATE_FLAVOR), or 0 for a nil window. It is
// local.
func (w *Win[T]) Flavor() WinFlavor { return WinFlavor(w.in().Flavor()) }

// Free frees the window (MPI_Win_free, MPI 4.1 §12.2.5). It is collective. It blocks until all
// ranks have called it and all their operations are complete. If the window was revoked, or one of
// its ranks has failed, Free does not wait for the other ranks. Then the buffers of operations are
// reusable only if FlushAll has returned before Free, with or without an error, except for an error
// of a context.
//
// Errors: ErrRMASync if an epoch other than Fence's is open; the window is then revoked, so that no
// rank waits for its locks, and freed; as for all collectives, see [Comm.Barrier]. A second Free
// returns ErrWin.
func (w *Win[T]) Free() error { return w.in().Free() }

// Revoke ends the window on all its ranks (ULFM, MPIX_Win_revoke). Calls that are in progress and
// later calls fail with ErrRevoked, on this rank and on the others. Only Free remains possible.
// Revoke is local and does not block.
func (w *Win[T]) Revoke() error { return w.in().Revoke() }

// IsRevoked reports whether this process knows that the window was revoked, by [Win.Revoke] or
// because a collective call such as Fence has failed (ULFM, MPIX_Win_is_revoked). For a nil or
// freed window it returns false. IsRevoked is local and does not block.
func (w *Win[T]) IsRevoked() bool { return w.in().IsRevoked() }

// FailedRanks returns the ranks of the window that have failed or ended, as far as this process
// knows, in ascending order (ULFM, MPIX_Win_get_failed). For a nil or freed window it returns nil.
// FailedRanks is local.
func (w *Win[T]) FailedRanks() []int { return w.in().FailedRanks() }

// Shared returns a rank's part of the window as memory (MPI_Win_shared_query, MPI 4.1 §12.2.3). ok
// is true for this rank's own part, and for a part of NewWin or Alloc that this rank has mapped, as
// a rule those of the ranks of its host. Otherwise ok is false, and part is nil. Shared is local
// and needs no epoch.
//
//	w, _ := comm.NewWin[float64](c, n)     // as MPI_Win_allocate_shared
//	left, ok := w.Shared(c.Rank() - 1)     // if ok, left[0] = 1 stores to that rank's memory
//
// Each part of NewWin begins on a page of its own; those of [NewSharedWin] follow each other in
// memory. The slice is valid until Free.
//
// The program itself must order its loads and stores. As between goroutines of one process, a store
// of one rank and a load or store of the same element by another rank are a data race, unless one
// of these orders them:
//
//   - a Fence, a Barrier, or a message that the first rank sends after its stores and the second
//     rank receives before its loads;
//   - Unlock after the stores, and Lock of the same part before the loads, one of the two locks
//     exclusive;
//   - functions of sync/atomic that both ranks call on an element of 4 or 8 bytes. If all ranks of
//     the window share memory and their parts are aligned, FetchOp, CompareSwap and Accumulate of
//     such elements have the same effect, and so have Put and Get of a single one. Otherwise do not
//     mix them with loads, stores or sync/atomic without a lock or a barrier, because the target
//     may apply them by ordinary stores.
//
// Loads and stores need no Flush. An operation of another rank is complete when that rank's Flush
// has returned. A rank that waits for an element to change must call [Win.Sync] between two reads
// of the element. Otherwise the rank does not progress its messages and does not notice failures.
func (w *Win[T]) Shared(rank int) (part []T, ok bool) {
	if w.in().Own(rank) {
		return w.local, true
	}
	mem, ok := w.in().Shared(rank)
	if !ok {
		return nil, false
	}
	if elem.SizeOf[T]() == 0 {
		return make([]T, w.Len(rank)), true
	}
	return elem.Slice[T](mem), true
}
