package layout

import (
	"fmt"
	"math"
	"math/bits"
)

// Bytes returns the layout of n contiguous bytes from offset 0.
func Bytes(n int) Layout {
	if n < 0 {
		return invalid("%d bytes", n)
	}
	if n == 0 {
		return Layout{}
	}
	return Layout{root: &node{size: n}, ub: n, high: n}
}

// Repeat returns count layouts l, each of which begins where the one before ends, by its extent
// (MPI_Type_contiguous).
func Repeat(count int, l Layout) Layout { return repeat(count, l.Extent(), l) }

// Vector returns count blocks of length layouts l each. The begins of two blocks are stride extents
// of l apart (MPI_Type_vector).
func Vector(count, length, stride int, l Layout) Layout {
	var c checked
	bytes := c.mul(stride, l.Extent())
	if c.overflow {
		return tooLarge(l)
	}
	return HVector(count, length, bytes, l)
}

// HVector is Vector with the stride in bytes (MPI_Type_create_hvector).
func HVector(count, length, stride int, l Layout) Layout {
	return repeat(count, stride, Repeat(length, l))
}

// repeat returns count layouts l whose begins are stride bytes apart.
func repeat(count, stride int, l Layout) Layout {
	var c checked
	switch {
	case l.err != nil:
		return l
	case count < 0:
		return invalid("a count of %d", count)
	case count == 0 || l.nothing():
		return Layout{}
	}
	last := c.mul(count-1, stride)
	l.lb, l.ub = c.span(last, l.lb, l.ub)
	if l.root != nil {
		size := c.mul(count, l.root.size)
		l.low, l.high = c.span(last, l.low, l.high)
		if !c.overflow {
			l.root = loop(count, stride, size, l.root)
		}
	}
	if c.overflow {
		return tooLarge(l)
	}
	return l
}

// Indexed returns blocks of lengths[i] layouts l, each of which begins offs[i] extents of l from
// the begin (MPI_Type_indexed). Both slices have the same length.
func Indexed(lengths, offs []int, l Layout) Layout {
	var c checked
	bytes := make([]int, len(offs))
	for i, off := range offs {
		bytes[i] = c.mul(off, l.Extent())
	}
	if c.overflow {
		return tooLarge(l)
	}
	return HIndexed(lengths, bytes, l)
}

// HIndexed is Indexed with offsets in bytes (MPI_Type_create_hindexed).
func HIndexed(lengths, offs []int, l Layout) Layout {
	return combine(lengths, offs, func(int) Layout { return l })
}

// Struct returns blocks of lengths[i] layouts ls[i], at the offsets offs[i] in bytes
// (MPI_Type_create_struct). The slices have the same length. The extent is not padded to the
// alignment of elements, which a Layout does not know; see Resized.
func Struct(lengths, offs []int, ls []Layout) Layout {
	if len(ls) != len(offs) {
		return invalid("%d layouts and %d offsets", len(ls), len(offs))
	}
	return combine(lengths, offs, func(i int) Layout { return ls[i] })
}

// combine returns blocks of lengths[i] layouts of(i), at the offsets offs[i] in bytes.
func combine(lengths, offs []int, of func(i int) Layout) Layout {
	if len(lengths) != len(offs) {
		return invalid("%d lengths and %d offsets", len(lengths), len(offs))
	}
	var c checked
	var all Layout
	var items []item
	size, first := 0, true
	for i, n := range lengths {
		l := Repeat(n, of(i))
		if l.err != nil {
			return l
		}
		if l.nothing() {
			continue
		}
		lb, ub := c.add(offs[i], l.lb), c.add(offs[i], l.ub)
		if first {
			all.lb, all.ub = lb, ub
		}
		all.lb, all.ub, first = min(all.lb, lb), max(all.ub, ub), false
		if l.root == nil {
			continue
		}
		low, high := c.add(offs[i], l.low), c.add(offs[i], l.high)
		if items == nil {
			all.low, all.high = low, high
		}
		all.low, all.high = min(all.low, low), max(all.high, high)
		size = c.add(size, l.root.size)
		items = append(items, item{off: c.add(offs[i], l.off), node: l.root})
	}
	if c.overflow {
		return tooLarge(Layout{})
	}
	if items != nil {
		all.off, all.root = sequence(items)
	}
	return all
}

// Resized returns l with another lower bound and extent (MPI_Type_create_resized). The data does not
// change.
func Resized(lower, extent int, l Layout) Layout {
	var c checked
	l.lb, l.ub = lower, c.add(lower, extent)
	if c.overflow {
		return tooLarge(l)
	}
	return l
}

// Shift returns l with off bytes added to each offset, bounds included.
func Shift(off int, l Layout) Layout { return HIndexed([]int{1}, []int{off}, l) }

// invalid returns a layout with an error.
func invalid(format string, args ...any) Layout {
	return Layout{err: fmt.Errorf("%w: "+format, append([]any{ErrLayout}, args...)...)}
}

// tooLarge returns a layout with an error: that of l if l has one.
func tooLarge(l Layout) Layout {
	if l.err != nil {
		return l
	}
	return invalid("its bytes or offsets do not fit into an int")
}

// checked computes with ints and remembers whether a result did not fit. All results are then
// meaningless.
type checked struct{ overflow bool }

func (c *checked) add(a, b int) int {
	if b > 0 && a > math.MaxInt-b || b < 0 && a < math.MinInt-b {
		c.overflow = true
	}
	return a + b
}

func (c *checked) mul(a, b int) int {
	hi, lo := bits.Mul64(magnitude(a), magnitude(b))
	if hi != 0 || lo > math.MaxInt {
		c.overflow = true
	}
	return a * b
}

// span returns the bounds of two ranges low to high, one at offset 0 and one at offset off.
func (c *checked) span(off, low, high int) (int, int) {
	return min(low, c.add(low, off)), max(high, c.add(high, off))
}

func magnitude(a int) uint64 {
	if a < 0 {
		return -uint64(a)
	}
	return uint64(a)
}

// Scale returns l with all sizes, offsets and strides multiplied by size, which is not negative: a
// layout that counts elements of size bytes becomes one that counts bytes.
func Scale(size int, l Layout) Layout {
	switch {
	case l.err != nil:
		return l
	case size == 0:
		return Layout{}
	}
	var c checked
	l.off, l.lb, l.ub = c.mul(l.off, size), c.mul(l.lb, size), c.mul(l.ub, size)
	l.low, l.high = c.mul(l.low, size), c.mul(l.high, size)
	l.root = l.root.scale(size, &c)
	if c.overflow {
		return tooLarge(l)
	}
	return l
}
