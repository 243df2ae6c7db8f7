package mpiio

import "math/bits"

// cover is a set of bytes of a window: the bytes for which a collective write has data. Each bit
// stands for a byte.
type cover struct {
	bits []uint64
	n    int // number of bytes of the window
}

// reset makes the set empty, for a window of n bytes.
func (c *cover) reset(n int) {
	words := (n + 63) / 64
	if cap(c.bits) < words {
		c.bits = make([]uint64, words)
	}
	c.bits, c.n = c.bits[:words], n
	clear(c.bits)
}

// add adds n bytes from at on. n is at least 1.
func (c *cover) add(at, n int) {
	first, last := at/64, (at+n-1)/64
	head, tail := ^uint64(0)<<(at%64), ^uint64(0)>>(63-(at+n-1)%64)
	if first == last {
		c.bits[first] |= head & tail
		return
	}
	c.bits[first] |= head
	for i := first + 1; i < last; i++ {
		c.bits[i] = ^uint64(0)
	}
	c.bits[last] |= tail
}

// next returns the first byte from at on that is in the set, or, if in is false, the first that is
// not. If there is none, next returns c.n.
func (c *cover) next(at int, in bool) int {
	for at < c.n {
		w := c.bits[at/64]
		if !in {
			w = ^w
		}
		if w >>= at % 64; w != 0 {
			return min(at+bits.TrailingZeros64(w), c.n)
		}
		at = (at/64 + 1) * 64
	}
	return c.n
}

// runs returns the number of ranges of consecutive bytes in the set, and the number of its bytes.
func (c *cover) runs() (runs, bytes int) {
	for at := c.next(0, true); at < c.n; {
		end := c.next(at, false)
		runs, bytes = runs+1, bytes+end-at
		at = c.next(end, true)
	}
	return runs, bytes
}
