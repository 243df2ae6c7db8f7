package main

import (
	"fmt"
	"reflect"

	"github.com/weft-hpc/weft/comm"
)

// subject is an [element] of any type T. Its methods are operations that work for every element type.
type subject interface {
	collectives(k *call) error
	messages(k *call) error
	ring(k *call) error
	views(k *call) error
	window(k *call) error
	regions(k *call) error
}

// element describes the element type T for tests: its values, and the reduction operations on them.
type element[T comparable] struct {
	// of makes a value from random bits. A reduction of such values is exact in any order.
	of     func(bits uint64) T
	common []operation[T] // operations of package comm, which commute
	own    []operation[T] // operations that this program defines, which do not commute
}

// operation is a reduction operation, with a plain implementation to compare with.
type operation[T comparable] struct {
	name string
	op   comm.OpFor[T]
	do   func(lower, upper T) T // combines an element of a lower rank with one of a higher rank
}

func (e element[T]) String() string { return reflect.TypeFor[T]().String() }

func (e element[T]) size() int { return int(reflect.TypeFor[T]().Size()) }

// block returns n elements of a rank's test data, from the element with index at on. They depend on salt,
// rank and index only.
func (e element[T]) block(salt uint64, rank, at, n int) []T {
	b := make([]T, n)
	for i := range b {
		b[i] = e.of(mix(salt, uint64(rank), uint64(at+i)))
	}
	return b
}

// subjects are all element types. Types that programs use often are listed twice, so that they are drawn
// more often.
var subjects = []subject{
	integers[int64](), integers[int64](), integers[int32](), integers[byte](), integers[byte](),
	integers[int8](), integers[int16](), integers[uint16](), integers[uint32](), integers[uint64](), integers[uint](), integers[uintptr](),
	floats[float64](), floats[float64](), floats[float32](), floats[celsius](),
	complexes[complex64](), complexes[complex128](),
	truths(), places[int32](), places[float64](),
	plain(func(bits uint64) affine { return affine{uint32(bits) | 1, uint32(bits >> 32)} }, operation[affine]{"then", nil, affine.then}),
	plain(func(bits uint64) triple { return triple{byte(bits), byte(bits >> 8), byte(bits >> 16)} }),
	plain(func(bits uint64) particle {
		return particle{int8(bits), [3]float64{float64(bits >> 8 & 0xff), 1, -2}, uint16(bits >> 16)}
	}),
}

type (
	celsius  float64
	truth    bool
	triple   [3]byte
	particle struct { // has padding between its fields
		Kind  int8
		Speed [3]float64
		Next  uint16
	}
	// affine is the map x ↦ A·x + B modulo 2^32. The composition of two maps does not commute.
	affine struct{ A, B uint32 }
)

func (f affine) then(g affine) affine { return affine{g.A * f.A, g.A*f.B + g.B} }

// plain returns an element type for which package comm has no operations. Its own operations are ops,
// and lower and upper, which return one of their operands and work for any type.
func plain[T comparable](of func(uint64) T, ops ...operation[T]) element[T] {
	ops = append(ops,
		operation[T]{"lower", nil, func(lower, _ T) T { return lower }},
		operation[T]{"upper", nil, func(_, upper T) T { return upper }})
	for i := range ops {
		do := ops[i].do
		if i%2 == 1 {
			ops[i].op = comm.OpOf(func(a, b T) T { return do(a, b) })
			continue
		}
		ops[i].op = comm.OpFunc(false, func(inout, in []T) {
			for i := range inout {
				inout[i] = do(in[i], inout[i])
			}
		})
	}
	return element[T]{of: of, own: ops}
}

func with[T comparable](of func(uint64) T, ops ...operation[T]) element[T] {
	e := plain(of)
	e.common = ops
	return e
}

// byName returns an operation of package comm by its name.
func byName[T comm.Number](name string) comm.OpFor[T] {
	op, err := comm.OpByName[T](name)
	if err != nil {
		panic(err)
	}
	return op
}

func integers[T comm.Integer]() element[T] {
	truth := func(b bool) T {
		if b {
			return 1
		}
		return 0
	}
	// Half of the values are 0, so that both results of the logical operations occur.
	of := func(bits uint64) T { return T(bits) * T(bits>>62&1) }
	return with(of,
		operation[T]{"Sum", comm.Sum[T], func(a, b T) T { return a + b }},
		operation[T]{"Prod", comm.Prod[T], func(a, b T) T { return a * b }},
		operation[T]{"Min", byName[T]("min"), func(a, b T) T { return min(a, b) }},
		operation[T]{"Max", byName[T]("MAX"), func(a, b T) T { return max(a, b) }},
		operation[T]{"Band", comm.Band[T], func(a, b T) T { return a & b }},
		operation[T]{"Bor", comm.Bor[T], func(a, b T) T { return a | b }},
		operation[T]{"Bxor", comm.Bxor[T], func(a, b T) T { return a ^ b }},
		operation[T]{"Land", comm.Land[T], func(a, b T) T { return truth(a != 0 && b != 0) }},
		operation[T]{"Lor", comm.Lor[T], func(a, b T) T { return truth(a != 0 || b != 0) }},
		operation[T]{"Lxor", comm.Lxor[T], func(a, b T) T { return truth((a != 0) != (b != 0)) }})
}

// floats returns a floating-point element type. The absolute values are powers of two from 1/2 to
// 2, so that sums and products of 64 values are exact.
func floats[T ~float32 | ~float64]() element[T] {
	values := [8]T{-2, -1, -0.5, 0.5, 1, 2, 1, -1}
	return with(func(bits uint64) T { return values[bits>>61] },
		operation[T]{"Sum", byName[T]("Sum"), func(a, b T) T { return a + b }},
		operation[T]{"Prod", comm.Prod[T], func(a, b T) T { return a * b }},
		operation[T]{"Min", comm.Min[T], func(a, b T) T { return min(a, b) }},
		operation[T]{"Max", comm.Max[T], func(a, b T) T { return max(a, b) }})
}

// complexes returns a complex element type. All values are 1, -1, i or -i, so that sums and products
// are exact.
func complexes[T ~complex64 | ~complex128]() element[T] {
	values := [4]T{1, -1, 1i, -1i}
	return with(func(bits uint64) T { return values[bits>>62] },
		operation[T]{"Sum", comm.Sum[T], func(a, b T) T { return a + b }},
		operation[T]{"Prod", comm.Prod[T], func(a, b T) T { return a * b }})
}

func truths() element[truth] {
	return with(func(bits uint64) truth { return bits>>63 == 0 },
		operation[truth]{"Land", comm.Land[truth], func(a, b truth) truth { return a && b }},
		operation[truth]{"Lor", comm.Lor[truth], func(a, b truth) truth { return a || b }},
		operation[truth]{"Lxor", comm.Lxor[truth], func(a, b truth) truth { return a != b }})
}

func places[T comm.Real]() element[comm.Loc[T]] {
	type loc = comm.Loc[T]
	pick := func(better func(a, b T) bool) func(a, b loc) loc {
		return func(a, b loc) loc {
			if better(b.Value, a.Value) || b.Value == a.Value && b.Index < a.Index {
				return b
			}
			return a
		}
	}
	return with(func(bits uint64) loc { return loc{Value: T(bits >> 61), Index: int(bits & 0xff)} },
		operation[loc]{"MinLoc", comm.MinLoc[T], pick(func(a, b T) bool { return a < b })},
		operation[loc]{"MaxLoc", comm.MaxLoc[T], pick(func(a, b T) bool { return a > b })})
}

// draw returns a random operation for a reduction, the same on all ranks.
func (e element[T]) draw(k *call) operation[T] {
	n := k.rng.IntN(len(e.common) + (len(e.own)+1)/2)
	if n < len(e.common) {
		return e.common[n]
	}
	return e.own[k.rng.IntN(len(e.own))]
}

// margin is the largest number of elements before a buffer, and after it, that call.close checks.
const margin = 5

// buffer returns a buffer of n elements with arbitrary contents, in Go's heap or in memory of
// comm.Alloc. There are up to margin elements before it and after it. call.close checks that these are
// unchanged, and frees the buffer.
func (e element[T]) buffer(k *call, n int) ([]T, error) {
	before, after := k.own.IntN(margin+1), k.own.IntN(margin+1)
	all, free := []T(nil), func() {}
	if k.own.IntN(4) > 0 {
		all = make([]T, before+n+after)
	} else {
		var err error
		if all, free, err = comm.Alloc[T](k.c, before+n+after); err != nil {
			return nil, err
		}
	}
	junk := e.block(k.salt+1, 0, 0, 2*margin)
	for i := range all {
		all[i] = junk[i%len(junk)]
	}
	k.closers = append(k.closers, func() error {
		for i := range all {
			if (i < before || i >= before+n) && all[i] != junk[i%len(junk)] {
				return fmt.Errorf("a buffer of %d %v: element %d, outside of it, was changed", n, e, i-before)
			}
		}
		free()
		return nil
	})
	return all[before : before+n : before+n], nil
}

// filled returns a buffer with a copy of the elements with.
func (e element[T]) filled(k *call, with []T) ([]T, error) {
	b, err := e.buffer(k, len(with))
	copy(b, with)
	return b, err
}
