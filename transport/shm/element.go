package shm

import (
	"encoding/binary"
	"math"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
)

// Elements that the processor changes in one step
//
//	8 bytes  the word itself                 sums and bits of integers, reads,
//	4 bytes  the word itself                 writes: an instruction; the rest: a
//	1, 2     a part of the word around them  loop until nobody was in between
//
// An element travels as its bits, in the low part of a uint64.

// merger is what becomes of an element, given its bits and those of the data.
// Bits above the element do not count.
type merger func(old, in uint64) uint64

// mergers are those of the operations that combine; nil: there is none.
var mergers = func() (all [transport.Datatypes][transport.AtomicOps]merger) {
	all[transport.Int8] = integers[int8]()
	all[transport.Uint8] = integers[uint8]()
	all[transport.Int16] = integers[int16]()
	all[transport.Uint16] = integers[uint16]()
	all[transport.Int32] = integers[int32]()
	all[transport.Uint32] = integers[uint32]()
	all[transport.Int64] = integers[int64]()
	all[transport.Uint64] = integers[uint64]()
	all[transport.Float32] = reals(func(b uint64) float32 { return math.Float32frombits(uint32(b)) }, bits32)
	all[transport.Float64] = reals(math.Float64frombits, bits64)
	all[transport.Complex64][transport.AtomicSum] = sumPairs
	all[transport.Complex64][transport.AtomicProd] = prodPairs
	return all
}()

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func integers[T int8 | uint8 | int16 | uint16 | int32 | uint32 | int64 | uint64]() (all [transport.AtomicOps]merger) {
	all[transport.AtomicMin] = func(a, b uint64) uint64 { return uint64(min(T(a), T(b))) }
	all[transport.AtomicMax] = func(a, b uint64) uint64 { return uint64(max(T(a), T(b))) }
	all[transport.AtomicSum] = func(a, b uint64) uint64 { return a + b }
	all[transport.AtomicProd] = func(a, b uint64) uint64 { return a * b }
	all[transport.AtomicLor] = func(a, b uint64) uint64 { return truth(T(a) != 0 || T(b) != 0) }
	all[transport.AtomicLand] = func(a, b uint64) uint64 { return truth(T(a) != 0 && T(b) != 0) }
	all[transport.AtomicBor] = func(a, b uint64) uint64 { return a | b }
	all[transport.AtomicBand] = func(a, b uint64) uint64 { return a & b }
	all[transport.AtomicLxor] = func(a, b uint64) uint64 { return truth((T(a) != 0) != (T(b) != 0)) }
	all[transport.AtomicBxor] = func(a, b uint64) uint64 { return a ^ b }
	return all
}

func reals[T float32 | float64](of func(uint64) T, bits func(T) uint64) (all [transport.AtomicOps]merger) {
	logic := func(f func(a, b bool) bool) merger {
		return func(a, b uint64) uint64 { return bits(T(truth(f(of(a) != 0, of(b) != 0)))) }
	}
	all[transport.AtomicMin] = func(a, b uint64) uint64 { return bits(min(of(a), of(b))) }
	all[transport.AtomicMax] = func(a, b uint64) uint64 { return bits(max(of(a), of(b))) }
	all[transport.AtomicSum] = func(a, b uint64) uint64 { return bits(of(a) + of(b)) }
	all[transport.AtomicProd] = func(a, b uint64) uint64 { return bits(of(a) * of(b)) }
	all[transport.AtomicLor] = logic(func(a, b bool) bool { return a || b })
	all[transport.AtomicLand] = logic(func(a, b bool) bool { return a && b })
	all[transport.AtomicLxor] = logic(func(a, b bool) bool { return a != b })
	return all
}

// bits32 are the bits of x; a NaN is always the same one, whatever it came from.
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

// pairOf is the complex64 whose bytes a word has in memory: the real part first.
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

// prodPairs rounds each part once, from products that are exact.
func prodPairs(old, in uint64) uint64 {
	a32, b32 := pairOf(old)
	c32, d32 := pairOf(in)
	a, b, c, d := float64(a32), float64(b32), float64(c32), float64(d32)
	return wordOf(float32(float64(a*c)-float64(b*d)), float32(float64(a*d)+float64(b*c)))
}

// element reads the bits of an element of size bytes.
func element(b []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	}
	return binary.NativeEndian.Uint64(b)
}

// putElement is the reverse of element.
func putElement(b []byte, size int, bits uint64) {
	switch size {
	case 1:
		b[0] = byte(bits)
	case 2:
		binary.NativeEndian.PutUint16(b, uint16(bits))
	case 4:
		binary.NativeEndian.PutUint32(b, uint32(bits))
	default:
		binary.NativeEndian.PutUint64(b, bits)
	}
}

// change is one step on one element.
type change struct {
	op       transport.AtomicOp
	merge    merger // where op combines
	integral bool   // sums and bits are those of words
}

// on64 applies the change to a word and returns what it was.
//
// Hot path: no allocation, no lock.
func (c *change) on64(p *uint64, in, compare uint64) uint64 {
	switch {
	case c.op == transport.AtomicRead:
		return atomic.LoadUint64(p)
	case c.op == transport.AtomicWrite:
		return atomic.SwapUint64(p, in)
	case c.integral && c.op == transport.AtomicSum:
		return atomic.AddUint64(p, in) - in
	case c.integral && c.op == transport.AtomicBor:
		return atomic.OrUint64(p, in)
	case c.integral && c.op == transport.AtomicBand:
		return atomic.AndUint64(p, in)
	}
	for {
		old := atomic.LoadUint64(p)
		if c.op == transport.AtomicCswap && old != compare {
			return old
		}
		if atomic.CompareAndSwapUint64(p, old, c.next(old, in)) {
			return old
		}
	}
}

// on32 is on64 of half the size.
//
// Hot path: no allocation, no lock.
func (c *change) on32(p *uint32, in, compare uint32) uint32 {
	switch {
	case c.op == transport.AtomicRead:
		return atomic.LoadUint32(p)
	case c.op == transport.AtomicWrite:
		return atomic.SwapUint32(p, in)
	case c.integral && c.op == transport.AtomicSum:
		return atomic.AddUint32(p, in) - in
	case c.integral && c.op == transport.AtomicBor:
		return atomic.OrUint32(p, in)
	case c.integral && c.op == transport.AtomicBand:
		return atomic.AndUint32(p, in)
	}
	for {
		old := atomic.LoadUint32(p)
		if c.op == transport.AtomicCswap && old != compare {
			return old
		}
		if atomic.CompareAndSwapUint32(p, old, uint32(c.next(uint64(old), uint64(in)))) {
			return old
		}
	}
}

// next is what a change makes of a value, which is the one to compare with where
// it compares.
func (c *change) next(old, in uint64) uint64 {
	if c.merge == nil {
		return in
	}
	return c.merge(old, in)
}

// onPart is on64 of an element of one or two bytes, by the word around it.
//
// Hot path: no allocation, no lock.
func (c *change) onPart(b []byte, size int, in, compare uint64) uint64 {
	p, at := wordAround(b)
	for {
		whole := atomic.LoadUint32(p)
		var bytes [4]byte
		binary.NativeEndian.PutUint32(bytes[:], whole)
		old := element(bytes[at:], size)
		if c.op == transport.AtomicRead || c.op == transport.AtomicCswap && old != compare {
			return old
		}
		putElement(bytes[at:], size, c.next(old, in))
		if atomic.CompareAndSwapUint32(p, whole, binary.NativeEndian.Uint32(bytes[:])) {
			return old
		}
	}
}

// apply changes the elements of mem, which is aligned for them, with those of
// data, and puts into fetch what they were. data may be missing for a read,
// fetch always, and compare unless the operation compares.
//
// Hot path: no allocation, no lock.
func apply(op transport.AtomicOp, t transport.Datatype, mem, data, compare, fetch []byte) {
	size := t.Size()
	c := change{op: op, merge: mergers[t][op], integral: t < transport.Float32}
	for i := 0; i < len(mem); i += size {
		var in, with, old uint64
		if data != nil {
			in = element(data[i:], size)
		}
		if compare != nil {
			with = element(compare[i:], size)
		}
		switch size {
		case 8:
			old = c.on64(word64(mem[i:]), in, with)
		case 4:
			old = uint64(c.on32(word32(mem[i:]), uint32(in), uint32(with)))
		default:
			old = c.onPart(mem[i:], size, in, with)
		}
		if fetch != nil {
			putElement(fetch[i:], size, old)
		}
	}
}
