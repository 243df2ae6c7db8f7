package atomics

import "unsafe"

// Aligned reports whether the address of b is a multiple of n, a power of two.
func Aligned(b []byte, n int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))&uintptr(n-1) == 0
}

// Word64 returns the 8-byte word at the start of b. b is aligned to 8 bytes. If b is shorter,
// Word64 panics.
func Word64(b []byte) *uint64 {
	b = b[:8:len(b)] // checks the length without a load, which would not be atomic
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b)))
}

// Word32 is [Word64] for a word of 4 bytes.
func Word32(b []byte) *uint32 {
	b = b[:4:len(b)]
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(b)))
}
