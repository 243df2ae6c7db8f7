package inproc

import "unsafe"

// alignedBytes allocates n zeroed bytes at an address that is a multiple of pageSize.
func alignedBytes(n int) []byte {
	b := make([]byte, n+pageSize)
	off := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (pageSize - 1)
	return b[off : off+n : off+n]
}
