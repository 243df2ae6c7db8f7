package kernel

import "math"

// The loops in Go define the result of each kernel. A loop runs if the kernel has no assembly for
// the processor, or if the operands are shorter than a register. Each loop is dst[i] = left[i] ∘
// right[i].

type integer interface {
	int8 | int16 | int32 | int64 | int | uint8 | uint16 | uint32 | uint64 | uint | uintptr
}

type float interface{ float32 | float64 }

type ordered interface{ integer | float }

type loop = func(dst, left, right []byte)

// canonical returns v, or the one NaN that kernels yield if v is a NaN.
func canonical[T float](v T) T {
	if v != v {
		return T(math.Float64frombits(0x7ff8000000000000))
	}
	return v
}

func sumInts[T integer](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = l[i] + r[i]
	}
}

func sumFloats[T float](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = canonical(l[i] + r[i])
	}
}

func prodInts[T integer](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = l[i] * r[i]
	}
}

func prodFloats[T float](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = canonical(l[i] * r[i])
	}
}

// prodComplex computes the product with explicit conversions. Go permits compilers to fuse a
// multiplication with an addition, except across a conversion.
func prodComplex[C complex64 | complex128](dst, left, right []byte) {
	d, l, r := views[C](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		x, y := complex128(l[i]), complex128(r[i])
		re := float64(real(x)*real(y)) - float64(imag(x)*imag(y))
		im := float64(real(x)*imag(y)) + float64(imag(x)*real(y))
		d[i] = C(complex(canonical(re), canonical(im)))
	}
}

func minInts[T integer](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = min(l[i], r[i])
	}
}

func minFloats[T float](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = canonical(min(l[i], r[i]))
	}
}

func maxInts[T integer](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = max(l[i], r[i])
	}
}

func maxFloats[T float](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = canonical(max(l[i], r[i]))
	}
}

func land[T integer](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = truth[T](l[i] != 0 && r[i] != 0)
	}
}

func lor[T integer](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = truth[T](l[i]|r[i] != 0)
	}
}

func lxor[T integer](dst, left, right []byte) {
	d, l, r := views[T](dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = truth[T]((l[i] != 0) != (r[i] != 0))
	}
}

func truth[T integer](b bool) T {
	if b {
		return 1
	}
	return 0
}
