package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
)

// Put writes len(buf) elements into rank target's part of the window, from its
// element disp on (MPI_Put, MPI 4.1 §12.3.1). It does not wait for them to be
// there: buf belongs to the window, and must not be written to, until FlushLocal
// or a call that says more; the elements are at the target after Flush, Unlock,
// Complete or Fence. The target does nothing for it. ProcNull as target: nothing
// is written. It waits only for a lock (see LockAll), or where many operations
// with the target are under way.
//
// Elements that Puts of several ranks write at once, or that are read while they
// are written, are undefined, and nothing worse; Accumulate orders updates.
//
// Errors: ErrRank; ErrDisp for a negative disp; ErrRMARange for elements beyond
// the target's part, none of which is then written; ErrRMASync outside of an
// epoch with the target (see Win); ErrWin, ErrProcFailed, ErrRevoked, ErrClosed,
// the context's. What fails after the call has returned is told by the next
// Flush of the target and by the end of the epoch.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) Put(buf []T, target, disp int) error {
	return w.in().Put(elem.View(buf), target, disp)
}

// RPut is Put with a request: when that is complete, buf may be used again
// (MPI_Rput, MPI 4.1 §12.3.5). That the elements are at the target is told as
// for Put.
func (w *Win[T]) RPut(buf []T, target, disp int) Request {
	return Request(w.in().RPut(elem.View(buf), target, disp))
}

// Get reads len(buf) elements of rank target's part of the window, from its
// element disp on (MPI_Get, MPI 4.1 §12.3.2). It does not wait for them: buf
// belongs to the window until FlushLocal, Flush, Unlock, Complete or Fence, and
// then has the elements. ProcNull as target: buf is not touched. Errors: those
// of Put.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) Get(buf []T, target, disp int) error {
	return w.in().Get(elem.View(buf), target, disp)
}

// RGet is Get with a request: when that is complete, buf has the elements
// (MPI_Rget, MPI 4.1 §12.3.5).
func (w *Win[T]) RGet(buf []T, target, disp int) Request {
	return Request(w.in().RGet(elem.View(buf), target, disp))
}

// Accumulate combines len(buf) elements of rank target's part of the window,
// from its element disp on, with those of buf, each in one step with respect to
// all accumulates, fetches and CompareSwaps of the window (MPI_Accumulate, MPI
// 4.1 §12.3.4). Those of one rank to one element are done in the order of its
// program. op is Replace or any operation of this package that T permits, with
// MinLoc and MaxLoc over Loc, but not one of OpFunc.
//
// It does not wait for the elements to be changed: buf belongs to the window,
// and must not be written to, until FlushLocal, Flush, Unlock, Complete or
// Fence. Mixed with Put at the same elements they are undefined; use Replace.
// Where a fabric's atomics are used, Min and Max of a NaN are as it has them.
//
// Errors: those of Put; ErrOp.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) Accumulate(buf []T, target, disp int, op OpFor[T]) error {
	return w.in().Accumulate(elem.View(buf), target, disp, opOf(op))
}

// RAccumulate is Accumulate with a request: when that is complete, buf may be
// used again (MPI_Raccumulate, MPI 4.1 §12.3.5).
func (w *Win[T]) RAccumulate(buf []T, target, disp int, op OpFor[T]) Request {
	return Request(w.in().RAccumulate(elem.View(buf), target, disp, opOf(op)))
}

// GetAccumulate is Accumulate that also fetches what the elements were before
// into result, which is as long as buf and apart from it (MPI_Get_accumulate,
// MPI 4.1 §12.3.4). With NoOp it only reads, and buf may be nil. Both slices
// belong to the window until FlushLocal, Flush, Unlock, Complete or Fence, and
// then result is filled. Errors: those of Accumulate; ErrCount where lengths
// differ, ErrBuffer.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) GetAccumulate(buf, result []T, target, disp int, op OpFor[T]) error {
	return w.in().GetAccumulate(elem.View(buf), elem.View(result), target, disp, opOf(op))
}

// RGetAccumulate is GetAccumulate with a request: when that is complete, result
// is filled and buf may be used again (MPI_Rget_accumulate, MPI 4.1 §12.3.5).
func (w *Win[T]) RGetAccumulate(buf, result []T, target, disp int, op OpFor[T]) Request {
	return Request(w.in().RGetAccumulate(elem.View(buf), elem.View(result), target, disp, opOf(op)))
}

// FetchOp combines element disp of rank target's part with value in one step,
// and returns what it was before (MPI_Fetch_and_op, MPI 4.1 §12.3.4): with Sum a
// counter, with Replace a swap, with NoOp a read. It blocks until that is done.
// From ProcNull it returns zero. Errors: those of Accumulate.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) FetchOp(value T, target, disp int, op OpFor[T]) (T, error) {
	var old T
	if word, ok := w.in().FetchWord(elem.Word(value), target, disp, opOf(op)); ok {
		return elem.FromWord[T](word), nil
	}
	err := w.in().FetchOp(elem.Bytes(elem.One(&value)), elem.Bytes(elem.One(&old)), target, disp, opOf(op))
	return old, err
}

// RFetchOp is FetchOp that returns at once, so that many may be under way: value
// and result belong to the request until it is complete, and then result has
// what the element was.
func (w *Win[T]) RFetchOp(value, result *T, target, disp int, op OpFor[T]) Request {
	if value == nil || result == nil {
		return Request(w.in().NilPointer("RFetchOp", target))
	}
	return Request(w.in().RFetchOp(elem.View(elem.One(value)), elem.View(elem.One(result)), target, disp, opOf(op)))
}

// CompareSwap stores value in element disp of rank target's part if that equals
// compare, in one step, and returns what it was before: it was stored where that
// is compare (MPI_Compare_and_swap, MPI 4.1 §12.3.4). It blocks until that is
// done. T is an integer or a bool. From ProcNull it returns zero. Errors: those
// of Put; ErrType for other elements.
//
// Hot path: no allocation in steady state.
func (w *Win[T]) CompareSwap(compare, value T, target, disp int) (T, error) {
	var old T
	if word, ok := w.in().SwapWord(elem.Word(compare), elem.Word(value), target, disp); ok {
		return elem.FromWord[T](word), nil
	}
	err := w.in().CompareSwap(elem.Bytes(elem.One(&compare)), elem.Bytes(elem.One(&value)), elem.Bytes(elem.One(&old)), target, disp)
	return old, err
}

// RCompareSwap is CompareSwap that returns at once: result belongs to the
// request until it is complete, and then has what the element was.
func (w *Win[T]) RCompareSwap(compare, value T, result *T, target, disp int) Request {
	if result == nil {
		return Request(w.in().NilPointer("RCompareSwap", target))
	}
	return Request(w.in().RCompareSwap(elem.Bytes(elem.One(&compare)), elem.Bytes(elem.One(&value)), elem.Bytes(elem.One(result)), target, disp))
}
