package coll

import (
	"sync/atomic"
	"unsafe"
)

// inlineBytes is the number of data bytes that a line carries beside its word.
const inlineBytes = 56

// line is a cache line that one rank writes. The rank writes the word last and atomically, so a
// reader that has seen the word also sees the data.
//
//	0      8                                64
//	│ word │ data                            │
type line struct {
	word atomic.Uint64
	data [inlineBytes]byte
}

// control is the first part of a rank's arena, after the unused bytes that stagger skips.
//
//	0                          512        576         640
//	│ arrival lines, a ring     │ written  │ consumed  │
type control struct {
	lines             [ringLines]line
	written, consumed line
}

// controlBytes is the offset of the data buffers from the beginning of an arena's control lines.
const controlBytes = int(unsafe.Sizeof(control{}))

// controlOf returns the control lines at the beginning of arena, which is aligned to a cache line.
func controlOf(arena []byte) *control {
	return (*control)(unsafe.Pointer(unsafe.SliceData(arena[:controlBytes])))
}
