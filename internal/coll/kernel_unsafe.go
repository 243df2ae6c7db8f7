package coll

import "unsafe"

// view reads b as elements of T; a part that is no whole element is left out.
// b is aligned for T.
func view[T any](b []byte) []T {
	n := len(b) / sizeOf[T]()
	if n == 0 {
		return nil // less than an element: its pointer would reach out of the memory
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

func sizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}

// scratchInts is scratch memory of n ints.
func scratchInts(l Link, n int) []int { return view[int](l.Scratch(n * sizeOf[int]())) }
