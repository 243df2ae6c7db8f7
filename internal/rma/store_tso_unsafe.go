//go:build amd64 && !race

package rma

// store64 stores an element that others load atomically, after all that was
// stored before. On this architecture each store is seen after those before it
// anyway, and the gate is the barrier for what follows; an atomic store would be
// a second one. To the race detector it has to be atomic.
func store64(b []byte, v uint64) { *word64(b) = v }

func store32(b []byte, v uint32) { *word32(b) = v }
