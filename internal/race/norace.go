//go:build !race

// Package race tells the race detector about uses of memory that it cannot see. In a
// program that is not built with -race the package does nothing.
package race

// Enabled reports whether the program is built with -race.
const Enabled = false

// Read tells the detector that the goroutine reads the first MiB of b.
func Read([]byte) {}

// Write tells the detector that the goroutine writes the first MiB of b.
func Write([]byte) {}

// Release tells the detector that what the goroutine has done happens before what any
// goroutine does after it calls Acquire with the same b.
func Release([]byte) {}

// Acquire is the other side of Release.
func Acquire([]byte) {}

// Await receives from done. To the detector the goroutine that sends or closes is not
// ordered with the caller.
func Await(done <-chan struct{}) { <-done }
