//go:build race

package kernel

import (
	"runtime"
	"unsafe"
)

// told tells the race detector what assembly is about to do, which it does not
// see.
func told(dst, left, right []byte) {
	runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(left)), len(left))
	runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(right)), len(right))
	runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(dst)), len(dst))
}
