package kernel

import "math"

// vector is a kernel in assembly: dst[i] = left[i] ∘ right[i] over n bytes. n is a multiple of the
// element size, and at least vectors.width. The operands need no alignment. dst may be the same as
// left or right. A vector neither reads nor writes outside of the n bytes of each operand.
type vector = func(dst, left, right *byte, n int)

// vectors holds the assembly kernels of one instruction set.
type vectors struct {
	width   int                // bytes of a register of the instruction set
	kernels [ops][types]vector // nil: the combination has no assembly
}

// maxCallBytes is the most bytes that one call of assembly combines. During a call Go's scheduler
// cannot preempt the goroutine, and the garbage collector cannot stop the world. A call takes at
// most about three to fifteen microseconds.
const maxCallBytes = 128 << 10

// variant is a choice of the instruction sets that the kernels use. Lengths that no vectors serve use
// the Go loops.
type variant struct {
	name   string
	narrow *vectors // for operands of at least narrow.width bytes; nil: none
	wide   *vectors // instead of narrow, for operands of at least wide.width bytes; nil: none
}

// best returns the fastest kernels that the processor and the operating system can run.
func best() *table {
	all := variants()
	return all[len(all)-1].build()
}

// build returns the kernels of the variant.
func (v variant) build() *table {
	t := new(table)
	for op := range ops {
		for typ := range types {
			if loops[op][typ] != nil {
				t[op][typ] = v.kernel(op, typ)
			}
		}
	}
	return t
}

func (v variant) kernel(op Op, typ Type) Kernel {
	loop := loops[op][typ]
	if op == MinLoc || op == MaxLoc {
		return Kernel{
			Size:    pairSizes[typ],
			Reduce2: func(inout, in []byte) { loop(inout, in, inout) },
			Reduce3: loop,
		}
	}
	l := &lengths{size: sizes[typ], loop: loop, narrowFrom: math.MaxInt, wideFrom: math.MaxInt}
	if v.narrow != nil {
		l.narrow, l.narrowFrom = v.narrow.kernels[op][typ], v.narrow.width
	}
	if v.wide != nil {
		l.wide, l.wideFrom = v.wide.kernels[op][typ], v.wide.width
	}
	return Kernel{
		Size:    l.size,
		Reduce2: func(inout, in []byte) { l.reduce3(inout, in, inout) },
		Reduce3: l.reduce3,
	}
}

// lengths is one operation over one type, in versions for different lengths of the operands. The Go
// loop serves operands shorter than narrowFrom bytes. wide serves only operands that fill one of
// its registers, because some processors reduce their clock for wide registers, or need
// microseconds to power them up.
type lengths struct {
	size         int // bytes of an element, a power of two
	loop         loop
	narrow, wide vector
	narrowFrom   int // least number of bytes for narrow; math.MaxInt: there is no narrow
	wideFrom     int // least number of bytes for wide; math.MaxInt: there is no wide
}

// reduce3 is Kernel.Reduce3. If it uses assembly and the operands are long, it divides them and
// calls itself, so that the scheduler can preempt the goroutine between the calls.
//
// Hot path: no allocation.
func (l *lengths) reduce3(dst, left, right []byte) {
	n := min(len(dst), len(left), len(right)) &^ (l.size - 1)
	dst, left, right = dst[:n], left[:n], right[:n]
	switch {
	case n < l.narrowFrom:
		l.loop(dst, left, right)
	case n > maxCallBytes:
		for len(dst) > 0 {
			n = min(len(dst), maxCallBytes)
			l.reduce3(dst[:n], left[:n], right[:n])
			dst, left, right = dst[n:], left[n:], right[n:]
		}
	default:
		annotate(dst, left, right)
		v := l.narrow
		if n >= l.wideFrom {
			v = l.wide
		}
		v(&dst[0], &left[0], &right[0], n)
	}
}
