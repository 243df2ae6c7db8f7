package atomics

import "unsafe"

// Aligned says whether b begins at a multiple of n bytes, a power of two.
func Aligned(b []byte, n int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(n-1) == 0
}

// Word64 is the word at the start of b, which is aligned for it.
func Word64(b []byte) *uint64 {
	b = b[:8:len(b)] // no load, which would be one that is not atomic
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
}

// Word32 is the same of half the size.
func Word32(b []byte) *uint32 {
	b = b[:4:len(b)]
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b)))
}

// wordAround is the aligned word of four bytes that b's first byte is in, and
// which of them that is. The word is in the page of that byte, and the bytes
// beside it keep their values.
func wordAround(b []byte) (word *uint32, at int) {
	p := unsafe.Pointer(&b[0])
	at = int(uintptr(p) & 3)
	return (*uint32)(unsafe.Add(p, -at)), at
}
