package layout

// Order is the order in which the elements of an array are stored.
type Order uint8

// The orders of arrays.
const (
	RowMajor    Order = iota // the last index varies fastest, as in Go and C (MPI_ORDER_C)
	ColumnMajor              // the first index varies fastest, as in Fortran (MPI_ORDER_FORTRAN)
)

// Subarray returns a part of an array of layouts l with sizes[d] elements in dimension d: the
// subsizes[d] elements from starts[d] (MPI_Type_create_subarray). The three slices have one element
// per dimension. The extent of the result is that of the whole array.
func Subarray(sizes, subsizes, starts []int, order Order, l Layout) Layout {
	if len(sizes) == 0 || len(subsizes) != len(sizes) || len(starts) != len(sizes) {
		return invalid("%d sizes, %d subsizes and %d starts of a subarray", len(sizes), len(subsizes), len(starts))
	}
	parts := make([]part, len(sizes))
	for d, size := range sizes {
		if size < 1 || subsizes[d] < 1 || starts[d] < 0 || starts[d] > size-subsizes[d] {
			return invalid("%d elements from %d of the %d elements in dimension %d of an array", subsizes[d], starts[d], size, d)
		}
		parts[d] = part{size: size, start: starts[d], blocks: 1, length: subsizes[d]}
	}
	return array(parts, order, l)
}

// Distribution is how a dimension of an array is distributed among processes.
type Distribution uint8

// The distributions.
const (
	None   Distribution = iota // each process has the whole dimension (MPI_DISTRIBUTE_NONE)
	Block                      // each process has one block of consecutive elements (MPI_DISTRIBUTE_BLOCK)
	Cyclic                     // the processes have blocks in turn (MPI_DISTRIBUTE_CYCLIC)
)

// Dim is one dimension of a distributed array.
type Dim struct {
	Size  int // number of elements of the whole array in this dimension
	Dist  Distribution
	Block int // elements of a block; 0: Size ÷ Procs, rounded up, for Block, and 1 for Cyclic (MPI_DISTRIBUTE_DFLT_DARG)
	Procs int // number of processes in this dimension; 1 for None
	Coord int // coordinate of the process whose part it is, from 0 to Procs-1
}

// Darray returns the part of a distributed array of layouts l that one process has
// (MPI_Type_create_darray). The extent of the result is that of the whole array. The part may be
// empty.
func Darray(dims []Dim, order Order, l Layout) Layout {
	if len(dims) == 0 {
		return invalid("an array without dimensions")
	}
	parts := make([]part, len(dims))
	for d, m := range dims {
		if m.Size < 1 || m.Procs < 1 || m.Coord < 0 || m.Coord >= m.Procs || m.Block < 0 || m.Dist > Cyclic || m.Dist == None && m.Procs != 1 {
			return invalid("dimension %d of a distributed array: %+v", d, m)
		}
		if m.Dist == Block && (m.Size-1)/m.block() >= m.Procs {
			return invalid("blocks of %d elements for %d processes do not hold the %d elements of dimension %d", m.Block, m.Procs, m.Size, d)
		}
		parts[d] = m.part()
	}
	return array(parts, order, l)
}

// part is what one process has of a dimension: blocks of length elements, whose begins are period
// elements apart, and then a shorter block of tail elements.
//
//	│← start →│← length →│          │← length →│          │← tail →│
//	          │←       period      →│
//	│←                               size                              →│
type part struct {
	size, start            int
	blocks, length, period int
	tail                   int // 0: there is no shorter block
}

// block returns the number of elements of a block of the dimension.
func (m Dim) block() int {
	switch {
	case m.Block > 0:
		return m.Block
	case m.Dist == Block:
		return (m.Size-1)/m.Procs + 1
	}
	return 1
}

// part returns the part of the process with the coordinate m.Coord.
func (m Dim) part() part {
	if m.Dist == None {
		return part{size: m.Size, blocks: 1, length: m.Size}
	}
	p := part{size: m.Size, length: m.block()}
	p.start, p.period = m.limited(m.Coord, p.length), m.limited(m.Procs, p.length)
	if p.start == m.Size { // the array has no block for this process
		return part{size: m.Size}
	}
	left := m.Size - p.start
	if m.Dist == Block || left <= p.period {
		p.blocks, p.length = 1, min(p.length, left)
		return p
	}
	p.blocks = left / p.period
	if left %= p.period; left >= p.length {
		p.blocks++
	} else {
		p.tail = left
	}
	return p
}

// limited returns n blocks of length elements in elements, at most m.Size.
func (m Dim) limited(n, length int) int {
	if n > m.Size/length {
		return m.Size
	}
	return n * length
}

// array returns the layouts l in an array that belong to the given parts of its dimensions.
func array(parts []part, order Order, l Layout) Layout {
	var c checked
	for i := range parts {
		d := i
		if order == RowMajor {
			d = len(parts) - 1 - i // the dimension that varies fastest is the innermost
		}
		p, extent := parts[d], l.Extent()
		full := HVector(p.blocks, p.length, c.mul(p.period, extent), l)
		l = Struct([]int{1, 1}, []int{c.mul(p.start, extent), c.mul(p.start+p.blocks*p.period, extent)},
			[]Layout{full, Repeat(p.tail, l)})
		l = Resized(0, c.mul(p.size, extent), l)
		if c.overflow {
			return tooLarge(l)
		}
	}
	return l
}
