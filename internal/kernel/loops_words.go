package kernel

// Loops that take eight bytes at a time, whatever the elements are.

func andBits(dst, left, right []byte) {
	d, l, r, done := words(dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = l[i] & r[i]
	}
	for i := done; i < len(dst); i++ {
		dst[i] = left[i] & right[i]
	}
}

func orBits(dst, left, right []byte) {
	d, l, r, done := words(dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = l[i] | r[i]
	}
	for i := done; i < len(dst); i++ {
		dst[i] = left[i] | right[i]
	}
}

func xorBits(dst, left, right []byte) {
	d, l, r, done := words(dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = l[i] ^ r[i]
	}
	for i := done; i < len(dst); i++ {
		dst[i] = left[i] ^ right[i]
	}
}

// sumSmall adds eight or four small integers in one word: the high bit of each
// is kept out of the addition, so that no carry crosses a border, and put in
// afterwards.
func sumSmall[T int8 | uint8 | int16 | uint16](dst, left, right []byte) {
	high := uint64(0x8080808080808080)
	if sizeOf[T]() == 2 {
		high = 0x8000800080008000
	}
	d, l, r, done := words(dst, left, right)
	l, r = l[:len(d)], r[:len(d)]
	for i := range d {
		d[i] = ((l[i] &^ high) + (r[i] &^ high)) ^ ((l[i] ^ r[i]) & high)
	}
	sumInts[T](dst[done:], left[done:], right[done:])
}
