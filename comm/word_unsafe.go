package comm

import "unsafe"

// wordOf are the bits of an element of 4 or 8 bytes; of others 0.
func wordOf[T any](v T) uint64 {
	switch unsafe.Sizeof(v) {
	case 8:
		return *(*uint64)(unsafe.Pointer(&v))
	case 4:
		return uint64(*(*uint32)(unsafe.Pointer(&v)))
	}
	return 0
}

// ofWord is the reverse of wordOf.
func ofWord[T any](bits uint64) (v T) {
	switch unsafe.Sizeof(v) {
	case 8:
		*(*uint64)(unsafe.Pointer(&v)) = bits
	case 4:
		*(*uint32)(unsafe.Pointer(&v)) = uint32(bits)
	}
	return v
}
