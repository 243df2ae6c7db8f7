package engine

import (
	"sync/atomic"
	"unsafe"
)

// words returns the memory mem as a slice of words, each in a cache line of its own.
func words(mem []byte) []word {
	return unsafe.Slice((*word)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(word{})))
}

// word is a number of 64 bits that fills a cache line.
type word struct {
	atomic.Uint64
	_ [56]byte
}
