package layout

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// naive is a layout as the list of the offsets of its bytes, in the order of the stream: MPI's type
// map. The tests compare each Layout with it.
type naive struct {
	offs   []int
	lb, ub int
	bounds bool // lb and ub are set; otherwise the layout is empty
}

func (n naive) extent() int { return n.ub - n.lb }

func naiveBytes(n int) naive {
	l := naive{ub: n, bounds: n > 0}
	for i := range n {
		l.offs = append(l.offs, i)
	}
	return l
}

// place adds count layouts l whose begins are stride apart, the first at off.
func (n *naive) place(off, count, stride int, l naive) {
	if len(l.offs) == 0 && l.extent() == 0 {
		return
	}
	for i := range count {
		at := off + i*stride
		for _, o := range l.offs {
			n.offs = append(n.offs, at+o)
		}
		lb, ub := at+l.lb, at+l.ub
		if !n.bounds {
			n.lb, n.ub, n.bounds = lb, ub, true
		}
		n.lb, n.ub = min(n.lb, lb), max(n.ub, ub)
	}
}

func (n naive) span() (low, high int) {
	if len(n.offs) == 0 {
		return 0, 0
	}
	return slices.Min(n.offs), slices.Max(n.offs) + 1
}

// subarray is Subarray by one loop over all elements of the array.
func (n naive) subarray(sizes []int, has func(d, i int) bool, order Order) naive {
	total := 1
	for _, s := range sizes {
		total *= s
	}
	var out naive
	for e := range total {
		rest, in := e, true
		for i := range sizes {
			d := len(sizes) - 1 - i
			if order == ColumnMajor {
				d = i
			}
			in = in && has(d, rest%sizes[d])
			rest /= sizes[d]
		}
		if in {
			out.place(e*n.extent(), 1, 0, n)
		}
	}
	out.lb, out.ub, out.bounds = 0, total*n.extent(), true
	return out
}

// random returns a random layout and its type map, of at most depth nested constructors, and how it
// was made.
func random(r *rand.Rand, depth int) (Layout, naive, string) {
	if depth == 0 {
		n := []int{0, 1, 2, 3, 4, 8, 16, 24}[r.IntN(8)]
		return Bytes(n), naiveBytes(n), fmt.Sprint("Bytes ", n)
	}
	l, n, how := random(r, depth-1)
	small := func() int { return r.IntN(4) }
	var out naive
	switch r.IntN(9) {
	case 0:
		count := small()
		out.place(0, count, n.extent(), n)
		return Repeat(count, l), out, fmt.Sprintf("Repeat(%d, %s)", count, how)
	case 1:
		count, length, stride := small(), small(), r.IntN(9)-4
		var block naive
		block.place(0, length, n.extent(), n)
		out.place(0, count, stride*n.extent(), block)
		return Vector(count, length, stride, l), out, fmt.Sprintf("Vector(%d, %d, %d, %s)", count, length, stride, how)
	case 2:
		lengths, offs := make([]int, small()), []int(nil)
		for i := range lengths {
			lengths[i] = small()
			offs = append(offs, r.IntN(12)-4)
			out.place(offs[i]*n.extent(), lengths[i], n.extent(), n)
		}
		return Indexed(lengths, offs, l), out, fmt.Sprintf("Indexed(%v, %v, %s)", lengths, offs, how)
	case 3:
		m, k, other := random(r, depth-1)
		lengths, offs := []int{small(), small()}, []int{r.IntN(50) - 10, r.IntN(50) - 10}
		out.place(offs[0], lengths[0], n.extent(), n)
		out.place(offs[1], lengths[1], k.extent(), k)
		return Struct(lengths, offs, []Layout{l, m}), out, fmt.Sprintf("Struct(%v, %v, {%s, %s})", lengths, offs, how, other)
	case 4:
		lb, extent := r.IntN(9)-4, r.IntN(40)
		n.lb, n.ub, n.bounds = lb, lb+extent, true
		return Resized(lb, extent, l), n, fmt.Sprintf("Resized(%d, %d, %s)", lb, extent, how)
	case 5:
		dims := 1 + r.IntN(3)
		sizes, subsizes, starts := make([]int, dims), make([]int, dims), make([]int, dims)
		for d := range dims {
			sizes[d] = 1 + r.IntN(4)
			subsizes[d] = 1 + r.IntN(sizes[d])
			starts[d] = r.IntN(sizes[d] - subsizes[d] + 1)
		}
		order := Order(r.IntN(2))
		out = n.subarray(sizes, func(d, i int) bool { return i >= starts[d] && i < starts[d]+subsizes[d] }, order)
		return Subarray(sizes, subsizes, starts, order, l), out, fmt.Sprintf("Subarray(%v, %v, %v, %v, %s)", sizes, subsizes, starts, order, how)
	case 6:
		dims := make([]Dim, 1+r.IntN(3))
		sizes := make([]int, len(dims))
		for d := range dims {
			dims[d] = randomDim(r)
			sizes[d] = dims[d].Size
		}
		order := Order(r.IntN(2))
		out = n.subarray(sizes, func(d, i int) bool { return dims[d].has(i) }, order)
		return Darray(dims, order, l), out, fmt.Sprintf("Darray(%+v, %v, %s)", dims, order, how)
	case 7:
		size := r.IntN(4)
		if size > 0 {
			out.lb, out.ub, out.bounds = size*n.lb, size*n.ub, n.bounds
		}
		for _, off := range n.offs {
			for i := range size {
				out.offs = append(out.offs, off*size+i)
			}
		}
		return Scale(size, l), out, fmt.Sprintf("Scale(%d, %s)", size, how)
	default:
		off := r.IntN(20) - 5
		out.place(off, 1, 0, n)
		return Shift(off, l), out, fmt.Sprintf("Shift(%d, %s)", off, how)
	}
}

func randomDim(r *rand.Rand) Dim {
	m := Dim{Size: 1 + r.IntN(7), Dist: Distribution(r.IntN(3)), Procs: 1 + r.IntN(4)}
	switch m.Dist {
	case None:
		m.Procs = 1
	case Cyclic:
		m.Block = r.IntN(4)
	case Block:
		if r.IntN(2) == 0 {
			m.Block = (m.Size-1)/m.Procs + 1 + r.IntN(2)
		}
	}
	m.Coord = r.IntN(m.Procs)
	return m
}

// has reports whether the process has element i of the dimension.
func (m Dim) has(i int) bool {
	switch m.Dist {
	case None:
		return true
	case Block:
		return i/m.block() == m.Coord
	default:
		return i/m.block()%m.Procs == m.Coord
	}
}
