package engine

import (
	"sync/atomic"
	"unsafe"
)

// words returns mem as words of a cache line each.
func words(mem []byte) []word {
	return unsafe.Slice((*word)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(word{})))
}

type word struct {
	atomic.Uint64
	_ [56]byte
}
