//go:build !race

package coll

import "sync/atomic"

// storeRelease stores v in word with release order: a goroutine that loads v also sees all earlier
// stores. Unlike word.Store, it is no full barrier: a later load may run before the store is
// visible. A plain store is enough on amd64, which keeps stores in order. word.Store would be an
// exchange (XCHG), which waits until this core owns the cache line. If another core has read the
// line since this core last wrote to it, that wait takes as long as a message between the cores.
//
//go:noescape
func storeRelease(word *atomic.Uint64, v uint64)
