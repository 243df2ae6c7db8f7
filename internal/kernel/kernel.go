// Package kernel implements the built-in reduction operations over the built-in element types, at
// the speed of memory. It knows nothing of ranks and messages.
//
// Every kernel exists as a loop in Go, and most kernels exist in assembly for AVX2 and AVX-512 too.
// The processor and the length of the operands determine which version runs. All versions yield the
// same bits on every processor and architecture:
//
//   - Integers wrap around.
//   - Each floating-point operation is rounded once, as in the Go loops. No multiplication is fused
//     with an addition. A product of complex64 is computed in float64 and then rounded.
//   - A NaN result is always the same NaN: positive, quiet, without payload (0x7fc00000,
//     0x7ff8000000000000). So sums, products, minima and maxima do not depend on the order of two
//     operands.
//   - Min and Max are those of Go: if an operand is NaN, the result is NaN; -0 is less than +0. MPI
//     does not define these cases.
//   - Land, Lor and Lxor treat every value except 0 as true, and yield 0 or 1.
//   - MinLoc and MaxLoc work on Pair: they yield the least or greatest value, and of equal values
//     (-0 equals +0) the least index. A NaN value wins over all numbers. If values and indices are
//     equal, -0 wins, so the result does not depend on the order of the operands.
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

// Type is an element type of the built-in operations.
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

// Pair is the element of MinLoc and MaxLoc: a value and its index, for example the rank of its
// owner.
type Pair[T any] struct {
	Value T
	Index int
}

// Kernel is one operation over elements of one type. Its functions do not block, do not allocate,
// keep no slice, and may run concurrently. The caller passes slices of equal length that are
// aligned for the type. Bytes after the last whole element stay unchanged.
type Kernel struct {
	Size int // bytes of an element

	// Reduce2 is the reduction on two buffers: inout[i] = in[i] ∘ inout[i] for each element i. in
	// may be the same slice as inout; otherwise they must not overlap.
	Reduce2 func(inout, in []byte)

	// Reduce3 is the reduction on three buffers: dst[i] = left[i] ∘ right[i] for each element i.
	// dst may be the same slice as left or right; otherwise it must not overlap them.
	Reduce3 func(dst, left, right []byte)
}

// For returns the kernel of an operation over elements of type t (for MinLoc and MaxLoc: over Pair
// of t). It returns false for combinations that MPI does not define, for example bitwise operations
// on floating-point numbers, minima of complex numbers and sums of bools.
//
// Hot path: no allocation.
func For(op Op, t Type) (Kernel, bool) {
	if op < 0 || op >= ops || t < 0 || t >= types {
		return Kernel{}, false
	}
	k := kernels()[op][t]
	return k, k.Reduce3 != nil
}

// table holds the kernel of each operation and type. Combinations without a kernel have a zero
// Kernel.
type table [ops][types]Kernel

// kernels returns the fastest kernels for this processor. The first call creates them, so a process
// that reduces nothing starts faster.
var kernels = sync.OnceValue(best)
