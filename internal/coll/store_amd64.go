//go:build !race

package coll

import "sync/atomic"

// storeRelease stores v in word with release order: a goroutine that loads v also sees all earlier
// stores. Unlike word.Store, it is no full barrier: a later load may run before the store is
// visible. A plain store is enough on amd64, which keeps stores in order. word.Store would be an
// exchange (XCHG), which waits for ownership of the cache line; between the stores of the data and
// of the word, a reader could take the line away.
//
//go:noescape
func storeRelease(word *atomic.Uint64, v uint64)
