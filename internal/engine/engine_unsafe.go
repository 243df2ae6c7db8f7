package engine

import "unsafe"

// address returns the address of b's first byte.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
