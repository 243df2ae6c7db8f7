// Package atomics applies atomic operations to words of memory: aligned elements of 4 or 8 bytes.
// The operations are atomic with respect to each other and to sync/atomic. Reads, writes, and the
// sum, bitwise OR and bitwise AND of integers are one call of sync/atomic. All other operations are
// compare-and-swap loops.
//
// The functions take and return the bits of elements. If package kernel has the operation, the
// results have the same bits as those of package kernel.
package atomics

import (
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
)

// Change is an atomic operation, except compare-and-swap, on words of one element type.
type Change struct {
	combine combiner // nil if op reads, writes or swaps, or does not exist for the type
	op      transport.AtomicOp
	// The type is an integer, so sum, bitwise OR and bitwise AND are one call of sync/atomic on a
	// whole word.
	integral bool
}

// For returns the Change for op on elements of type t. Before the caller uses the Change, it checks
// with [Combines] that the operation exists, unless op reads or writes; these exist for all types.
func For(op transport.AtomicOp, t transport.Datatype) Change {
	return Change{combine: combiners[t][op], op: op, integral: t < transport.Float32}
}

// On64 applies the change to an aligned word and returns the word's previous value. in is the
// operand; for AtomicWrite it is the new value. The operation is not AtomicCswap.
//
// Hot path: no allocation, no lock.
func (c *Change) On64(p *uint64, in uint64) uint64 {
	switch {
	case c.op == transport.AtomicRead:
		return atomic.LoadUint64(p)
	case c.op == transport.AtomicWrite:
		return atomic.SwapUint64(p, in)
	case !c.integral: // no operation on floats is one call of sync/atomic
	case c.op == transport.AtomicSum:
		return atomic.AddUint64(p, in) - in
	case c.op == transport.AtomicBor:
		return atomic.OrUint64(p, in)
	case c.op == transport.AtomicBand:
		return atomic.AndUint64(p, in)
	}
	for {
		old := atomic.LoadUint64(p)
		if atomic.CompareAndSwapUint64(p, old, c.combine(old, in)) {
			return old
		}
	}
}

// On32 is [Change.On64] for words of 4 bytes.
//
// Hot path: no allocation, no lock.
func (c *Change) On32(p *uint32, in uint32) uint32 {
	switch {
	case c.op == transport.AtomicRead:
		return atomic.LoadUint32(p)
	case c.op == transport.AtomicWrite:
		return atomic.SwapUint32(p, in)
	case !c.integral: // as in On64
	case c.op == transport.AtomicSum:
		return atomic.AddUint32(p, in) - in
	case c.op == transport.AtomicBor:
		return atomic.OrUint32(p, in)
	case c.op == transport.AtomicBand:
		return atomic.AndUint32(p, in)
	}
	for {
		old := atomic.LoadUint32(p)
		if atomic.CompareAndSwapUint32(p, old, uint32(c.combine(uint64(old), uint64(in)))) {
			return old
		}
	}
}

// CompareSwap64 stores replace in an aligned word if the word equals compare. It returns the word's
// previous value.
//
// Hot path: no allocation, no lock.
func CompareSwap64(p *uint64, compare, replace uint64) uint64 {
	for {
		if atomic.CompareAndSwapUint64(p, compare, replace) {
			return compare
		}
		if old := atomic.LoadUint64(p); old != compare {
			return old
		}
	}
}

// CompareSwap32 is [CompareSwap64] for words of 4 bytes.
//
// Hot path: no allocation, no lock.
func CompareSwap32(p *uint32, compare, replace uint32) uint32 {
	for {
		if atomic.CompareAndSwapUint32(p, compare, replace) {
			return compare
		}
		if old := atomic.LoadUint32(p); old != compare {
			return old
		}
	}
}
