package kernel

import "unsafe"

// view reads b as elements of T; a part that is no whole element is left out.
// b is aligned for T, or the processor does not care.
func view[T any](b []byte) []T {
	n := len(b) / sizeOf[T]()
	if n == 0 {
		return nil // less than an element: its pointer would reach out of the memory
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// views are three views of the same number of elements.
func views[T any](dst, left, right []byte) (d, l, r []T) {
	n := min(len(dst), len(left), len(right))
	return view[T](dst[:n]), view[T](left[:n]), view[T](right[:n])
}

// words are three views of as many words as there are, and their bytes; none
// where they are not aligned.
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
