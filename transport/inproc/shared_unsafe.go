package inproc

import "unsafe"

// alignedBytes allocates n zeroed bytes that begin at a page.
func alignedBytes(n int) []byte {
	b := make([]byte, n+pageSize)
	off := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (pageSize - 1)
	return b[off : off+n : off+n]
}
