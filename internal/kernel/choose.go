package kernel

import "math"

// vector is a kernel in assembly: dst[i] = left[i] ∘ right[i] over n bytes,
// which are whole elements and at least one register full. It need not be
// aligned. It neither reads nor writes anything outside of the n bytes.
type vector = func(dst, left, right *byte, n int)

// vectors are the kernels of one instruction set.
type vectors struct {
	width   int // bytes of a register
	kernels [ops][types]vector
}

// stretch bounds the bytes that one call of assembly combines, since Go's
// scheduler cannot interrupt it, nor the garbage collector stop the world
// meanwhile. It is three to fifteen microseconds of work.
const stretch = 128 << 10

// variant is a way to run the kernels: which instruction sets they use.
type variant struct {
	name         string
	narrow, wide *vectors // nil: none
}

// best is the fastest that the processor and the system can run.
func best() *table {
	all := variants()
	return all[len(all)-1].build()
}

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

// lengths is one operation over one type by what suits the length: the loop
// below a register, wide registers only for what fills one, since some
// processors slow down for them or take microseconds to wake them up.
type lengths struct {
	size         int // a power of two
	loop         loop
	narrow, wide vector
	narrowFrom   int // bytes from which narrow is used, and wide
	wideFrom     int
}

// reduce3 is Kernel.Reduce3. Each call of itself is a point where the scheduler can
// interrupt it.
//
// Hot path: no allocation.
func (l *lengths) reduce3(dst, left, right []byte) {
	n := min(len(dst), len(left), len(right)) &^ (l.size - 1)
	dst, left, right = dst[:n], left[:n], right[:n]
	switch {
	case n < l.narrowFrom:
		l.loop(dst, left, right)
	case n > stretch:
		for len(dst) > 0 {
			n = min(len(dst), stretch)
			l.reduce3(dst[:n], left[:n], right[:n])
			dst, left, right = dst[n:], left[n:], right[n:]
		}
	default:
		told(dst, left, right)
		v := l.narrow
		if n >= l.wideFrom {
			v = l.wide
		}
		v(&dst[0], &left[0], &right[0], n)
	}
}
