package shm

import "unsafe"

// aligned says whether b begins at a multiple of n, a power of two.
func aligned(b []byte, n int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(n-1) == 0
}

// word32 is b's first four bytes, which are aligned.
func word32(b []byte) *uint32 { return (*uint32)(unsafe.Pointer(&b[0])) }

// word64 is b's first eight bytes, which are aligned.
func word64(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[0])) }

// wordAround is the aligned word of four bytes that b's first byte is in, and
// which of them that is. The word is in the page of that byte, and the bytes
// beside it keep their values.
func wordAround(b []byte) (word *uint32, at int) {
	p := unsafe.Pointer(&b[0])
	at = int(uintptr(p) & 3)
	return (*uint32)(unsafe.Add(p, -at)), at
}
