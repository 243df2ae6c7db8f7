package atomics

import (
	"encoding/binary"
	"math"

	"github.com/weft-hpc/weft/transport"
)

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

// Combines says whether op combines elements of type t in one step: on integers
// all operations do that are more than to read, to write and to swap, on floats
// all of those but bits, on complex64 sum and product, on complex128 none.
func Combines(op transport.AtomicOp, t transport.Datatype) bool {
	return op < transport.AtomicOps && t < transport.Datatypes && mergers[t][op] != nil
}

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

// prodPairs computes in float64, which has the products exactly, so that each part
// is the same whether a processor fuses a product with the sum or not.
func prodPairs(old, in uint64) uint64 {
	a32, b32 := pairOf(old)
	c32, d32 := pairOf(in)
	a, b, c, d := float64(a32), float64(b32), float64(c32), float64(d32)
	return wordOf(float32(a*c-b*d), float32(a*d+b*c))
}
