package rma

import (
	"sync/atomic"
	"unsafe"
)

// alignedBytes allocates n zeroed bytes that begin at a cache line.
func alignedBytes(n int) []byte {
	const line = 64
	b := make([]byte, n+line)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (line - 1))
	return b[skip : skip+n : skip+n]
}

// boardOf is the board of n ranks that lies in mem, which begins at a cache line
// and has boardSize(n) bytes.
func boardOf(mem []byte, n int) board {
	mem = mem[:boardSize(n)]
	p := unsafe.Pointer(unsafe.SliceData(mem))
	return board{
		boardHead: (*boardHead)(p),
		stands:    unsafe.Slice((*atomic.Uint64)(unsafe.Add(p, boardHeadSize)), n),
	}
}
