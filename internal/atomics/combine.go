package atomics

import (
	"encoding/binary"
	"math"

	"github.com/weft-hpc/weft/transport"
)

// combiner returns the bits of the new element, from those of the old element and of the operand.
// It ignores the bits of its arguments above the size of the element, and its caller ignores those
// bits of the result.
type combiner func(old, in uint64) uint64

// combiners holds the combiner of each type and operation, or nil if there is none.
var combiners = func() (all [transport.Datatypes][transport.AtomicOps]combiner) {
	all[transport.Int32] = integers[int32]()
	all[transport.Uint32] = integers[uint32]()
	all[transport.Int64] = integers[int64]()
	all[transport.Uint64] = integers[uint64]()
	all[transport.Float32] = floats(func(b uint64) float32 { return math.Float32frombits(uint32(b)) }, bits32)
	all[transport.Float64] = floats(math.Float64frombits, bits64)
	all[transport.Complex64][transport.AtomicSum] = sumPairs
	all[transport.Complex64][transport.AtomicProd] = prodPairs
	return all
}()

// Combines reports whether a Change can combine elements of type t by op. That is so for integers
// of 4 and 8 bytes if op is not a read, a write or a swap; for floating-point numbers if, in
// addition, op is not bitwise; for complex64 if op is the sum or the product; for the other types
// never.
func Combines(op transport.AtomicOp, t transport.Datatype) bool {
	return op < transport.AtomicOps && t < transport.Datatypes && combiners[t][op] != nil
}

func truth(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func integers[T int32 | uint32 | int64 | uint64]() (all [transport.AtomicOps]combiner) {
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

func floats[T float32 | float64](of func(uint64) T, bits func(T) uint64) (all [transport.AtomicOps]combiner) {
	logic := func(f func(a, b bool) bool) combiner {
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

// bits32 returns the bits of x. For every NaN it returns the same bits.
func bits32(x float32) uint64 {
	if x != x {
		return 0x7fc00000
	}
	return uint64(math.Float32bits(x))
}

// bits64 is bits32 for float64.
func bits64(x float64) uint64 {
	if x != x {
		return 0x7ff8000000000000
	}
	return math.Float64bits(x)
}

// pairOf returns the parts of the complex64 that has the same bytes in memory as word. The real
// part comes first.
func pairOf(word uint64) (re, im float32) {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], word)
	return math.Float32frombits(binary.NativeEndian.Uint32(b[:])), math.Float32frombits(binary.NativeEndian.Uint32(b[4:]))
}

// wordOf is the inverse of pairOf.
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

// prodPairs multiplies in float64, in which the products are exact. So the result does not depend
// on whether the compiler fuses a product with the sum.
func prodPairs(old, in uint64) uint64 {
	a32, b32 := pairOf(old)
	c32, d32 := pairOf(in)
	a, b, c, d := float64(a32), float64(b32), float64(c32), float64(d32)
	return wordOf(float32(a*c-b*d), float32(a*d+b*c))
}
