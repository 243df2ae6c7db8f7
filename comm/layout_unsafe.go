package comm

import "unsafe"

// bytesView returns the memory of s as bytes. It is called for types without
// pointers only; padding is carried along.
func bytesView[T any](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}

// sizeOf returns the bytes of an element.
func sizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}

// one is what p points to as a slice.
func one[T any](p *T) []T { return unsafe.Slice(p, 1) }

// elemsView is the reverse of bytesView: b must be aligned for T, which every
// slice made by bytesView or alignedBytes is at multiples of T's size.
func elemsView[T any](b []byte) []T {
	var t T
	size := int(unsafe.Sizeof(t))
	if size == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/size)
}

// alignedBytes allocates n bytes aligned for any element type: a cache line.
func alignedBytes(n int) []byte {
	const line = 64
	b := make([]byte, n+line)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (line - 1))
	return b[skip : skip+n : skip+n]
}

// sameStart says whether two slices begin at the same byte.
func sameStart(a, b []byte) bool {
	return len(a) > 0 && len(b) > 0 && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// overlap says whether two slices share memory.
func overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	aFrom, aTo := bounds(a)
	bFrom, bTo := bounds(b)
	return aFrom < bTo && bFrom < aTo
}

// bounds returns the addresses of the first byte of b and of the byte after the last.
func bounds(b []byte) (from, to uintptr) {
	from = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return from, from + uintptr(len(b))
}
