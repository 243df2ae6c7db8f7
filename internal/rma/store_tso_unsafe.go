//go:build amd64 && !race

package rma

import (
	"sync/atomic"
	"unsafe"

	"github.com/weft-hpc/weft/internal/atomics"
)

// store64 stores an element that others load atomically, with release order: earlier stores become
// visible first. On amd64 a plain store has that order, also after a string instruction, whose own
// stores are not ordered. No barrier for later loads is needed here: the calls that store elements
// do so inside of the window's [gate], and gate.leave has the barrier if one is needed. An atomic
// store would be a second one. For the race detector the store must be atomic
// (store_other_unsafe.go). See ADR 11.
func store64(b []byte, v uint64) { *atomics.Word64(b) = v }

func store32(b []byte, v uint32) { *atomics.Word32(b) = v }

// release32 stores 0 with release order.
func release32(p *atomic.Uint32) { *(*uint32)(unsafe.Pointer(p)) = 0 }
