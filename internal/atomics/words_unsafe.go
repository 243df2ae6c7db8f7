package atomics

import "unsafe"

// Aligned reports whether the address of b is a multiple of n, a power of two.
func Aligned(b []byte, n int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(n-1) == 0
}

// Word64 returns the word at the start of b. b is aligned for it.
func Word64(b []byte) *uint64 {
	b = b[:8:len(b)] // checks the length without a load, which would not be atomic
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
}

// Word32 is [Word64] for a word of 4 bytes.
func Word32(b []byte) *uint32 {
	b = b[:4:len(b)]
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b)))
}

// wordAround returns the aligned 4-byte word that contains the first byte of b, and the offset of
// that byte in the word. The word is in the same page as that byte. The caller must not change the
// word's other bytes.
func wordAround(b []byte) (word *uint32, at int) {
	p := unsafe.Pointer(&b[0])
	at = int(uintptr(p) & 3)
	return (*uint32)(unsafe.Add(p, -at)), at
}
