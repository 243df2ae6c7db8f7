package rma

import (
	"encoding/binary"
	"math"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
)

// Elements that a processor changes in one step: of 4 or 8 bytes, aligned.

// merger combines the bits of an element of the window with the origin's. Of a
// result of 4 bytes the upper half does not count.
type merger func(old, in uint64) uint64

// mergers are those of an element type, by operation after NoOp. They yield the
// bits that the kernels of package kernel do.
func mergers(d transport.Datatype) (all [Ops]merger) {
	switch d {
	case transport.Int32:
		return integers[int32]()
	case transport.Uint32:
		return integers[uint32]()
	case transport.Int64:
		return integers[int64]()
	case transport.Uint64:
		return integers[uint64]()
	case transport.Float32:
		return reals(func(b uint64) float32 { return math.Float32frombits(uint32(b)) }, bits32)
	case transport.Float64:
		return reals(math.Float64frombits, bits64)
	case transport.Complex64:
		all[Sum], all[Prod] = sumPairs, prodPairs
	default: // of other sizes
	}
	return all
}

// integral says whether sums and bits of a type are those of its words.
func integral(d transport.Datatype) bool {
	return d == transport.Int32 || d == transport.Uint32 || d == transport.Int64 || d == transport.Uint64
}

func integers[T int32 | uint32 | int64 | uint64]() (all [Ops]merger) {
	truth := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	all[Sum] = func(a, b uint64) uint64 { return a + b }
	all[Prod] = func(a, b uint64) uint64 { return a * b }
	all[Min] = func(a, b uint64) uint64 { return uint64(min(T(a), T(b))) }
	all[Max] = func(a, b uint64) uint64 { return uint64(max(T(a), T(b))) }
	all[Band] = func(a, b uint64) uint64 { return a & b }
	all[Bor] = func(a, b uint64) uint64 { return a | b }
	all[Bxor] = func(a, b uint64) uint64 { return a ^ b }
	all[Land] = func(a, b uint64) uint64 { return truth(T(a) != 0 && T(b) != 0) }
	all[Lor] = func(a, b uint64) uint64 { return truth(T(a) != 0 || T(b) != 0) }
	all[Lxor] = func(a, b uint64) uint64 { return truth((T(a) != 0) != (T(b) != 0)) }
	return all
}

func reals[T float32 | float64](of func(uint64) T, bits func(T) uint64) (all [Ops]merger) {
	all[Sum] = func(a, b uint64) uint64 { return bits(of(a) + of(b)) }
	all[Prod] = func(a, b uint64) uint64 { return bits(of(a) * of(b)) }
	all[Min] = func(a, b uint64) uint64 { return bits(min(of(a), of(b))) }
	all[Max] = func(a, b uint64) uint64 { return bits(max(of(a), of(b))) }
	return all
}

// bits32 are the bits of x; a NaN is always the same one.
func bits32(x float32) uint64 {
	if x != x {
		return 0x7fc00000
	}
	return uint64(math.Float32bits(x))
}

// bits64 is the same of twice the size.
func bits64(x float64) uint64 {
	if x != x {
		return 0x7ff8000000000000
	}
	return math.Float64bits(x)
}

// pairOf is the complex64 that a word has in memory: its real part comes first.
func pairOf(word uint64) (re, im float32) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return math.Float32frombits(binary.NativeEndian.Uint32(b[:])), math.Float32frombits(binary.NativeEndian.Uint32(b[4:]))
}

// wordOf is the reverse of pairOf.
func wordOf(re, im float32) uint64 {
	var b [8]byte
	binary.NativeEndian.PutUint32(b[:], uint32(bits32(re)))
	binary.NativeEndian.PutUint32(b[4:], uint32(bits32(im)))
	return binary.NativeEndian.Uint64(b[:])
}

func sumPairs(old, in uint64) uint64 {
	a, b := pairOf(old)
	c, d := pairOf(in)
	return wordOf(a+c, b+d)
}

// prodPairs rounds each part once, from the product of float64.
func prodPairs(old, in uint64) uint64 {
	a32, b32 := pairOf(old)
	c32, d32 := pairOf(in)
	a, b, c, d := float64(a32), float64(b32), float64(c32), float64(d32)
	return wordOf(float32(float64(a*c)-float64(b*d)), float32(float64(a*d)+float64(b*c)))
}

// update64 changes a word as op says and returns what it was.
//
// Hot path: no allocation, no lock.
func (w *Window) update64(p *uint64, op Op, in uint64) uint64 {
	switch {
	case op == NoOp:
		return atomic.LoadUint64(p)
	case op == Replace:
		return atomic.SwapUint64(p, in)
	case op == Sum && w.integral:
		return atomic.AddUint64(p, in) - in
	}
	for f := w.mergers[op]; ; {
		old := atomic.LoadUint64(p)
		if atomic.CompareAndSwapUint64(p, old, f(old, in)) {
			return old
		}
	}
}

// update32 is the same of half the size.
//
// Hot path: no allocation, no lock.
func (w *Window) update32(p *uint32, op Op, in uint32) uint32 {
	switch {
	case op == NoOp:
		return atomic.LoadUint32(p)
	case op == Replace:
		return atomic.SwapUint32(p, in)
	case op == Sum && w.integral:
		return atomic.AddUint32(p, in) - in
	}
	for f := w.mergers[op]; ; {
		old := atomic.LoadUint32(p)
		if atomic.CompareAndSwapUint32(p, old, uint32(f(uint64(old), uint64(in)))) {
			return old
		}
	}
}

// swap64 stores replace where the word is compare, and returns what it was.
//
// Hot path: no allocation, no lock.
func swap64(p *uint64, compare, replace uint64) uint64 {
	for {
		if atomic.CompareAndSwapUint64(p, compare, replace) {
			return compare
		}
		if old := atomic.LoadUint64(p); old != compare {
			return old
		}
	}
}

// swap32 is the same of half the size.
//
// Hot path: no allocation, no lock.
func swap32(p *uint32, compare, replace uint32) uint32 {
	for {
		if atomic.CompareAndSwapUint32(p, compare, replace) {
			return compare
		}
		if old := atomic.LoadUint32(p); old != compare {
			return old
		}
	}
}
