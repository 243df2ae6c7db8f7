package shm

import "unsafe"

// at gives the T that lies at an offset of mapped memory, which is aligned for
// it and goes on for as long as it is.
func at[T any](mem []byte, off int64) *T {
	var t T
	_ = mem[off : off+int64(unsafe.Sizeof(t))]
	return (*T)(unsafe.Pointer(&mem[off]))
}

// view gives mapped memory as as many T as it has room for.
func view[T any](mem []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(t)))
}
