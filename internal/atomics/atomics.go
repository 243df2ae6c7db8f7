// Package atomics applies atomic operations to elements of memory. They are atomic with respect to
// each other and to sync/atomic.
//
//	element       atomic access
//	8 bytes       the word itself
//	4 bytes       the word itself
//	1 or 2 bytes  the aligned 4-byte word that contains the element
//
// For elements of 4 and 8 bytes, reads, writes, and sums, OR and AND of integers are one call of
// sync/atomic. All other operations are compare-and-swap loops.
//
// Functions pass the bits of an element in the low part of a uint64. The results have the same bits
// as those of package kernel.
package atomics

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
)

// Change is an atomic operation on elements of one type.
type Change struct {
	combine  combiner // nil if op reads, writes or swaps
	op       transport.AtomicOp
	integral bool // the type is an integer, so sums and bitwise operations work on whole words
}

// For returns the Change for op on elements of type t. The caller has checked with [Combines] that
// the combination exists, unless op reads, writes or swaps; these exist for all types.
func For(op transport.AtomicOp, t transport.Datatype) Change {
	return Change{combine: combiners[t][op], op: op, integral: t < transport.Float32}
}

// On64 applies the change to an aligned word and returns the word's previous value. The operation
// is not AtomicCswap.
//
// Hot path: no allocation, no lock.
func (c *Change) On64(p *uint64, in uint64) uint64 {
	switch {
	case c.op == transport.AtomicRead:
		return atomic.LoadUint64(p)
	case c.op == transport.AtomicWrite:
		return atomic.SwapUint64(p, in)
	case !c.integral:
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
	case !c.integral:
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

// applySubword applies any change to an element of one or two bytes, by a compare-and-swap of the
// 4-byte word that contains it. It returns the element's previous value.
//
// Hot path: no allocation, no lock.
func (c *Change) applySubword(b []byte, size int, in, compare uint64) uint64 {
	p, at := wordAround(b)
	for {
		whole := atomic.LoadUint32(p)
		var bytes [4]byte
		binary.NativeEndian.PutUint32(bytes[:], whole)
		old, next := element(bytes[at:], size), in
		if c.op == transport.AtomicRead || c.op == transport.AtomicCswap && old != compare {
			return old
		}
		if c.combine != nil {
			next = c.combine(old, in)
		}
		putElement(bytes[at:], size, next)
		if atomic.CompareAndSwapUint32(p, whole, binary.NativeEndian.Uint32(bytes[:])) {
			return old
		}
	}
}

// Apply applies op to the elements of mem, one after the other, with the elements of data as
// operands, and writes the previous values to fetch. mem is aligned for the elements. The operation
// exists for the type; see [For]. data may be nil if op is a read, compare may be nil unless op is
// AtomicCswap, and fetch may be nil. Slices that are not nil are as long as mem.
//
// Hot path: no allocation, no lock.
func Apply(op transport.AtomicOp, t transport.Datatype, mem, data, compare, fetch []byte) {
	c, size, swaps := For(op, t), t.Size(), op == transport.AtomicCswap
	for i := 0; i < len(mem); i += size {
		var in, with, old uint64
		if data != nil {
			in = element(data[i:], size)
		}
		if compare != nil {
			with = element(compare[i:], size)
		}
		switch {
		case size == 8 && swaps:
			old = CompareSwap64(Word64(mem[i:]), with, in)
		case size == 8:
			old = c.On64(Word64(mem[i:]), in)
		case size == 4 && swaps:
			old = uint64(CompareSwap32(Word32(mem[i:]), uint32(with), uint32(in)))
		case size == 4:
			old = uint64(c.On32(Word32(mem[i:]), uint32(in)))
		default:
			old = c.applySubword(mem[i:], size, in, with)
		}
		if fetch != nil {
			putElement(fetch[i:], size, old)
		}
	}
}

// element returns the bits of an element of size bytes.
func element(b []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(b))
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	}
	return binary.NativeEndian.Uint64(b)
}

// putElement writes the bits of an element of size bytes.
func putElement(b []byte, size int, bits uint64) {
	switch size {
	case 1:
		b[0] = byte(bits)
	case 2:
		binary.NativeEndian.PutUint16(b, uint16(bits))
	case 4:
		binary.NativeEndian.PutUint32(b, uint32(bits))
	default:
		binary.NativeEndian.PutUint64(b, bits)
	}
}
