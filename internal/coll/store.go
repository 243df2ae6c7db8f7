//go:build !amd64 || race

package coll

import "sync/atomic"

// storeRelease is word.Store(v). Elsewhere it may let later loads pass it.
func storeRelease(word *atomic.Uint64, v uint64) { word.Store(v) }
