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

// Acquire tells the detector that all earlier calls of Release with the same b happen before what
// the goroutine does next.
func Acquire([]byte) {}

// Await receives from done. In the view of the detector, the send or close does not happen before
// the return of Await.
func Await(done <-chan struct{}) { <-done }
