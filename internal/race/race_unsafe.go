//go:build race

// Package race tells the race detector about uses of memory that it cannot see. In a
// program that is not built with -race the package does nothing.
package race

import (
	"runtime"
	"unsafe"
)

// Enabled reports whether the program is built with -race.
const Enabled = true

// annotated is the largest number of bytes that Read and Write report to the detector. The detector
// takes about a millisecond for so many.
const annotated = 1 << 20

// Read tells the detector that the goroutine reads the first MiB of b.
func Read(b []byte) {
	if len(b) > 0 {
		runtime.RaceReadRange(unsafe.Pointer(unsafe.SliceData(b)), min(len(b), annotated))
	}
}

// Write tells the detector that the goroutine writes the first MiB of b.
func Write(b []byte) {
	if len(b) > 0 {
		runtime.RaceWriteRange(unsafe.Pointer(unsafe.SliceData(b)), min(len(b), annotated))
	}
}

// Release tells the detector that everything that the goroutine has done so far happens before
// everything that a goroutine does after it calls Acquire with the same b.
func Release(b []byte) {
	if len(b) > 0 {
		runtime.RaceReleaseMerge(unsafe.Pointer(unsafe.SliceData(b)))
	}
}

// Acquire tells the detector that all earlier calls of Release with the same b happen before what
// the goroutine does next.
func Acquire(b []byte) {
	if len(b) > 0 {
		runtime.RaceAcquire(unsafe.Pointer(unsafe.SliceData(b)))
	}
}

// Await receives from done. In the view of the detector, the send or close does not happen before
// the return of Await.
func Await(done <-chan struct{}) {
	runtime.RaceDisable()
	<-done
	runtime.RaceEnable()
}
