package bytecopy

import "unsafe"

// overwrites says whether a copy from the front would change bytes of src that it
// has yet to read. The two are of one length.
func overwrites(dst, src []byte) bool {
	d, s := uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(unsafe.Pointer(unsafe.SliceData(src)))
	return d > s && d < s+uintptr(len(src))
}
