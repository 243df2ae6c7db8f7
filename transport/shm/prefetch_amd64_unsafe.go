//go:build linux && amd64 && !portable

package shm

import "unsafe"

// prefetchWrite prefetches the cache lines of n bytes from address p on, at least one line, for
// writing: it makes this core their owner. To get ownership of a line that another core has read
// takes as long as to read a line from another core. Prefetched lines arrive in parallel.
//
//go:noescape
func prefetchWrite(p unsafe.Pointer, n uintptr)

// prefetchRead prefetches the cache lines of n bytes from address p on, at least one line, for
// reading.
//
//go:noescape
func prefetchRead(p unsafe.Pointer, n uintptr)
