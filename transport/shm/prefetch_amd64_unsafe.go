//go:build linux && amd64 && !portable

package shm

import "unsafe"

// prefetchWrite asks for the cache lines of n bytes from p on, at least one, to
// be made this core's own. A line that another core has read last takes as long
// to get as one to read; asked for all at once, they come at once.
//
//go:noescape
func prefetchWrite(p unsafe.Pointer, n uintptr)

// prefetchRead asks for the lines to be there to be read.
//
//go:noescape
func prefetchRead(p unsafe.Pointer, n uintptr)
