package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
)

// Put writes len(buf) elements to rank target's part of the window, from its element disp on
// (MPI_Put, MPI 4.1 §12.3.1). Put does not wait until the elements are at the target: they are
// there after Flush, Unlock, Complete or Fence. buf belongs to the window until then, or until
// FlushLocal returns, and the program must not write to buf. The target calls nothing. If target is
// ProcNull, Put writes nothing. Put blocks only for a lock (see [Win.LockAll]), or if many
// operations with the target are in progress.
//
// If Puts of several ranks write an element at the same time, its value is undefined, and so is the
// result of a read of an element while a Put writes it. Updates by [Win.Accumulate] are atomic.
//
// Errors: ErrRank; ErrDisp if disp is negative; ErrRMARange if the elements are not within the
// target's part, and then Put writes none of them; ErrRMASync if no epoch with the target is open
// (see [Win]); ErrWin, ErrProcFailed, ErrRevoked, ErrClosed, or the context's error. The next Flush
// of the target, and the end of the epoch, report a failure that happens after Put has returned.
//
// Put does not allocate in steady state.
func (w *Win[T]) Put(buf []T, target, disp int) error {
	return w.in().Put(elem.View(buf), target, disp)
}

// RPut is [Win.Put] with a request (MPI_Rput, MPI 4.1 §12.3.5). When the request is complete, the
// program may reuse buf. The elements are at the target only after a Flush or the end of the epoch,
// as for Put.
func (w *Win[T]) RPut(buf []T, target, disp int) Request {
	return Request(w.in().RPut(elem.View(buf), target, disp))
}

// Get reads len(buf) elements of rank target's part of the window, from its element disp on
// (MPI_Get, MPI 4.1 §12.3.2). Get does not wait for the elements: they are in buf after FlushLocal,
// Flush, Unlock, Complete or Fence, and buf belongs to the window until then. If target is
// ProcNull, Get does not change buf. Errors: those of [Win.Put].
//
// Get does not allocate in steady state.
func (w *Win[T]) Get(buf []T, target, disp int) error {
	return w.in().Get(elem.View(buf), target, disp)
}

// RGet is [Win.Get] with a request (MPI_Rget, MPI 4.1 §12.3.5). When the request is complete, the
// elements are in buf.
func (w *Win[T]) RGet(buf []T, target, disp int) Request {
	return Request(w.in().RGet(elem.View(buf), target, disp))
}

// Accumulate combines len(buf) elements of rank target's part of the window, from its element disp
// on, with the elements of buf (MPI_Accumulate, MPI 4.1 §12.3.4). Each update of an element is
// atomic with respect to all accumulates, fetches and CompareSwaps of the window. Updates of an
// element by one rank happen in the order of its program. op is [Replace], or a built-in operation
// that T supports; for T = [Loc] these are [MinLoc] and [MaxLoc]. Operations of [OpFunc] are not
// permitted.
//
// Accumulate does not wait until the elements have changed. buf belongs to the window, and the
// program must not write to it, until FlushLocal, Flush, Unlock, Complete or Fence has returned. If
// Put and Accumulate change an element at the same time, its value is undefined; use Replace
// instead of Put. If a fabric's atomics are used, the fabric decides what Min and Max of a NaN are.
//
// Errors: those of [Win.Put]; ErrOp.
//
// Accumulate does not allocate in steady state.
func (w *Win[T]) Accumulate(buf []T, target, disp int, op OpFor[T]) error {
	return w.in().Accumulate(elem.View(buf), target, disp, opOf(op))
}

// RAccumulate is [Win.Accumulate] with a request (MPI_Raccumulate, MPI 4.1 §12.3.5). When the
// request is complete, the program may reuse buf.
func (w *Win[T]) RAccumulate(buf []T, target, disp int, op OpFor[T]) Request {
	return Request(w.in().RAccumulate(elem.View(buf), target, disp, opOf(op)))
}

// GetAccumulate does what [Win.Accumulate] does, and also fetches the previous values of the
// elements into result (MPI_Get_accumulate, MPI 4.1 §12.3.4). result has the length of buf and does
// not overlap it. With [NoOp], GetAccumulate only reads, and buf may be nil. Both slices belong to
// the window until FlushLocal, Flush, Unlock, Complete or Fence has returned; then result is
// filled.
//
// Errors: those of Accumulate; ErrCount if the lengths differ; ErrBuffer.
//
// GetAccumulate does not allocate in steady state.
func (w *Win[T]) GetAccumulate(buf, result []T, target, disp int, op OpFor[T]) error {
	return w.in().GetAccumulate(elem.View(buf), elem.View(result), target, disp, opOf(op))
}

// RGetAccumulate is [Win.GetAccumulate] with a request (MPI_Rget_accumulate, MPI 4.1 §12.3.5). When
// the request is complete, result is filled, and the program may reuse buf.
func (w *Win[T]) RGetAccumulate(buf, result []T, target, disp int, op OpFor[T]) Request {
	return Request(w.in().RGetAccumulate(elem.View(buf), elem.View(result), target, disp, opOf(op)))
}

// FetchOp combines element disp of rank target's part with value in one atomic step, and returns
// the element's previous value (MPI_Fetch_and_op, MPI 4.1 §12.3.4). With [Sum] the element is a
// counter; with [Replace] the call is a swap, and with [NoOp] a read. FetchOp blocks until the step
// is complete. If target is ProcNull, it returns zero. Errors: those of [Win.Accumulate].
//
// FetchOp does not allocate in steady state.
func (w *Win[T]) FetchOp(value T, target, disp int, op OpFor[T]) (T, error) {
	var old T
	if word, ok := w.in().FetchWord(elem.Word(value), target, disp, opOf(op)); ok {
		return elem.FromWord[T](word), nil
	}
	err := w.in().FetchOp(elem.Bytes(elem.One(&value)), elem.Bytes(elem.One(&old)), target, disp, opOf(op))
	return old, err
}

// RFetchOp is [Win.FetchOp], except that it does not block, so many may be in progress. The
// variables that value and result point to belong to the request until the request is complete.
// Then *result is the element's previous value.
func (w *Win[T]) RFetchOp(value, result *T, target, disp int, op OpFor[T]) Request {
	if value == nil || result == nil {
		return Request(w.in().NilPointer("RFetchOp", target))
	}
	return Request(w.in().RFetchOp(elem.View(elem.One(value)), elem.View(elem.One(result)), target, disp, opOf(op)))
}

// CompareSwap stores value in element disp of rank target's part if the element equals compare, in
// one atomic step, and returns the element's previous value (MPI_Compare_and_swap, MPI 4.1
// §12.3.4). If the previous value equals compare, value was stored. CompareSwap blocks until the
// step is complete. T is an integer or bool type. If target is ProcNull, it returns zero. Errors:
// those of [Win.Put]; ErrType for other element types.
//
// CompareSwap does not allocate in steady state.
func (w *Win[T]) CompareSwap(compare, value T, target, disp int) (T, error) {
	var old T
	if word, ok := w.in().SwapWord(elem.Word(compare), elem.Word(value), target, disp); ok {
		return elem.FromWord[T](word), nil
	}
	err := w.in().CompareSwap(elem.Bytes(elem.One(&compare)), elem.Bytes(elem.One(&value)), elem.Bytes(elem.One(&old)), target, disp)
	return old, err
}

// RCompareSwap is [Win.CompareSwap], except that it does not block. The variable that result points
// to belongs to the request until the request is complete. Then *result is the element's previous
// value.
func (w *Win[T]) RCompareSwap(compare, value T, result *T, target, disp int) Request {
	if result == nil {
		return Request(w.in().NilPointer("RCompareSwap", target))
	}
	return Request(w.in().RCompareSwap(elem.Bytes(elem.One(&compare)), elem.Bytes(elem.One(&value)), elem.Bytes(elem.One(result)), target, disp))
}
