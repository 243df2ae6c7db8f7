package coll

// The loops of the kernels: inout[i] = in[i] ∘ inout[i]. They run over arrays
// of eight, so that bounds are checked once per eight elements and loads, adds
// and stores of several elements are under way at once; sums then run at the
// speed of memory (BenchmarkKernel).

type integer interface {
	int8 | int16 | int32 | int64 | int | uint8 | uint16 | uint32 | uint64 | uint | uintptr
}

type ordered interface {
	integer | float32 | float64
}

type number interface {
	ordered | complex64 | complex128
}

func sum[T number](inout, in []byte) {
	d, s := view[T](inout), view[T](in)
	for len(d) >= 8 && len(s) >= 8 {
		x, y := (*[8]T)(d), (*[8]T)(s)
		x[0] = y[0] + x[0]
		x[1] = y[1] + x[1]
		x[2] = y[2] + x[2]
		x[3] = y[3] + x[3]
		x[4] = y[4] + x[4]
		x[5] = y[5] + x[5]
		x[6] = y[6] + x[6]
		x[7] = y[7] + x[7]
		d, s = d[8:], s[8:]
	}
	for i := range min(len(d), len(s)) {
		d[i] = s[i] + d[i]
	}
}

func prod[T number](inout, in []byte) {
	d, s := view[T](inout), view[T](in)
	for len(d) >= 8 && len(s) >= 8 {
		x, y := (*[8]T)(d), (*[8]T)(s)
		x[0] = y[0] * x[0]
		x[1] = y[1] * x[1]
		x[2] = y[2] * x[2]
		x[3] = y[3] * x[3]
		x[4] = y[4] * x[4]
		x[5] = y[5] * x[5]
		x[6] = y[6] * x[6]
		x[7] = y[7] * x[7]
		d, s = d[8:], s[8:]
	}
	for i := range min(len(d), len(s)) {
		d[i] = s[i] * d[i]
	}
}

func least[T ordered](inout, in []byte) {
	d, s := view[T](inout), view[T](in)
	for len(d) >= 8 && len(s) >= 8 {
		x, y := (*[8]T)(d), (*[8]T)(s)
		x[0] = min(y[0], x[0])
		x[1] = min(y[1], x[1])
		x[2] = min(y[2], x[2])
		x[3] = min(y[3], x[3])
		x[4] = min(y[4], x[4])
		x[5] = min(y[5], x[5])
		x[6] = min(y[6], x[6])
		x[7] = min(y[7], x[7])
		d, s = d[8:], s[8:]
	}
	for i := range min(len(d), len(s)) {
		d[i] = min(s[i], d[i])
	}
}

func most[T ordered](inout, in []byte) {
	d, s := view[T](inout), view[T](in)
	for len(d) >= 8 && len(s) >= 8 {
		x, y := (*[8]T)(d), (*[8]T)(s)
		x[0] = max(y[0], x[0])
		x[1] = max(y[1], x[1])
		x[2] = max(y[2], x[2])
		x[3] = max(y[3], x[3])
		x[4] = max(y[4], x[4])
		x[5] = max(y[5], x[5])
		x[6] = max(y[6], x[6])
		x[7] = max(y[7], x[7])
		d, s = d[8:], s[8:]
	}
	for i := range min(len(d), len(s)) {
		d[i] = max(s[i], d[i])
	}
}

func land[T integer](inout, in []byte) {
	d, s := view[T](inout), view[T](in)
	for i := range min(len(d), len(s)) {
		d[i] = truth[T](d[i] != 0 && s[i] != 0)
	}
}

func lor[T integer](inout, in []byte) {
	d, s := view[T](inout), view[T](in)
	for i := range min(len(d), len(s)) {
		d[i] = truth[T](d[i]|s[i] != 0)
	}
}

func lxor[T integer](inout, in []byte) {
	d, s := view[T](inout), view[T](in)
	for i := range min(len(d), len(s)) {
		d[i] = truth[T]((d[i] != 0) != (s[i] != 0))
	}
}

func truth[T integer](b bool) T {
	if b {
		return 1
	}
	return 0
}

func minLoc[T ordered](inout, in []byte) {
	d, s := view[Pair[T]](inout), view[Pair[T]](in)
	for i := range min(len(d), len(s)) {
		x, y := &d[i], &s[i]
		if beats(y.Value, x.Value, y.Value < x.Value, y.Index < x.Index) {
			*x = *y
		} else if x.Value == y.Value && x.Index == y.Index {
			x.Value = min(x.Value, y.Value) // -0 from whichever side
		}
	}
}

func maxLoc[T ordered](inout, in []byte) {
	d, s := view[Pair[T]](inout), view[Pair[T]](in)
	for i := range min(len(d), len(s)) {
		x, y := &d[i], &s[i]
		if beats(y.Value, x.Value, y.Value > x.Value, y.Index < x.Index) {
			*x = *y
		} else if x.Value == y.Value && x.Index == y.Index {
			x.Value = min(x.Value, y.Value) // -0 from whichever side
		}
	}
}

// beats tells whether y replaces x: it is better, or equal and earlier. NaN,
// the only value that differs from itself, is better than all numbers.
func beats[T ordered](y, x T, better, earlier bool) bool {
	yNaN, xNaN := y != y, x != x
	switch {
	case yNaN || xNaN:
		return yNaN && (!xNaN || earlier)
	case y == x:
		return earlier
	}
	return better
}

// addBytes and addHalves add 8 or 4 small integers in one 64-bit word: the
// high bit of each is kept out of the addition, so that no carry crosses a
// border, and put in afterwards.

func addBytes(inout, in []byte) {
	done := addLanes(inout, in, 0x8080808080808080)
	sum[uint8](inout[done:], in[done:])
}

func addHalves(inout, in []byte) {
	done := addLanes(inout, in, 0x8000800080008000)
	sum[uint16](inout[done:], in[done:])
}

// addLanes adds all whole words and returns how many bytes these are. Words
// need not be aligned here and in the bit operations.
func addLanes(inout, in []byte, high uint64) int {
	d, s := view[uint64](inout), view[uint64](in)
	words := min(len(d), len(s))
	for len(d) >= 4 && len(s) >= 4 {
		x, y := (*[4]uint64)(d), (*[4]uint64)(s)
		x[0] = ((x[0] &^ high) + (y[0] &^ high)) ^ ((x[0] ^ y[0]) & high)
		x[1] = ((x[1] &^ high) + (y[1] &^ high)) ^ ((x[1] ^ y[1]) & high)
		x[2] = ((x[2] &^ high) + (y[2] &^ high)) ^ ((x[2] ^ y[2]) & high)
		x[3] = ((x[3] &^ high) + (y[3] &^ high)) ^ ((x[3] ^ y[3]) & high)
		d, s = d[4:], s[4:]
	}
	for i := range min(len(d), len(s)) {
		d[i] = ((d[i] &^ high) + (s[i] &^ high)) ^ ((d[i] ^ s[i]) & high)
	}
	return 8 * words
}

func andBits(inout, in []byte) {
	d, s := view[uint64](inout), view[uint64](in)
	done := 8 * min(len(d), len(s))
	for len(d) >= 8 && len(s) >= 8 {
		x, y := (*[8]uint64)(d), (*[8]uint64)(s)
		x[0] &= y[0]
		x[1] &= y[1]
		x[2] &= y[2]
		x[3] &= y[3]
		x[4] &= y[4]
		x[5] &= y[5]
		x[6] &= y[6]
		x[7] &= y[7]
		d, s = d[8:], s[8:]
	}
	for i := range min(len(d), len(s)) {
		d[i] &= s[i]
	}
	inout, in = inout[done:], in[done:]
	for i := range min(len(inout), len(in)) {
		inout[i] &= in[i]
	}
}

func orBits(inout, in []byte) {
	d, s := view[uint64](inout), view[uint64](in)
	done := 8 * min(len(d), len(s))
	for len(d) >= 8 && len(s) >= 8 {
		x, y := (*[8]uint64)(d), (*[8]uint64)(s)
		x[0] |= y[0]
		x[1] |= y[1]
		x[2] |= y[2]
		x[3] |= y[3]
		x[4] |= y[4]
		x[5] |= y[5]
		x[6] |= y[6]
		x[7] |= y[7]
		d, s = d[8:], s[8:]
	}
	for i := range min(len(d), len(s)) {
		d[i] |= s[i]
	}
	inout, in = inout[done:], in[done:]
	for i := range min(len(inout), len(in)) {
		inout[i] |= in[i]
	}
}

func xorBits(inout, in []byte) {
	d, s := view[uint64](inout), view[uint64](in)
	done := 8 * min(len(d), len(s))
	for len(d) >= 8 && len(s) >= 8 {
		x, y := (*[8]uint64)(d), (*[8]uint64)(s)
		x[0] ^= y[0]
		x[1] ^= y[1]
		x[2] ^= y[2]
		x[3] ^= y[3]
		x[4] ^= y[4]
		x[5] ^= y[5]
		x[6] ^= y[6]
		x[7] ^= y[7]
		d, s = d[8:], s[8:]
	}
	for i := range min(len(d), len(s)) {
		d[i] ^= s[i]
	}
	inout, in = inout[done:], in[done:]
	for i := range min(len(inout), len(in)) {
		inout[i] ^= in[i]
	}
}
