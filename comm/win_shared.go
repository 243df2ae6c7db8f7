package comm

import "github.com/weft-hpc/weft/internal/elem"

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
	x, err := w.live()
	if err != nil || uint(rank) >= uint(len(x.lens)) {
		return nil, false
	}
	if rank == x.c.s.rank {
		return w.local, true
	}
	mem, ok := x.win.Mapped(rank)
	if !ok {
		return nil, false
	}
	if x.size == 0 {
		return make([]T, x.lens[rank]), true
	}
	return elem.Slice[T](mem), true
}
