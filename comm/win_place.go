package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// NewDynamicWin makes a window without memory: its ranks attach memory to the window and detach it
// at any time (MPI_Win_create_dynamic, MPI 4.1 §12.2.4). T is the element type of all attached
// memory. Operations work on places in regions ([Win.In]); the parts of the ranks have no elements.
// The kinds of epochs are the same as for other windows. NewDynamicWin is collective over c and
// blocks. Errors: those of [NewWin].
func NewDynamicWin[T any](c *Comm, hints ...WinHint) (*Win[T], error) {
	x, err := c.in().NewDynamicWin(elem.Of[T](), winOptions(hints))
	if err != nil {
		return nil, err
	}
	return &Win[T]{x: x}, nil
}

// Region is memory that a rank has attached to a dynamic window ([Win.Attach]). It is a value
// without pointers: the rank sends it to others like any element, for example by [Bcast] or inside
// of a struct, or stores it in a window. If a Region is damaged, detached, or of another window,
// operations with it return an error and change nothing.
type Region[T any] struct{ in mpi.Region }

// Rank returns the rank that has attached the region, in the window's group.
func (r Region[T]) Rank() int { return r.in.Rank() }

// Len returns the number of elements of the region.
func (r Region[T]) Len() int { return elem.Whole(r.in.Size(), elem.SizeOf[T]()) }

// Attach permits the other ranks of a dynamic window to access buf, until [Win.Detach] or Free
// (MPI_Win_attach, MPI 4.1 §12.2.4). buf must not share memory with another attached region. A rank
// has at most 32 768 regions at one time. Attach does not communicate, but it may take as long as a
// fabric needs to register buf.
//
// Memory of [Alloc] is fastest: ranks that share memory with this one map it. If all ranks of the
// window share memory, accumulates to it are loads and stores. Other memory is accessed by RMA, or,
// over a fabric that does not report the use of detached memory, by messages.
//
// Errors: ErrRMAAttach if the window is not dynamic, if part of buf is attached already, or if this
// rank has 32 768 regions; ErrWin, ErrRevoked, ErrClosed.
func (w *Win[T]) Attach(buf []T) (Region[T], error) {
	r, err := w.in().Attach(elem.View(buf))
	return Region[T]{r}, err
}

// Detach ends the access of all ranks to a region that this rank has attached (MPI_Win_detach, MPI
// 4.1 §12.2.4). Before that, the program makes sure that all operations with the region are
// complete. Operations that begin later return ErrRMARange, at once or at the next Flush. Detach is
// local and does not block. Errors: ErrRMAAttach if r is not an attached region of this rank;
// ErrWin, ErrRevoked, ErrClosed.
func (w *Win[T]) Detach(r Region[T]) error { return w.in().Detach(&r.in) }

// Place says which elements of a window an operation works on: elements of a rank's part, or of a
// region of a dynamic window. A Place is a value; making one is local, and costs nothing. The
// operations of a Place take a [View] of the origin's elements. The window's own operations, such
// as [Win.Put], do the same for a slice and consecutive elements of a part.
//
//	column := comm.Vector(rows, 1, cols)
//	v := comm.Of(matrix, column)
//	err := w.At(right, 0).Layout(column.Shift(cols-1)).Put(v) // a column to a column
//	err = w.In(region, 0).Put(comm.Slice(buf))                // a slice to a region
//
// If there is no layout, an operation works on as many consecutive elements as its view has.
// Otherwise the layout and the view have the same number of elements.
//
// Cost: if the memory is mapped, the caller copies the elements directly. Otherwise, if the
// contiguous pieces have 4 KiB or more on average, RMA moves each piece. Otherwise messages carry
// the elements without gaps, and the target copies them to their places when it makes progress.
//
// Errors of the operations, besides those of [Win.Put] and [Win.Accumulate]: ErrCount if the
// numbers of elements differ; ErrLayout, ErrType, as for calls with a [View]; ErrRMARange if an
// element is not inside of the part or the region, or if the region is not attached. An operation
// whose arguments are wrong changes nothing. For a region the error may come with the next Flush of
// its rank.
type Place[T any] struct {
	w  *mpi.Win
	in mpi.Place
}

// At returns the place of rank target's part that begins at element disp.
func (w *Win[T]) At(target, disp int) Place[T] {
	return Place[T]{w.in(), mpi.Place{Rank: target, Disp: disp}}
}

// In returns the place in a region of a dynamic window that begins at element disp.
func (w *Win[T]) In(r Region[T], disp int) Place[T] {
	return Place[T]{w.in(), mpi.Place{Region: r.in, Inside: true, Disp: disp}}
}

// Layout returns the place that has the elements of l, counted from the element at which p begins.
// The layout replaces that of p, if p has one.
func (p Place[T]) Layout(l Layout) Place[T] {
	if p.in.Layout = l.in; l.in == nil {
		p.in.Layout = noElements
	}
	return p
}

// noElements is the layout of the zero Layout.
var noElements = Contiguous(0).in

// Slice returns the View of all elements of buf. It does not allocate.
func Slice[T any](buf []T) View[T] { return View[T]{elem.View(buf)} }

// Put is [Win.Put] of the elements of a view to a place.
func (p Place[T]) Put(v View[T]) error { return p.w.PutAt(v.buffer(), &p.in) }

// RPut is [Win.RPut] of the elements of a view to a place.
func (p Place[T]) RPut(v View[T]) Request { return Request(p.w.RPutAt(v.buffer(), &p.in)) }

// Get is [Win.Get] of the elements of a place to a view.
func (p Place[T]) Get(v View[T]) error { return p.w.GetAt(v.buffer(), &p.in) }

// RGet is [Win.RGet] of the elements of a place to a view.
func (p Place[T]) RGet(v View[T]) Request { return Request(p.w.RGetAt(v.buffer(), &p.in)) }

// Accumulate is [Win.Accumulate] of the elements of a view to a place.
func (p Place[T]) Accumulate(v View[T], op OpFor[T]) error {
	return p.w.AccumulateAt(v.buffer(), &p.in, opOf(op))
}

// RAccumulate is [Win.RAccumulate] of the elements of a view to a place.
func (p Place[T]) RAccumulate(v View[T], op OpFor[T]) Request {
	return Request(p.w.RAccumulateAt(v.buffer(), &p.in, opOf(op)))
}

// GetAccumulate is [Win.GetAccumulate] of the elements of v to a place. The previous elements go to
// result, which must not overlap with v; GetAccumulate checks that only if both are slices. With
// [NoOp], v may be the zero View.
func (p Place[T]) GetAccumulate(v, result View[T], op OpFor[T]) error {
	return p.w.GetAccumulateAt(v.buffer(), result.buffer(), &p.in, opOf(op))
}

// RGetAccumulate is [Place.GetAccumulate] with a request (MPI_Rget_accumulate).
func (p Place[T]) RGetAccumulate(v, result View[T], op OpFor[T]) Request {
	return Request(p.w.RGetAccumulateAt(v.buffer(), result.buffer(), &p.in, opOf(op)))
}

// FetchOp is [Win.FetchOp] on the first element of a place. If the place has a layout, the layout
// must have one element.
func (p Place[T]) FetchOp(value T, op OpFor[T]) (T, error) {
	var old T
	err := p.w.FetchOpAt(elem.Bytes(elem.One(&value)), elem.Bytes(elem.One(&old)), &p.in, opOf(op))
	return old, err
}

// RFetchOp is [Win.RFetchOp] on the first element of a place.
func (p Place[T]) RFetchOp(value, result *T, op OpFor[T]) Request {
	if value == nil || result == nil {
		return Request(p.w.NilPointer("RFetchOp", p.in.Target()))
	}
	return Request(p.w.RFetchOpAt(elem.View(elem.One(value)), elem.View(elem.One(result)), &p.in, opOf(op)))
}

// CompareSwap is [Win.CompareSwap] on the first element of a place.
func (p Place[T]) CompareSwap(compare, value T) (T, error) {
	var old T
	err := p.w.CompareSwapAt(elem.Bytes(elem.One(&compare)), elem.Bytes(elem.One(&value)), elem.Bytes(elem.One(&old)), &p.in)
	return old, err
}

// RCompareSwap is [Win.RCompareSwap] on the first element of a place.
func (p Place[T]) RCompareSwap(compare, value T, result *T) Request {
	if result == nil {
		return Request(p.w.NilPointer("RCompareSwap", p.in.Target()))
	}
	return Request(p.w.RCompareSwapAt(elem.Bytes(elem.One(&compare)), elem.Bytes(elem.One(&value)), elem.Bytes(elem.One(result)), &p.in))
}
