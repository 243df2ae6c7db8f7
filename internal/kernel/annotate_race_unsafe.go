//go:build race

package kernel

import (
	"runtime"
	"unsafe"
)

// annotate reports the accesses of the following assembly to the race detector, which does not see
// them.
func annotate(dst, left, right []byte) {
	runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(left)), len(left))
	runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(right)), len(right))
	runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(dst)), len(dst))
}
