package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/layout"
)

// Layout says which elements of a slice a message has, and in which order: a derived datatype of
// MPI (MPI 4.1 §5). A Layout counts elements, and has no element type: [Of] makes a [View] of a
// slice of any type from it. Goroutines may share a Layout. The program need not commit or free it.
// The zero Layout has no elements.
//
// If the arguments of a constructor are wrong, the Layout and every Layout made from it have an
// error, which wraps [ErrLayout]. [Layout.Err] returns the error, and so does each call with a view
// of such a Layout.
//
// The extent of a Layout is the range of elements that it takes up if [Layout.Repeat] puts several
// in a row: each begins where the extent of the one before ends. The extent reaches from the lowest
// element to the highest, unless the comment of a constructor says otherwise.
type Layout struct{ in *elem.Layout }

// one is the layout of one element.
var one = layout.Bytes(1)

func layoutOf(l layout.Layout) Layout { return Layout{elem.NewLayout(l)} }

func (l Layout) elements() layout.Layout {
	if l.in == nil {
		return layout.Layout{}
	}
	return l.in.Elements()
}

// Contiguous returns the layout of n consecutive elements (MPI_Type_contiguous).
func Contiguous(n int) Layout { return layoutOf(layout.Bytes(n)) }

// Vector returns the layout of count blocks, each of block consecutive elements. Each block begins
// stride elements after the start of the one before (MPI_Type_vector):
//
//	Vector(3, 2, 4)   ■ ■ · · ■ ■ · · ■ ■
//
// Column j of a matrix with rows × cols elements is Vector(rows, 1, cols).Shift(j).
func Vector(count, block, stride int) Layout {
	return layoutOf(layout.Vector(count, block, stride, one))
}

// Indexed returns the layout of one block per element of the slices: block i has lengths[i]
// elements and begins at element offs[i] (MPI_Type_indexed). The slices have the same length:
//
//	Indexed([]int{2, 1}, []int{1, 4})   · ■ ■ · ■
func Indexed(lengths, offs []int) Layout { return layoutOf(layout.Indexed(lengths, offs, one)) }

// IndexedBlock is [Indexed] for blocks of equal length: each has block elements
// (MPI_Type_create_indexed_block).
func IndexedBlock(block int, offs []int) Layout {
	lengths := make([]int, len(offs))
	for i := range lengths {
		lengths[i] = block
	}
	return Indexed(lengths, offs)
}

// Subarray returns the layout of a part of an array. In dimension d the array has sizes[d]
// elements, and the part has the subsizes[d] elements from starts[d] on (MPI_Type_create_subarray
// with MPI_ORDER_C). The last index varies fastest. The extent of the layout is that of the whole
// array. For another order, reverse the three slices.
//
//	Subarray([]int{3, 4}, []int{2, 2}, []int{1, 1})   · · · ·
//	                                                  · ■ ■ ·
//	                                                  · ■ ■ ·
func Subarray(sizes, subsizes, starts []int) Layout {
	return layoutOf(layout.Subarray(sizes, subsizes, starts, layout.RowMajor, one))
}

// Distribution says how a dimension of an array is distributed among ranks; see [Darray].
type Distribution uint8

// The distributions.
const (
	// Whole: each rank has the whole dimension (MPI_DISTRIBUTE_NONE).
	Whole = Distribution(layout.None)
	// Blocks: each rank has one block of consecutive elements (MPI_DISTRIBUTE_BLOCK).
	Blocks = Distribution(layout.Block)
	// Cyclic: the blocks go to the ranks in turn, round robin (MPI_DISTRIBUTE_CYCLIC).
	Cyclic = Distribution(layout.Cyclic)
)

// Dim is a dimension of an array that is distributed among ranks; see [Darray].
type Dim struct {
	Size int // number of elements of the whole array in this dimension
	Dist Distribution
	// Number of elements of a block. 0 means Size ÷ Ranks, rounded up, for Blocks, and 1 for Cyclic
	// (MPI_DISTRIBUTE_DFLT_DARG).
	Block int
	Ranks int // number of ranks in this dimension; 1 for Whole
	Coord int // coordinate of the rank whose part the layout describes, from 0 to Ranks-1
}

// Darray returns the layout of the part of a distributed array that one rank has
// (MPI_Type_create_darray with MPI_ORDER_C). The last index varies fastest. The extent of the
// layout is that of the whole array. The part may be empty. For another order, reverse the
// dimensions.
//
// Example: a block-cyclic matrix of ScaLAPACK, with blocks of nb × nb elements, on a grid of p × q
// ranks. The part of the rank with the coordinates row and col is:
//
//	Darray(Dim{rows, Cyclic, nb, p, row}, Dim{cols, Cyclic, nb, q, col})
func Darray(dims ...Dim) Layout {
	in := make([]layout.Dim, len(dims))
	for i, d := range dims {
		in[i] = layout.Dim{Size: d.Size, Dist: layout.Distribution(d.Dist), Block: d.Block, Procs: d.Ranks, Coord: d.Coord}
	}
	return layoutOf(layout.Darray(in, layout.RowMajor, one))
}

// Combine returns a layout that joins several: the message has the elements of each ls[i], shifted
// by offs[i] elements, one layout after the other (MPI_Type_create_struct). The slices have the
// same length. The extent of the result reaches from the lowest begin to the highest end of the
// extents of the shifted layouts.
func Combine(offs []int, ls []Layout) Layout {
	lengths, in := make([]int, len(offs)), make([]layout.Layout, len(ls))
	for i := range lengths {
		lengths[i] = 1
	}
	for i, l := range ls {
		in[i] = l.elements()
	}
	return layoutOf(layout.Struct(lengths, offs, in))
}

// Repeat returns a layout of count layouts l. Each begins where the extent of the one before ends
// (MPI_Type_contiguous).
func (l Layout) Repeat(count int) Layout { return layoutOf(layout.Repeat(count, l.elements())) }

// Strided returns a layout of count layouts l. Each begins stride elements after the start of the
// one before (MPI_Type_create_hvector).
func (l Layout) Strided(count, stride int) Layout {
	return layoutOf(layout.HVector(count, 1, stride, l.elements()))
}

// Shift returns l with off added to the index of each element. off may be negative.
func (l Layout) Shift(off int) Layout { return layoutOf(layout.Shift(off, l.elements())) }

// Resized returns l with another extent: it begins at element lower and has extent elements
// (MPI_Type_create_resized). extent may be negative, except in views of files. The elements of the
// layout do not change:
//
//	Vector(2, 1, 3)                            ■ · · ■
//	Vector(2, 1, 3).Resized(0, 1).Repeat(2)    ■ ■ · ■ ■     the order is the elements 0, 3, 1, 4
func (l Layout) Resized(lower, extent int) Layout {
	return layoutOf(layout.Resized(lower, extent, l.elements()))
}

// Err returns the error of the constructor, or nil. The error wraps [ErrLayout].
func (l Layout) Err() error { return l.elements().Err() }

// Len returns the number of elements of the layout (MPI_Type_size). If the layout has an error, the
// number is 0.
func (l Layout) Len() int { return l.elements().Size() }

// Extent returns the index at which the extent of the layout begins, and its length in elements
// (MPI_Type_get_extent).
func (l Layout) Extent() (lower, extent int) {
	in := l.elements()
	return in.Lower(), in.Extent()
}

// Span returns the lowest index of an element of the layout, and the index after the highest
// (MPI_Type_get_true_extent). Both are 0 if the layout has no elements.
func (l Layout) Span() (low, high int) { return l.elements().Span() }
