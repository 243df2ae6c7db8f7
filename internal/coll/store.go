//go:build !amd64 || race

package coll

import "sync/atomic"

// storeRelease stores v in word. Here it is word.Store; see store_amd64.go for the weaker order
// that callers may rely on.
func storeRelease(word *atomic.Uint64, v uint64) { word.Store(v) }
