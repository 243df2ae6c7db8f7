package shm

import "sync/atomic"

// claim is the line of a copy that both sides make.
type claim struct {
	_ [8]atomic.Uint64
}
