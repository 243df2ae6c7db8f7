// Package atomics changes elements of memory, each in one step of the processor,
// while others change them by the same means, or by sync/atomic.
//
//	8 bytes  the word itself                 sums and bits of integers, reads,
//	4 bytes  the word itself                 writes: an instruction; the rest: a
//	1, 2     a part of the word around them  loop until nobody was in between
//
// An element travels as its bits, in the low part of a word. What operations make
// of two elements has the bits that package kernel's have.
package atomics

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/weft-hpc/weft/transport"
)

// Change is what an operation does to an element of a type.
type Change struct {
	merge    merger // where op combines
	op       transport.AtomicOp
	integral bool // sums and bits are those of words
}

// For is the change that op makes of elements of type t, both of which the
// transport's contract has. Combines says whether there is one, unless op reads,
// writes or swaps, which is the same for all types.
func For(op transport.AtomicOp, t transport.Datatype) Change {
	return Change{merge: mergers[t][op], op: op, integral: t < transport.Float32}
}

// On64 applies the change, which does not compare, to an aligned word, and
// returns what that was.
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
		if atomic.CompareAndSwapUint64(p, old, c.merge(old, in)) {
			return old
		}
	}
}

// On32 is On64 of half the size.
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
		if atomic.CompareAndSwapUint32(p, old, uint32(c.merge(uint64(old), uint64(in)))) {
			return old
		}
	}
}

// CompareSwap64 stores replace where the aligned word is compare, and returns
// what it was.
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

// CompareSwap32 is CompareSwap64 of half the size.
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

// onPart applies any change to an element of one or two bytes, by the word
// around it.
//
// Hot path: no allocation, no lock.
func (c *Change) onPart(b []byte, size int, in, compare uint64) uint64 {
	p, at := wordAround(b)
	for {
		whole := atomic.LoadUint32(p)
		var bytes [4]byte
		binary.NativeEndian.PutUint32(bytes[:], whole)
		old, next := element(bytes[at:], size), in
		if c.op == transport.AtomicRead || c.op == transport.AtomicCswap && old != compare {
			return old
		}
		if c.merge != nil {
			next = c.merge(old, in)
		}
		putElement(bytes[at:], size, next)
		if atomic.CompareAndSwapUint32(p, whole, binary.NativeEndian.Uint32(bytes[:])) {
			return old
		}
	}
}

// Apply changes the elements of mem, which is aligned for them, one after
// another with those of data, and puts into fetch what they were. There is such
// a change: see For. data may be missing for a read, fetch always, and compare
// unless the operation compares; those that are there are as long as mem.
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
			old = c.onPart(mem[i:], size, in, with)
		}
		if fetch != nil {
			putElement(fetch[i:], size, old)
		}
	}
}

// element reads the bits of an element of size bytes.
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

// putElement is the reverse of element.
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
