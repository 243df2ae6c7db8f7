package bytecopy

// PrefetchWrite prefetches the cache lines of n bytes from p on, at least one line, for writing: it
// makes this core their owner. To get ownership of a line that another core has read takes as long
// as to read a line from another core. Prefetched lines arrive in parallel.
//
//go:noescape
func PrefetchWrite(p *byte, n int)

// PrefetchRead prefetches the cache lines of n bytes from p on, at least one line, for reading.
//
//go:noescape
func PrefetchRead(p *byte, n int)
