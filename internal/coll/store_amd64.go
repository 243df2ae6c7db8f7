//go:build !race

package coll

import "sync/atomic"

// storeRelease is word.Store(v), but that it does not wait until others see it:
// a load that follows may come before it. Who has seen it sees all that was
// stored before. The processor keeps plain stores in order; that of sync/atomic
// is an exchange, which waits for the line, and between the data and the word of
// which a reader can take the line away.
//
//go:noescape
func storeRelease(word *atomic.Uint64, v uint64)
