package bytecopy

import "unsafe"

// overwrites reports whether a copy from the front would change bytes of src before it reads them.
// dst and src have the same length.
func overwrites(dst, src []byte) bool {
	d, s := uintptr(unsafe.Pointer(unsafe.SliceData(dst))), uintptr(unsafe.Pointer(unsafe.SliceData(src)))
	return d > s && d < s+uintptr(len(src))
}
