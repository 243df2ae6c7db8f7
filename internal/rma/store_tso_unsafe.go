//go:build amd64 && !race

package rma

import (
	"sync/atomic"
	"unsafe"

	"github.com/weft-hpc/weft/internal/atomics"
)

// store64 stores an element that others load atomically, after all that was
// stored before. On this architecture each store but those of one string
// instruction is seen after those before it anyway, and the gate is the barrier
// for what follows; an atomic store would be a second one. To the race detector
// it has to be atomic. ADR 11 says more.
func store64(b []byte, v uint64) { *atomics.Word64(b) = v }

func store32(b []byte, v uint32) { *atomics.Word32(b) = v }

// release32 stores 0 after all that was stored before.
func release32(p *atomic.Uint32) { *(*uint32)(unsafe.Pointer(p)) = 0 }
