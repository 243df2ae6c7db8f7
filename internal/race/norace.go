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

// Release tells the detector that everything that the goroutine has done so far happens before
// everything that a goroutine does after it calls Acquire with the same b.
func Release([]byte) {}

// Acquire tells the detector that Release calls with the same b happened before.
func Acquire([]byte) {}

// Await receives from done. The detector does not take this for an order between the goroutine
// that sends or closes and the caller.
func Await(done <-chan struct{}) { <-done }
