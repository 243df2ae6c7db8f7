package rma

import "unsafe"

// aligned says whether b begins at a multiple of align.
func aligned(b []byte, align int) bool {
	return align <= 1 || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(align) == 0
}
