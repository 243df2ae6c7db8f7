package rma

import (
	"sync/atomic"
	"unsafe"
)

// alignedBytes allocates n zeroed bytes, aligned to a cache line.
func alignedBytes(n int) []byte {
	const line = 64
	b := make([]byte, n+line)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (line - 1))
	return b[skip : skip+n : skip+n]
}

// lockTableOf returns the lock table of n ranks in mem. mem is aligned to a cache line and has at
// least lockTableSize(n) bytes.
func lockTableOf(mem []byte, n int) lockTable {
	mem = mem[:lockTableSize(n)]
	p := unsafe.Pointer(unsafe.SliceData(mem))
	return lockTable{
		lockTableHead: (*lockTableHead)(p),
		states:        unsafe.Slice((*atomic.Uint64)(unsafe.Add(p, lockTableHeadSize)), n),
	}
}

// addressOf returns the address of the first byte of b.
func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// wordOf returns the word of a slot in the table of a rank's regions.
func wordOf(table []byte, slot int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(unsafe.SliceData(table[8*slot : 8*slot+8])))
}
