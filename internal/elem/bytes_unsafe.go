package elem

import "unsafe"

// Bytes returns the memory of s as bytes, including the padding of elements. T must not hold
// pointers.
func Bytes[T any](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}

// SizeOf returns the size of an element in bytes.
func SizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}

// One returns a slice of the one element that p points to.
func One[T any](p *T) []T { return unsafe.Slice(p, 1) }

// Slice returns the memory of b as elements of T; it is the inverse of Bytes. If T has size 0,
// Slice returns nil. b must be aligned for T: it must begin a multiple of T's size after the start
// of a slice that Bytes (of a []T) or AlignedBytes has returned.
func Slice[T any](b []byte) []T {
	var t T
	size := int(unsafe.Sizeof(t))
	if size == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/size)
}

// AlignedBytes allocates n bytes, aligned to a cache line and so for any element type.
func AlignedBytes(n int) []byte {
	const line = 64
	b := make([]byte, n+line)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (line - 1))
	return b[skip : skip+n : skip+n]
}

// SameStart reports whether two slices begin at the same byte. It returns false if one is empty.
func SameStart(a, b []byte) bool {
	return len(a) > 0 && len(b) > 0 && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// Overlap reports whether two slices share memory.
func Overlap(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	aFrom, aTo := Bounds(a)
	bFrom, bTo := Bounds(b)
	return aFrom < bTo && bFrom < aTo
}

// Bounds returns the addresses of the first byte of b and of the byte after the last.
func Bounds(b []byte) (from, to uintptr) {
	from = uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return from, from + uintptr(len(b))
}

// Word returns the bits of v, an element of 4 or 8 bytes. For other sizes it returns 0.
func Word[T any](v T) uint64 {
	switch unsafe.Sizeof(v) {
	case 8:
		return *(*uint64)(unsafe.Pointer(&v))
	case 4:
		return uint64(*(*uint32)(unsafe.Pointer(&v)))
	}
	return 0
}

// FromWord is the inverse of Word. It returns the zero value of types that do not have 4 or 8
// bytes.
func FromWord[T any](bits uint64) (v T) {
	switch unsafe.Sizeof(v) {
	case 8:
		*(*uint64)(unsafe.Pointer(&v)) = bits
	case 4:
		*(*uint32)(unsafe.Pointer(&v)) = uint32(bits)
	}
	return v
}

// Buffer is memory that holds elements of one type: MPI's address, count and datatype. If the type
// has a Layout, the data is only a part of the memory.
type Buffer struct {
	data  *byte // the first byte; nil: the buffer was made from a nil slice
	Count int   // number of elements of the memory
	Type  *Type // of the elements; nil in the zero Buffer, which stands for no buffer
}

// View returns a Buffer for the memory of s.
func View[T any](s []T) Buffer {
	return Buffer{(*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s), Of[T]()}
}

// Raw returns a Buffer for the memory of b as bytes, which match elements of any type.
func Raw(b []byte) Buffer { return View(b) }

// At returns a Buffer for n elements of type t, whose memory is b.
func At(b []byte, n int, t *Type) Buffer { return Buffer{unsafe.SliceData(b), n, t} }

// IsNil reports whether the buffer was made from a nil slice.
func (b Buffer) IsNil() bool { return b.data == nil }

// Bytes returns the memory of the buffer. The elements must not hold pointers.
func (b Buffer) Bytes() []byte { return unsafe.Slice(b.data, b.Count*b.Type.Size) }
