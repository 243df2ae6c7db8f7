//go:build linux && !portable

package shm

import (
	"os"
	"sync/atomic"
	"unsafe"
)

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

// storePlain stores without a barrier of its own. It is seen before whatever
// the caller stores atomically afterwards.
func storePlain(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }

// fromPage gives a mapping back whose beginning mapFile has cut off.
func fromPage(mem []byte) []byte {
	p := unsafe.SliceData(mem)
	skip := int(uintptr(unsafe.Pointer(p)) & uintptr(os.Getpagesize()-1))
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(p), -skip)), len(mem)+skip)
}

// own prepares to write b, which another core has read or written last.
//
// Hot path: no allocation.
func own(b []byte) { prefetchWrite(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b))) }

// fetchLines prepares to read b, which another core has written.
//
// Hot path: no allocation.
func fetchLines(b []byte) { prefetchRead(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b))) }
