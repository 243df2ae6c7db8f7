package kernel

import "unsafe"

// view returns b as a slice of T, without the bytes after the last whole element. The caller
// ensures that b is aligned for T, unless the processor permits unaligned access.
func view[T any](b []byte) []T {
	n := len(b) / sizeOf[T]()
	if n == 0 {
		return nil // a *T to less than one element would point beyond the memory
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// views returns the three slices as elements of T, all with the number of elements of the shortest.
func views[T any](dst, left, right []byte) (d, l, r []T) {
	n := min(len(dst), len(left), len(right))
	return view[T](dst[:n]), view[T](left[:n]), view[T](right[:n])
}

// words returns the three slices as whole 8-byte words, and the number of bytes of each slice that
// the words cover. If a slice is not aligned to 8 bytes, words returns no words.
func words(dst, left, right []byte) (d, l, r []uint64, done int) {
	at := func(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
	if (at(dst)|at(left)|at(right))%8 != 0 {
		return nil, nil, nil, 0
	}
	d, l, r = views[uint64](dst, left, right)
	return d, l, r, 8 * len(d)
}

func sizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}
