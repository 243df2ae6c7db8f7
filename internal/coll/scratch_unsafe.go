package coll

import "unsafe"

// scratchInts is scratch memory of n ints.
func scratchInts(l Link, n int) []int {
	if n == 0 {
		return nil
	}
	const size = int(unsafe.Sizeof(int(0)))
	return unsafe.Slice((*int)(unsafe.Pointer(unsafe.SliceData(l.Scratch(n*size)))), n)
}
