package transporttest

import (
	"sync/atomic"
	"unsafe"
)

// wordAt returns the word at an offset of mem. mem is aligned to a page, and the offset to a word.
func wordAt(mem []byte, at int) *atomic.Uint64 {
	_ = mem[at : at+8]
	return (*atomic.Uint64)(unsafe.Pointer(&mem[at]))
}
