package coll

import (
	"fmt"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func bytesOf[T any](s []T) []byte {
	b := make([]byte, len(s)*sizeOf[T]())
	copy(view[T](b), s)
	return b
}

// checkKernel runs an operation over vectors of many lengths, at all offsets
// within a few words, against a plain function.
func checkKernel[T any](t *testing.T, op OpKind, typ Type, random func(*rand.Rand) T, plain func(in, inout T) T) {
	t.Helper()
	k, ok := Kernel(op, typ)
	require.True(t, ok, "op %d of type %d", op, typ)
	require.Equal(t, sizeOf[T](), k.Size)
	require.True(t, k.Commutes)
	rng := rand.New(rand.NewPCG(uint64(op), uint64(typ)))
	for n := range 70 {
		for offset := range 3 {
			in, inout := make([]T, n+offset), make([]T, n+offset)
			for i := range in {
				in[i], inout[i] = random(rng), random(rng)
			}
			a, b := bytesOf(in), bytesOf(inout)
			k.Combine(b[offset*k.Size:], a[offset*k.Size:])
			for i := offset; i < len(in); i++ {
				inout[i] = plain(in[i], inout[i])
			}
			// As text, since NaN differs from itself.
			require.Equal(t, fmt.Sprint(inout), fmt.Sprint(view[T](b)), "op %d of type %d, %d elements", op, typ, n)
			require.Equal(t, bytesOf(in), a)
		}
	}
}

func is[T integer](b bool) T {
	if b {
		return 1
	}
	return 0
}

func checkIntegers[T integer](t *testing.T, typ Type) {
	random := func(r *rand.Rand) T { return T(r.Uint64()) >> (r.IntN(2) * 4 * sizeOf[T]()) & T(-1+2*r.IntN(2)) }
	few := func(r *rand.Rand) T { return T(r.IntN(3)) }
	checkOrdered(t, typ, random)
	checkNumbers(t, typ, random)
	checkKernel(t, OpBand, typ, random, func(a, b T) T { return a & b })
	checkKernel(t, OpBor, typ, random, func(a, b T) T { return a | b })
	checkKernel(t, OpBxor, typ, random, func(a, b T) T { return a ^ b })
	checkKernel(t, OpLand, typ, few, func(a, b T) T { return is[T](a != 0 && b != 0) })
	checkKernel(t, OpLor, typ, few, func(a, b T) T { return is[T](a != 0 || b != 0) })
	checkKernel(t, OpLxor, typ, few, func(a, b T) T { return is[T]((a != 0) != (b != 0)) })
}

func checkNumbers[T number](t *testing.T, typ Type, random func(*rand.Rand) T) {
	checkKernel(t, OpSum, typ, random, func(a, b T) T { return a + b })
	checkKernel(t, OpProd, typ, random, func(a, b T) T { return a * b })
}

func checkOrdered[T ordered](t *testing.T, typ Type, random func(*rand.Rand) T) {
	checkKernel(t, OpMin, typ, random, func(a, b T) T { return min(a, b) })
	checkKernel(t, OpMax, typ, random, func(a, b T) T { return max(a, b) })
	pair := func(r *rand.Rand) Pair[T] { return Pair[T]{random(r), r.IntN(5)} }
	first := func(a, b Pair[T]) Pair[T] {
		switch {
		case a.Index < b.Index:
			return a
		case a.Index > b.Index:
			return b
		}
		return Pair[T]{min(a.Value, b.Value), a.Index}
	}
	loc := func(less func(a, b T) bool) func(a, b Pair[T]) Pair[T] {
		return func(a, b Pair[T]) Pair[T] {
			aNaN, bNaN := a.Value != a.Value, b.Value != b.Value
			switch {
			case aNaN && bNaN:
				return first(a, b)
			case aNaN, !bNaN && less(a.Value, b.Value):
				return a
			case bNaN, less(b.Value, a.Value):
				return b
			}
			return first(a, b)
		}
	}
	checkKernel(t, OpMinLoc, typ, pair, loc(func(a, b T) bool { return a < b }))
	checkKernel(t, OpMaxLoc, typ, pair, loc(func(a, b T) bool { return a > b }))
}

func checkFloats[T float32 | float64](t *testing.T, typ Type) {
	random := func(r *rand.Rand) T {
		special := []float64{0, math.Copysign(0, -1), 1, -1, math.Inf(1), math.Inf(-1), math.NaN()}
		if k := r.IntN(3 * len(special)); k < len(special) {
			return T(special[k])
		}
		return T(r.NormFloat64())
	}
	checkOrdered(t, typ, random)
	checkNumbers(t, typ, random)
}

func TestKernels(t *testing.T) {
	checkIntegers[int8](t, TypeInt8)
	checkIntegers[int16](t, TypeInt16)
	checkIntegers[int32](t, TypeInt32)
	checkIntegers[int64](t, TypeInt64)
	checkIntegers[int](t, TypeInt)
	checkIntegers[uint8](t, TypeUint8)
	checkIntegers[uint16](t, TypeUint16)
	checkIntegers[uint32](t, TypeUint32)
	checkIntegers[uint64](t, TypeUint64)
	checkIntegers[uint](t, TypeUint)
	checkIntegers[uintptr](t, TypeUintptr)
	checkFloats[float32](t, TypeFloat32)
	checkFloats[float64](t, TypeFloat64)
	checkNumbers(t, TypeComplex64, func(r *rand.Rand) complex64 { return complex(float32(r.IntN(9)), float32(r.IntN(9))) })
	checkNumbers(t, TypeComplex128, func(r *rand.Rand) complex128 { return cmplx.Rect(float64(r.IntN(9)), 0) })
	checkKernel(t, OpLand, TypeBool, func(r *rand.Rand) bool { return r.IntN(2) == 0 }, func(a, b bool) bool { return a && b })
	checkKernel(t, OpLor, TypeBool, func(r *rand.Rand) bool { return r.IntN(2) == 0 }, func(a, b bool) bool { return a || b })
	checkKernel(t, OpLxor, TypeBool, func(r *rand.Rand) bool { return r.IntN(2) == 0 }, func(a, b bool) bool { return a != b })
}

func TestKernelsThatAreNot(t *testing.T) {
	for _, c := range []struct {
		op OpKind
		t  Type
	}{
		{OpBand, TypeFloat64}, {OpMin, TypeComplex64}, {OpSum, TypeBool}, {OpLand, TypeFloat32}, {OpMaxLoc, TypeComplex128},
		{-1, TypeInt}, {opKinds, TypeInt}, {OpSum, -1}, {OpSum, types},
	} {
		_, ok := Kernel(c.op, c.t)
		assert.False(t, ok, "%v", c)
	}
}

// TestMinMaxDoNotCareForOrder checks what the comments promise of NaN and -0.
func TestMinMaxDoNotCareForOrder(t *testing.T) {
	negative := math.Copysign(0, -1)
	for _, op := range []OpKind{OpMin, OpMax} {
		k, _ := Kernel(op, TypeFloat64)
		for _, p := range [][2]float64{{0, negative}, {math.NaN(), 1}, {math.NaN(), math.Inf(-1)}} {
			a, b := bytesOf(p[:1]), bytesOf(p[1:])
			c, d := bytesOf(p[1:]), bytesOf(p[:1])
			k.Combine(a, b)
			k.Combine(c, d)
			assert.Equal(t, a, c, "%v", p)
		}
	}
}

func TestPartsOfFold(t *testing.T) {
	for size := 1; size <= 33; size++ {
		for _, shift := range []int{0, size / 2, size - 1} {
			f := newFold(size, shift)
			seen := 0
			for rank := range size {
				m := f.member(rank)
				partner, paired := f.partner(rank)
				if m >= 0 {
					assert.Equal(t, rank, f.rank(m))
					seen++
				}
				if m < 0 {
					assert.True(t, paired)
				}
				if paired {
					back, ok := f.partner(partner)
					assert.True(t, ok)
					assert.Equal(t, rank, back)
					assert.NotEqual(t, m < 0, f.member(partner) < 0)
				}
			}
			assert.Equal(t, f.pow, seen)
			assert.Zero(t, f.member(shift))
		}
	}
}
