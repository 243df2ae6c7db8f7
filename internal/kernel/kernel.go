// Package kernel combines elements of the built-in types by the built-in
// operations, at the speed of memory. It knows nothing of ranks and messages.
//
// Every kernel exists as plain loops in Go, and most of them in assembly for
// AVX2 and AVX-512 as well; the processor determines which are used. All
// yield the same bits, whatever the processor and the architecture are:
//
//   - Integers wrap around.
//   - Floating-point results are rounded once per operation, as the loops say
//     it; no multiplication is fused with an addition. A product of complex64
//     is computed in float64 and then rounded.
//   - A NaN that a kernel yields is always the same one: positive, quiet, and
//     with no payload (0x7fc00000, 0x7ff8000000000000). So sums, products,
//     minima and maxima do not depend on the order of two operands either.
//   - Min and Max are Go's: a NaN operand makes the result NaN, and -0 is less
//     than +0. MPI leaves this open.
//   - Land, Lor and Lxor take every value but 0 as true and yield 0 or 1.
//   - MinLoc and MaxLoc work on Pair: the least or greatest value, and of equal
//     values (-0 equals +0) the least index. A NaN value wins over all others.
//     Equal values at equal indices leave no trace of the order: -0 wins.
package kernel

import "sync"

//go:generate go -C gen run . ..

// Op is a built-in operation. All of them commute.
type Op int

// The built-in operations (MPI 4.1 §6.9.2 and §6.9.4).
const (
	Sum Op = iota
	Prod
	Min
	Max
	Band
	Bor
	Bxor
	Land
	Lor
	Lxor
	MinLoc
	MaxLoc

	ops
)

// Type is an element type that built-in operations know.
type Type int

// The element types.
const (
	Int8 Type = iota
	Int16
	Int32
	Int64
	Int
	Uint8
	Uint16
	Uint32
	Uint64
	Uint
	Uintptr
	Float32
	Float64
	Complex64
	Complex128
	Bool

	types
)

// Pair is what MinLoc and MaxLoc combine: a value and where it is, as the rank
// or an index there.
type Pair[T any] struct {
	Value T
	Index int
}

// Kernel is one operation over elements of one type. Its functions do not
// block, do not allocate, keep no slice, and may run concurrently. Slices are
// equally long and aligned for the type; a part that is no whole element is
// left alone.
type Kernel struct {
	Size int // bytes of an element

	// Reduce2 is inout[i] = in[i] ∘ inout[i].
	Reduce2 func(inout, in []byte)

	// Reduce3 is dst[i] = left[i] ∘ right[i]. dst may be the very slice that left
	// or right is; otherwise it does not overlap them.
	Reduce3 func(dst, left, right []byte)
}

// For returns the operation over elements of type t (over Pair of it for MinLoc
// and MaxLoc), or false where MPI has no such pair: bits of floating-point
// numbers, an order of complex ones, sums of bools.
//
// Hot path: no allocation.
func For(op Op, t Type) (Kernel, bool) {
	if op < 0 || op >= ops || t < 0 || t >= types {
		return Kernel{}, false
	}
	k := kernels()[op][t]
	return k, k.Reduce3 != nil
}

// table is a kernel for each operation and type that there is one for.
type table [ops][types]Kernel

// kernels returns those that suit this processor best. The first call makes them, so a
// process that combines nothing starts faster.
var kernels = sync.OnceValue(best)
