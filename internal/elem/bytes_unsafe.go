package elem

import "unsafe"

// Bytes returns the memory of s as bytes. It is called for types without
// pointers only; padding is carried along.
func Bytes[T any](s []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(t)))
}

// SizeOf returns the bytes of an element.
func SizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}

// One is what p points to as a slice.
func One[T any](p *T) []T { return unsafe.Slice(p, 1) }

// Slice is the reverse of Bytes: b must be aligned for T, which every
// slice made by Bytes or AlignedBytes is at multiples of T's size.
func Slice[T any](b []byte) []T {
	var t T
	size := int(unsafe.Sizeof(t))
	if size == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/size)
}

// AlignedBytes allocates n bytes aligned for any element type: a cache line.
func AlignedBytes(n int) []byte {
	const line = 64
	b := make([]byte, n+line)
	skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) & (line - 1))
	return b[skip : skip+n : skip+n]
}

// SameStart says whether two slices begin at the same byte.
func SameStart(a, b []byte) bool {
	return len(a) > 0 && len(b) > 0 && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// Overlap says whether two slices share memory.
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

// Word are the bits of an element of 4 or 8 bytes; of others 0.
func Word[T any](v T) uint64 {
	switch unsafe.Sizeof(v) {
	case 8:
		return *(*uint64)(unsafe.Pointer(&v))
	case 4:
		return uint64(*(*uint32)(unsafe.Pointer(&v)))
	}
	return 0
}

// FromWord is the reverse of Word.
func FromWord[T any](bits uint64) (v T) {
	switch unsafe.Sizeof(v) {
	case 8:
		*(*uint64)(unsafe.Pointer(&v)) = bits
	case 4:
		*(*uint32)(unsafe.Pointer(&v)) = uint32(bits)
	}
	return v
}

// Buffer is memory that holds elements of one type: MPI's address, count and datatype.
type Buffer struct {
	data  *byte
	Count int // elements
	Type  *Type
}

// View returns the buffer of the elements of s.
func View[T any](s []T) Buffer {
	return Buffer{(*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s), Of[T]()}
}

// Raw returns the buffer of the bytes of b, which match elements of any type.
func Raw(b []byte) Buffer { return View(b) }

// At returns the buffer of n elements of type t that lie in b.
func At(b []byte, n int, t *Type) Buffer { return Buffer{unsafe.SliceData(b), n, t} }

// IsNil reports whether the buffer is that of a nil slice.
func (b Buffer) IsNil() bool { return b.data == nil }

// Bytes returns the memory of the buffer. Elements that hold pointers have none.
func (b Buffer) Bytes() []byte { return unsafe.Slice(b.data, b.Count*b.Type.Size) }
