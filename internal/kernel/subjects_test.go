package kernel

import (
	"math"
	"math/rand/v2"
)

// subject is one operation over one type, with the functions that test it.
type subject struct {
	op   Op
	typ  Type
	size int

	fill   func(r *rand.Rand, b []byte)  // writes random operands, including special values
	oracle func(dst, left, right []byte) // computes the expected result element by element
	tidy   func(b []byte)                // clears bytes that the test does not compare; may be nil
}

var opNames = [ops]string{"sum", "prod", "min", "max", "band", "bor", "bxor", "land", "lor", "lxor", "minloc", "maxloc"}

var typeNames = [types]string{
	"int8", "int16", "int32", "int64", "int", "uint8", "uint16", "uint32", "uint64", "uint", "uintptr",
	"float32", "float64", "complex64", "complex128", "bool",
}

func (s subject) String() string { return opNames[s.op] + "/" + typeNames[s.typ] }

// subjects returns a subject for every kernel that must exist.
func subjects() []subject {
	var all []subject
	for _, some := range [][]subject{
		integers[int8](Int8), integers[int16](Int16), integers[int32](Int32), integers[int64](Int64), integers[int](Int),
		integers[uint8](Uint8), integers[uint16](Uint16), integers[uint32](Uint32), integers[uint64](Uint64),
		integers[uint](Uint), integers[uintptr](Uintptr), floats[float32](Float32), floats[float64](Float64),
		complexes(Complex64, func(re, im float64) complex64 { return complex(float32(re), float32(im)) }),
		complexes(Complex128, func(re, im float64) complex128 { return complex(re, im) }),
		bools(),
	} {
		all = append(all, some...)
	}
	return all
}

func newSubject[T any](op Op, typ Type, random func(*rand.Rand) T, f func(a, b T) T) subject {
	return subject{
		op: op, typ: typ, size: sizeOf[T](),
		fill: func(r *rand.Rand, b []byte) {
			v := view[T](b)
			for i := range v {
				v[i] = random(r)
			}
		},
		oracle: func(dst, left, right []byte) {
			d, l, r := view[T](dst), view[T](left), view[T](right)
			for i := range d {
				d[i] = f(l[i], r[i])
			}
		},
	}
}

func integers[T integer](typ Type) []subject {
	random := func(r *rand.Rand) T {
		switch v := T(r.Uint64()); r.IntN(4) {
		case 0:
			return v >> (4 * sizeOf[T]()) // small
		case 1:
			return T(r.IntN(3)) - 1
		case 2: // the least or the greatest value of a signed type, and the same bits of an unsigned one
			v = 1 << (8*sizeOf[T]() - 1)
			return v - T(r.IntN(2))
		default:
			return v
		}
	}
	few := func(r *rand.Rand) T { return T(r.IntN(2)) * random(r) }
	one := func(b bool) T {
		if b {
			return 1
		}
		return 0
	}
	return append(locs(typ, random),
		newSubject(Sum, typ, random, func(a, b T) T { return a + b }),
		newSubject(Prod, typ, random, func(a, b T) T { return a * b }),
		newSubject(Min, typ, random, func(a, b T) T {
			if a < b {
				return a
			}
			return b
		}),
		newSubject(Max, typ, random, func(a, b T) T {
			if a > b {
				return a
			}
			return b
		}),
		newSubject(Band, typ, random, func(a, b T) T { return a & b }),
		newSubject(Bor, typ, random, func(a, b T) T { return a | b }),
		newSubject(Bxor, typ, random, func(a, b T) T { return a ^ b }),
		newSubject(Land, typ, few, func(a, b T) T { return one(a != 0 && b != 0) }),
		newSubject(Lor, typ, few, func(a, b T) T { return one(a != 0 || b != 0) }),
		newSubject(Lxor, typ, few, func(a, b T) T { return one((a != 0) != (b != 0)) }),
	)
}

// anyFloat returns a random number or a special value, for example a zero, an infinity, a NaN or a
// subnormal number.
func anyFloat(r *rand.Rand) float64 {
	special := []float64{
		0, 1, math.Inf(1), math.NaN(), math.Float64frombits(0x7ff0000000000001 | r.Uint64()>>12), // any NaN, signalling ones too
		math.MaxFloat64, math.MaxFloat32, math.SmallestNonzeroFloat64, math.SmallestNonzeroFloat32, 0x1p-1022, 0x1p-126,
	}
	v := r.NormFloat64() * math.Exp2(float64(r.IntN(80)-40))
	if k := r.IntN(2 * len(special)); k < len(special) {
		v = special[k]
	}
	if r.IntN(2) == 0 {
		return math.Float64frombits(math.Float64bits(v) ^ 1<<63)
	}
	return v
}

// canonicalNaN returns v, or the one NaN that kernels yield if v is a NaN.
func canonicalNaN[T any](v T) T {
	switch p := any(&v).(type) {
	case *float32:
		if *p != *p {
			*p = math.Float32frombits(0x7fc00000)
		}
	case *float64:
		if *p != *p {
			*p = math.Float64frombits(0x7ff8000000000000)
		}
	}
	return v
}

func floats[T float](typ Type) []subject {
	random := func(r *rand.Rand) T {
		var v T
		if p, ok := any(&v).(*float32); ok && r.IntN(4) == 0 {
			// Any NaN, also a signalling one. It is made from its bits, because conversions yield quiet
			// NaNs.
			*p = math.Float32frombits(0x7f800001 | r.Uint32()&0x807fffff)
			return v
		}
		return T(anyFloat(r))
	}
	less := func(a, b T) bool { return a < b || a == b && math.Signbit(float64(a)) && !math.Signbit(float64(b)) }
	extreme := func(takeFirst func(a, b T) bool) func(a, b T) T {
		return func(a, b T) T {
			switch {
			case a != a || b != b:
				return canonicalNaN(T(math.NaN()))
			case takeFirst(a, b):
				return a
			}
			return b
		}
	}
	return append(locs(typ, random),
		newSubject(Sum, typ, random, func(a, b T) T { return canonicalNaN(a + b) }),
		newSubject(Prod, typ, random, func(a, b T) T { return canonicalNaN(a * b) }),
		newSubject(Min, typ, random, extreme(less)),
		newSubject(Max, typ, random, extreme(func(a, b T) bool { return less(b, a) })),
	)
}

func complexes[T complex64 | complex128](typ Type, parts func(re, im float64) T) []subject {
	random := func(r *rand.Rand) T { return parts(anyFloat(r), anyFloat(r)) }
	split := func(v T) (re, im float64) { return real(complex128(v)), imag(complex128(v)) }
	tidy := func(v T) T {
		re, im := split(v)
		return parts(canonicalNaN(re), canonicalNaN(im))
	}
	return []subject{
		newSubject(Sum, typ, random, func(a, b T) T { return tidy(a + b) }),
		newSubject(Prod, typ, random, func(a, b T) T {
			ar, ai := split(a)
			br, bi := split(b)
			// The conversions prevent that the compiler fuses the products with the sums.
			rr, ii, ri, ir := float64(ar*br), float64(ai*bi), float64(ar*bi), float64(ai*br)
			return tidy(parts(rr-ii, ri+ir))
		}),
	}
}

func bools() []subject {
	random := func(r *rand.Rand) bool { return r.IntN(2) == 0 }
	return []subject{
		newSubject(Land, Bool, random, func(a, b bool) bool { return a && b }),
		newSubject(Lor, Bool, random, func(a, b bool) bool { return a || b }),
		newSubject(Lxor, Bool, random, func(a, b bool) bool { return a != b }),
	}
}

// locs returns the subjects of MinLoc and MaxLoc. Their operands have many equal values and indices.
func locs[T ordered](typ Type, random func(*rand.Rand) T) []subject {
	pair := func(r *rand.Rand) Pair[T] {
		if r.IntN(2) == 0 {
			return Pair[T]{T(r.IntN(3)), r.IntN(3)}
		}
		return Pair[T]{random(r), r.IntN(3) - 1}
	}
	choose := func(better func(a, b T) bool) func(a, b Pair[T]) Pair[T] {
		return func(a, b Pair[T]) Pair[T] {
			aNaN, bNaN := a.Value != a.Value, b.Value != b.Value
			best := b
			switch {
			case !aNaN && !bNaN && better(a.Value, b.Value), aNaN && !bNaN:
				best = a
			case !aNaN && !bNaN && better(b.Value, a.Value), bNaN && !aNaN:
			case a.Index < b.Index:
				best = a
			case a.Index == b.Index:
				best.Value = min(a.Value, b.Value)
			}
			return Pair[T]{canonicalNaN(best.Value), best.Index}
		}
	}
	some := []subject{
		newSubject(MinLoc, typ, pair, choose(func(a, b T) bool { return a < b })),
		newSubject(MaxLoc, typ, pair, choose(func(a, b T) bool { return a > b })),
	}
	for i := range some {
		some[i].tidy = func(b []byte) {
			v := view[Pair[T]](b)
			for i, p := range v {
				clear(b[i*some[0].size:][:some[0].size])
				v[i].Value, v[i].Index = p.Value, p.Index
			}
		}
	}
	return some
}
