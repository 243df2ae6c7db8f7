package rma

import (
	"sync/atomic"
	"unsafe"
)

// aligned says whether b begins at a multiple of align.
func aligned(b []byte, align int) bool {
	return align <= 1 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(align) == 0
}

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

// word64 is the word at the start of b, which is aligned for it.
func word64(b []byte) *uint64 {
	b = b[:8]
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
}

// word32 is the same of half the size.
func word32(b []byte) *uint32 {
	b = b[:4]
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b)))
}
