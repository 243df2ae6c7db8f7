package transporttest

import (
	"sync/atomic"
	"unsafe"
)

// wordAt returns the 8-byte word at an offset of mem. The caller must pass memory that is aligned
// to a page, and an offset that is a multiple of 8.
func wordAt(mem []byte, at int) *atomic.Uint64 {
	_ = mem[at : at+8]
	return (*atomic.Uint64)(unsafe.Pointer(&mem[at]))
}
