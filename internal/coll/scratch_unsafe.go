package coll

import "unsafe"

// scratchInts returns n ints, of undefined values, of the link's scratch memory.
func scratchInts(l Link, n int) []int {
	if n == 0 {
		return nil
	}
	const size = int(unsafe.Sizeof(int(0)))
	return unsafe.Slice((*int)(unsafe.Pointer(unsafe.SliceData(l.Scratch(n*size)))), n)
}
