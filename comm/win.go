package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Win is a window: memory of every rank of a communicator that all of them read
// and write, while its owner does something else (MPI_Win, MPI 4.1 §12). Every
// rank's part is a slice of T, counted in elements from 0.
//
// Operations start within an epoch, of which a rank has one kind at a time:
//
//	Fence … Fence          all ranks, in step          bulk-synchronous programs
//	Post, Start … Wait     some ranks, in step         halos of neighbours
//	Lock … Unlock          one target, nobody in step  queues, tables, counters
//	LockAll … UnlockAll    all targets, the same
//
//	Put, Get, Accumulate ─► under way ─► FlushLocal ─► Flush, Unlock, Fence
//	                                     buffers are   in place at
//	                                     the caller's  the target
//
// What Put, Get and Accumulate are given belongs to the window until one of
// these has returned. FetchOp and CompareSwap return what they fetched; the
// forms with R return a Request.
//
// The owner reads and writes its part as memory, by Local. What others have put
// there is to be seen after Fence or Wait, within a Lock of its own part, or
// once a message has told it that the other's Flush is over. To read an element
// while others change it is a data race; FetchOp with NoOp reads one at any
// time, also of one's own part. Between ranks of one host Shared gives the parts
// of the others as memory, too.
//
// All methods may run in any number of goroutines, and epochs are common to
// them; but the collective ones, Fence and Free, must start in the same order on
// all ranks.
//
// A window has a message space of its own. An error in a collective call
// revokes the window, not the communicator that it was made of. A nil window
// and one that was freed give ErrWin.
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

// NewWin makes a window in which this rank has n elements, zeroed
// (MPI_Win_allocate, MPI 4.1 §12.2.2). n may differ from rank to rank and be 0.
// T is any type without pointers, the same on all ranks. It is collective over
// c and blocks. Free gives the memory back: slices of it, those of Local and
// Shared too, must not be used after it, nor after Finalize.
//
// Ranks that share memory have each other's parts mapped; see Shared. Put and
// Get are then a copy by the caller, over when the call returns. Where all ranks
// of the window do, so are accumulates, by the processor's atomics for elements
// of 4 and 8 bytes and under a short lock in memory for others, and locks that
// nobody has are got without a message.
//
// While a window of other ranks is open, a rank that waits in a call polls
// instead of sleeping where its transport needs that to serve the others, unless
// ranks outnumber cores.
//
// Errors: ErrCount for a negative n, or more than this host has memory; ErrType;
// ErrMismatch on all ranks where their types differ, and then c goes on; as all
// collectives (see Barrier).
func NewWin[T any](c *Comm, n int) (*Win[T], error) {
	x, err := c.in().NewWin(elem.Of[T](), n)
	if err != nil {
		return nil, err
	}
	local := make([]T, 0)
	if elem.SizeOf[T]() == 0 || n == 0 {
		local = make([]T, n)
	} else {
		local = elem.Slice[T](x.Local())
	}
	return &Win[T]{x, local}, nil
}

// WinOf is NewWin of memory that is there: this rank's part is buf, which the
// window uses until it is freed (MPI_Win_create, MPI 4.1 §12.2.1). Memory of
// Alloc is not registered again, and mapped by ranks that share memory; other
// memory is reached as if there were none. Parts of windows must not overlap.
//
// Where a window is revoked or has lost a rank, one that has not heard of it may
// write to memory of Alloc for a while after Free.
func WinOf[T any](c *Comm, buf []T) (*Win[T], error) {
	x, err := c.in().WinOf(elem.View(buf))
	if err != nil {
		return nil, err
	}
	return &Win[T]{x, buf}, nil
}

// Local is this rank's part; nil for a nil window. It is local.
func (w *Win[T]) Local() []T {
	if w == nil {
		return nil
	}
	return w.local
}

// Len is how many elements a rank's part has; 0 for a rank that the window does
// not have. It is local.
func (w *Win[T]) Len(rank int) int { return w.in().Len(rank) }

// Comm is the communicator that the window was made of; nil for a nil window.
// It is local.
func (w *Win[T]) Comm() *Comm { return (*Comm)(w.in().Comm()) }

// Free gives the window up (MPI_Win_free, MPI 4.1 §12.2.5). It is collective
// and blocks until all operations of every rank are complete and all have
// called it. A window that was revoked, or that has lost a process, is given up
// at once; buffers that it still uses are the caller's again if FlushAll has
// returned before, whatever its error, but a context's.
//
// Errors: ErrRMASync where this rank has an epoch other than Fence's open: the
// window is revoked, so that nobody waits for its locks, and given up; as all
// collectives (see Barrier). A second Free is ErrWin.
func (w *Win[T]) Free() error { return w.in().Free() }

// Revoke ends the window on all its ranks: every call on it that is under way
// and every later one, here and elsewhere, fails with ErrRevoked. Only Free may
// still be called. It is local and does not block (ULFM, MPIX_Win_revoke).
func (w *Win[T]) Revoke() error { return w.in().Revoke() }

// Shared is a rank's part of the window as memory, where the rank shares memory
// with this one and the part is of NewWin or of Alloc; ok is false where it does
// not, and the slice nil (MPI_Win_shared_query, MPI 4.1 §12.2.3). This rank's own
// part it has always. It is local, and needs no epoch.
//
//	w, _ := comm.NewWin[float64](c, n)     // as MPI_Win_allocate_shared
//	left, ok := w.Shared(c.Rank() - 1)     // loads and stores from here on
//
// Each part begins at a page of its own; unlike MPI's they do not follow each
// other in memory. The slice is valid until Free. A store through it beyond the
// part's end is Go's panic, as with any slice.
//
// Loads and stores are the program's, and so is their order. As between the
// goroutines of one process, a store of one rank and a load or store of another
// to the same element are a data race unless something is between them:
//
//   - a Fence, a Barrier or a message that the one has sent after its stores and
//     the other has received before its loads;
//   - Unlock after the stores, and Lock of the same part before the loads, one of
//     them exclusive;
//   - functions of sync/atomic on an element of 4 or 8 bytes, by which both look
//     at it and which order what is around them. FetchOp, CompareSwap and
//     Accumulate of such elements do, too, and so do Put and Get of a single one.
//
// Flush is not needed for them, but Put, Get and Accumulate of others are in
// place as their Flush says. Who waits for an element to change calls Sync
// between two looks at it, or the rank makes no progress, and does not learn of
// failures.
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
