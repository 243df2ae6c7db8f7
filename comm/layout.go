package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/layout"
)

// Layout says which elements of a slice a message consists of, and in which order: a derived datatype
// of MPI (MPI 4.1 §5). It counts elements, of any type; [Of] makes a [View] of a slice from it. A
// Layout is a value that goroutines may share. It needs no commit and no free. The zero Layout has no
// elements.
//
// If the arguments of a constructor are wrong, the Layout and all that are made from it have an error
// (see [Layout.Err]), which calls with their views return. The error wraps [ErrLayout].
//
// The extent of a Layout is the distance at which the next one begins if several follow each other
// ([Layout.Repeat]). It reaches from the lowest element to the highest, unless a comment says
// otherwise.
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

// Contiguous is n consecutive elements (MPI_Type_contiguous).
func Contiguous(n int) Layout { return layoutOf(layout.Bytes(n)) }

// Vector is count blocks of block consecutive elements. The begins of two blocks are stride elements
// apart (MPI_Type_vector):
//
//	Vector(3, 2, 4)   ■ ■ · · ■ ■ · · ■ ■
//
// The column j of a matrix with rows × cols elements is Vector(rows, 1, cols).Shift(j).
func Vector(count, block, stride int) Layout {
	return layoutOf(layout.Vector(count, block, stride, one))
}

// Indexed is blocks of lengths[i] elements from the element offs[i] on (MPI_Type_indexed). The slices
// have the same length:
//
//	Indexed([]int{2, 1}, []int{1, 4})   · ■ ■ · ■
func Indexed(lengths, offs []int) Layout { return layoutOf(layout.Indexed(lengths, offs, one)) }

// IndexedBlock is blocks of block elements from the elements offs[i] on
// (MPI_Type_create_indexed_block).
func IndexedBlock(block int, offs []int) Layout {
	lengths := make([]int, len(offs))
	for i := range lengths {
		lengths[i] = block
	}
	return Indexed(lengths, offs)
}

// Subarray is a part of an array with sizes[d] elements in dimension d: the subsizes[d] elements from
// starts[d] on (MPI_Type_create_subarray with MPI_ORDER_C). The last index varies fastest. Its extent
// is that of the whole array. For another order, reverse the three slices.
//
//	Subarray([]int{3, 4}, []int{2, 2}, []int{1, 1})   · · · ·
//	                                                  · ■ ■ ·
//	                                                  · ■ ■ ·
func Subarray(sizes, subsizes, starts []int) Layout {
	return layoutOf(layout.Subarray(sizes, subsizes, starts, layout.RowMajor, one))
}

// Distribution is how a dimension of an array is distributed among ranks; see [Darray].
type Distribution uint8

// The distributions.
const (
	// Whole: each rank has the whole dimension (MPI_DISTRIBUTE_NONE).
	Whole = Distribution(layout.None)
	// Blocks: each rank has one block of consecutive elements (MPI_DISTRIBUTE_BLOCK).
	Blocks = Distribution(layout.Block)
	// Cyclic: the ranks have blocks in turn (MPI_DISTRIBUTE_CYCLIC).
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
	Coord int // coordinate, from 0 to Ranks-1, of the rank whose part the layout is
}

// Darray is the part of a distributed array that one rank has (MPI_Type_create_darray with
// MPI_ORDER_C). The last index varies fastest. Its extent is that of the whole array. The part may be
// empty. For another order, reverse the dimensions.
//
// The part of a block-cyclic matrix of ScaLAPACK that the rank with the coordinates row and col has,
// on a grid of p × q ranks, with blocks of nb × nb elements:
//
//	Darray(Dim{rows, Cyclic, nb, p, row}, Dim{cols, Cyclic, nb, q, col})
func Darray(dims ...Dim) Layout {
	in := make([]layout.Dim, len(dims))
	for i, d := range dims {
		in[i] = layout.Dim{Size: d.Size, Dist: layout.Distribution(d.Dist), Block: d.Block, Procs: d.Ranks, Coord: d.Coord}
	}
	return layoutOf(layout.Darray(in, layout.RowMajor, one))
}

// Combine is the layouts ls[i], each shifted by offs[i] elements, one after the other in the message
// (MPI_Type_create_struct). The slices have the same length. Its extent reaches from the lowest begin
// of the layouts to their highest end.
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

// Repeat is count layouts l, each of which begins where the extent of the one before ends
// (MPI_Type_contiguous).
func (l Layout) Repeat(count int) Layout { return layoutOf(layout.Repeat(count, l.elements())) }

// Strided is count layouts l whose begins are stride elements apart (MPI_Type_create_hvector).
func (l Layout) Strided(count, stride int) Layout {
	return layoutOf(layout.HVector(count, 1, stride, l.elements()))
}

// Shift is l with off added to the index of each element. off may be negative.
func (l Layout) Shift(off int) Layout { return layoutOf(layout.Shift(off, l.elements())) }

// Resized is l with another extent, which begins at the element lower (MPI_Type_create_resized). The
// elements are those of l:
//
//	Vector(2, 1, 3)                            ■ · · ■
//	Vector(2, 1, 3).Resized(0, 1).Repeat(2)    ■ ■ · ■ ■     the order is the elements 0, 3, 1, 4
func (l Layout) Resized(lower, extent int) Layout {
	return layoutOf(layout.Resized(lower, extent, l.elements()))
}

// Err returns the error of the constructor, or nil. It wraps [ErrLayout].
func (l Layout) Err() error { return l.elements().Err() }

// Len returns the number of elements of the layout (MPI_Type_size). It is 0 if the layout has an
// error.
func (l Layout) Len() int { return l.elements().Size() }

// Extent returns the index at which the extent of the layout begins, and its length in elements
// (MPI_Type_get_extent).
func (l Layout) Extent() (lower, extent int) {
	in := l.elements()
	return in.Lower(), in.Extent()
}

// Span returns the lowest index of an element of the layout, and the index after the highest
// (MPI_Type_get_true_extent). Both are 0 if there is none.
func (l Layout) Span() (low, high int) { return l.elements().Span() }
