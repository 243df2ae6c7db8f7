//go:build !amd64

package shm

import "unsafe"

func prefetchWrite(unsafe.Pointer, uintptr) {}
func prefetchRead(unsafe.Pointer, uintptr)  {}
