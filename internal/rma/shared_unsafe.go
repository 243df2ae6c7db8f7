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
