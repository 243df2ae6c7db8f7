//go:build linux && !portable

package shm

import (
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/weft-hpc/weft/internal/bytecopy"
)

// at returns the T at an offset of mapped memory. off must be aligned for T; at panics if
// T does not fit into mem there.
func at[T any](mem []byte, off int64) *T {
	var t T
	_ = mem[off : off+int64(unsafe.Sizeof(t))]
	return (*T)(unsafe.Pointer(&mem[off]))
}

// view returns mapped memory as a slice of T, with as many elements as mem has room for.
func view[T any](mem []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(t)))
}

// storePlain stores v without a barrier. Other cores see the store before any atomic store
// that the caller makes afterwards.
func storePlain(p *atomic.Uint64, v uint64) { *(*uint64)(unsafe.Pointer(p)) = v }

// fromPage returns the whole mapping that mapFile has made for mem. The mapping begins at the start
// of the page that holds the first byte of mem.
func fromPage(mem []byte) []byte {
	p := unsafe.SliceData(mem)
	skip := int(uintptr(unsafe.Pointer(p)) & uintptr(os.Getpagesize()-1))
	return unsafe.Slice((*byte)(unsafe.Add(unsafe.Pointer(p), -skip)), len(mem)+skip)
}

// own prefetches b, which is not empty, for writing, after another core has read or written it.
//
// Hot path: no allocation.
func own(b []byte) { bytecopy.PrefetchWrite(unsafe.SliceData(b), len(b)) }

// fetchLines prefetches b, which is not empty, for reading, after another core has written it.
//
// Hot path: no allocation.
func fetchLines(b []byte) { bytecopy.PrefetchRead(unsafe.SliceData(b), len(b)) }
