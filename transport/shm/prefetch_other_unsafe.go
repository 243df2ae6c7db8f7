//go:build linux && !amd64 && !portable

package shm

import "unsafe"

func prefetchWrite(unsafe.Pointer, uintptr) {}
func prefetchRead(unsafe.Pointer, uintptr)  {}
