package coll

import (
	"sync/atomic"
	"unsafe"
)

// inlineBytes is what a line carries besides its word.
const inlineBytes = 56

// line is a cache line that one rank writes: the word last, and by
// sync/atomic, so that who has seen the word sees the data.
//
//	0      8                                64
//	│ word │ data                            │
type line struct {
	word atomic.Uint64
	data [inlineBytes]byte
}

// control is the beginning of a rank's arena.
//
//	0                          512       576       640
//	│ arrival lines, a ring     │ put     │ got     │
type control struct {
	lines    [ringLines]line
	put, got line
}

// controlBytes is where the bays begin.
const controlBytes = int(unsafe.Sizeof(control{}))

// controlOf is the control lines of an arena, which is aligned to a line.
func controlOf(arena []byte) *control {
	return (*control)(unsafe.Pointer(unsafe.SliceData(arena[:controlBytes])))
}
