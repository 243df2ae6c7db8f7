//go:build !amd64 || race

package rma

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/atomics"
)

func store64(b []byte, v uint64) { atomic.StoreUint64(atomics.Word64(b), v) }

func store32(b []byte, v uint32) { atomic.StoreUint32(atomics.Word32(b), v) }

func release32(p *atomic.Uint32) { p.Store(0) }
