//go:build race

package kernel

import (
	"runtime"
	"unsafe"
)

// annotate reports to the race detector that the goroutine reads left and right and writes dst. The
// caller calls it before it runs assembly that does so, because the race detector does not see the
// accesses of assembly.
func annotate(dst, left, right []byte) {
	runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(left)), len(left))
	runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(right)), len(right))
	runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(dst)), len(dst))
}
