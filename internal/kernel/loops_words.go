package kernel

// Loops that process eight bytes at a time, if all operands are aligned to eight bytes. The bitwise
// loops serve elements of any size.

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

// sumSmall adds the eight or four small integers of a word at once. It adds them without their high
// bits, so that no carry reaches the next integer, and then adds the high bits without carry.
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
