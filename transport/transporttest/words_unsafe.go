package transporttest

import (
	"sync/atomic"
	"unsafe"
)

// wordAt is the word at an offset of memory that begins at a page.
func wordAt(mem []byte, at int) *atomic.Uint64 {
	_ = mem[at : at+8]
	return (*atomic.Uint64)(unsafe.Pointer(&mem[at]))
}
