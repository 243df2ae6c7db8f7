package comm

import "github.com/weft-hpc/weft/internal/mpi"

// WinFlavor says how a window was made (MPI 4.1 §12.2.6).
type WinFlavor int

// The flavours.
const (
	FlavorAllocated = WinFlavor(mpi.FlavorAllocated) // NewWin (MPI_WIN_FLAVOR_ALLOCATE)
	FlavorCreated   = WinFlavor(mpi.FlavorCreated)   // WinOf (MPI_WIN_FLAVOR_CREATE)
	FlavorDynamic   = WinFlavor(mpi.FlavorDynamic)   // NewDynamicWin (MPI_WIN_FLAVOR_DYNAMIC)
	FlavorShared    = WinFlavor(mpi.FlavorShared)    // NewSharedWin (MPI_WIN_FLAVOR_SHARED)
)

// WinHint is a hint about the use of a window: an argument of the functions that make windows (the
// info keys of MPI 4.1 §12.2.1). All ranks pass the same hints.
type WinHint func(*mpi.WinOptions)

// NoLocks says that the program calls neither [Win.Lock] nor [Win.LockAll] on the window
// (no_locks). These calls then return ErrRMASync.
func NoLocks() WinHint { return func(o *mpi.WinOptions) { o.NoLocks = true } }

// NoOrder says that the accumulates of one rank to one element may happen in any order
// (accumulate_ordering=none). Then the atomics of a fabric need not wait for each other.
func NoOrder() WinHint { return func(o *mpi.WinOptions) { o.Unordered = true } }

// OnlyOps says which operations the accumulates of the window use besides [Replace] and [NoOp]
// (accumulate_ops, but with the names of the operations). An accumulate with any other operation
// returns ErrOp. Accumulates are faster if the fabric or the processor has an atomic operation for
// each operation of the window, so a window with fewer operations may be faster:
//
//	w, err := comm.NewWin[float64](c, n, comm.OnlyOps(comm.Sum[float64]))
//
// [Win.CompareSwap] stays possible. OnlyOps without arguments permits only Replace and NoOp.
func OnlyOps[T any](ops ...OpFor[T]) WinHint {
	return func(o *mpi.WinOptions) {
		o.Ops = make([]*mpi.Op, len(ops))
		for i, op := range ops {
			o.Ops[i] = opOf(op)
		}
	}
}

// NonContiguous says that the parts of a window of [NewSharedWin] need not follow each other in
// memory (alloc_shared_noncontig). Each rank then allocates its own part, so the memory can be near
// the core of the rank.
func NonContiguous() WinHint { return func(o *mpi.WinOptions) { o.Separate = true } }

func winOptions(hints []WinHint) (o mpi.WinOptions) {
	for _, h := range hints {
		if h != nil {
			h(&o)
		}
	}
	return o
}

// Assert is a set of assertions about a synchronization (MPI 4.1 §12.5.5), combined by the operator
// |. A call with assertions may be faster. If an assertion is wrong, the behaviour is undefined,
// unless the comment of the call names an error. A call returns ErrArg for an assertion that is not
// in its row of the table below.
type Assert uint

// The assertions. The table lists the assertions that each call accepts, and what they change:
//
//	FenceWith     NoStore, NoPut: nothing. NoPrecede: checked. NoSucceed: no epoch begins
//	PostWith      NoCheck, NoStore, NoPut: nothing
//	StartWith     NoCheck: does not wait for Post
//	LockWith      NoCheck: requests no lock
//	LockAllWith   NoCheck: operations request no locks
const (
	// NoCheck: no lock of another rank conflicts with the one of this call, or all targets of Start
	// have called Post already (MPI_MODE_NOCHECK).
	NoCheck = Assert(mpi.NoCheck)
	// NoStore: this rank has not stored to its part since the last synchronization
	// (MPI_MODE_NOSTORE).
	NoStore = Assert(mpi.NoStore)
	// NoPut: no rank puts or accumulates to this rank's part before the next Fence or Wait
	// (MPI_MODE_NOPUT).
	NoPut = Assert(mpi.NoPut)
	// NoPrecede: no rank has started operations since the last Fence (MPI_MODE_NOPRECEDE).
	NoPrecede = Assert(mpi.NoPrecede)
	// NoSucceed: no rank starts operations between this Fence and the next one
	// (MPI_MODE_NOSUCCEED).
	NoSucceed = Assert(mpi.NoSucceed)
)

// FenceWith is [Win.Fence] with assertions. Either all ranks pass NoPrecede or none does, and the
// same holds for NoSucceed; otherwise FenceWith returns ErrMismatch. With NoPrecede it returns
// ErrRMASync if an operation of this rank is not complete. With NoSucceed it opens no epoch, so
// operations after it return ErrRMASync.
func (w *Win[T]) FenceWith(a Assert) error { return w.in().FenceWith(mpi.Assert(a)) }

// PostWith is [Win.Post] with assertions.
func (w *Win[T]) PostWith(origins []int, a Assert) error {
	return w.in().PostWith(origins, mpi.Assert(a))
}

// StartWith is [Win.Start] with assertions. With NoCheck it does not block: the program has made
// sure, for example by a barrier, that the targets have called Post. [Win.Complete] receives the
// messages of their Posts, so the targets need not pass NoCheck to PostWith.
func (w *Win[T]) StartWith(targets []int, a Assert) error {
	return w.in().StartWith(targets, mpi.Assert(a))
}

// LockWith is [Win.Lock] with assertions. With NoCheck it does not block, and sends no message: the
// program makes sure that until Unlock no other rank holds a lock of the part, or, for LockShared,
// no exclusive lock. If all ranks of the window share memory and another rank does hold such a
// lock, LockWith returns ErrRMASync.
func (w *Win[T]) LockWith(target int, kind LockKind, a Assert) error {
	return w.in().LockWith(target, mpi.LockKind(kind), mpi.Assert(a))
}

// LockAllWith is [Win.LockAll] with assertions. With NoCheck the operations of the epoch acquire no
// locks: the program makes sure that until UnlockAll no other rank holds an exclusive lock.
func (w *Win[T]) LockAllWith(a Assert) error { return w.in().LockAllWith(mpi.Assert(a)) }
