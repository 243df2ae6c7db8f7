package coll

import (
	"math/bits"

	"github.com/weft-hpc/weft/internal/bytecopy"
)

// blocks says where each rank's part lies in a buffer. Either all parts have
// equal bytes and lie in rank order, or counts and displs say it (in bytes).
// Passed by value: no allocation.
type blocks struct {
	equal          int
	counts, displs []int
}

// unknown are blocks of which this rank knows nothing but that they need not be
// equal.
var unknown = blocks{counts: []int{}}

func (b blocks) uniform() bool { return b.counts == nil }

func (b blocks) off(rank int) int {
	if b.counts == nil {
		return rank * b.equal
	}
	return b.displs[rank]
}

func (b blocks) size(rank int) int {
	if b.counts == nil {
		return b.equal
	}
	return b.counts[rank]
}

// of is rank's part of buf.
func (b blocks) of(buf []byte, rank int) []byte {
	o := b.off(rank)
	return buf[o : o+b.size(rank)]
}

// largest is the size of the largest part among n ranks.
func (b blocks) largest(n int) int {
	if b.counts == nil {
		return b.equal
	}
	m := 0
	for _, c := range b.counts[:n] {
		m = max(m, c)
	}
	return m
}

// total is the sum of the parts of n ranks.
func (b blocks) total(n int) int {
	if b.counts == nil {
		return n * b.equal
	}
	t := 0
	for _, c := range b.counts[:n] {
		t += c
	}
	return t
}

// cut divides a buffer into parts that lie one after the other, on element
// boundaries: as evenly as possible, or along the ranks' blocks, where the
// first rem parts hold the blocks of two ranks each (see fold).
type cut struct {
	elems, elem, parts int

	byRank bool
	ranks  blocks
	rem    int
}

func evenCut(bytes, elem, parts int) cut {
	return cut{elems: bytes / elem, elem: elem, parts: parts}
}

func rankCut(b blocks, f fold) cut {
	return cut{byRank: true, ranks: b, rem: f.rem}
}

// at is the byte at which part i begins; at(parts) is the end.
func (c *cut) at(i int) int {
	if c.byRank {
		return c.ranks.off(i + min(i, c.rem))
	}
	return (c.elems/c.parts*i + min(i, c.elems%c.parts)) * c.elem
}

// of is parts lo to hi of buf, hi not included.
func (c *cut) of(buf []byte, lo, hi int) []byte { return buf[c.at(lo):c.at(hi)] }

// fold maps any number of ranks to the largest power of two within it, for
// algorithms that need one: of the first 2·rem ranks each even one works for
// the odd one above it too, and all others for themselves. The members keep
// the order of the ranks, so that what is combined stays adjacent.
//
//	size 7:  rank    0 1 2 3 4 5 6
//	         member  0 ─ 1 ─ 2 ─ 3
//	size 6:  rank    0 1 2 3 4 5
//	         member  0 ─ 1 ─ 2 3
//
// shift rotates the ranks, so that rank shift is member 0.
type fold struct {
	size, pow, rem, shift int
}

func newFold(size, shift int) fold {
	pow := floorPow2(size)
	return fold{size: size, pow: pow, rem: size - pow, shift: shift}
}

// virtual is the rotated rank.
func (f fold) virtual(rank int) int { return mod(rank-f.shift, f.size) }

// member is rank's number among the members, or -1 where another works for it.
func (f fold) member(rank int) int {
	v := f.virtual(rank)
	switch {
	case v >= 2*f.rem:
		return v - f.rem
	case v%2 == 0:
		return v / 2
	}
	return -1
}

// rank is the rank that is member m.
func (f fold) rank(m int) int { return mod(m+min(m, f.rem)+f.shift, f.size) }

// partner is the other rank of rank's pair, if it has one.
func (f fold) partner(rank int) (int, bool) {
	v := f.virtual(rank)
	if v >= 2*f.rem {
		return 0, false
	}
	return mod(v^1+f.shift, f.size), true
}

func floorPow2(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

func isPow2(n int) bool { return n&(n-1) == 0 }

// mod is a modulo n, for -n < a < 2n.
func mod(a, n int) int {
	if a < 0 {
		return a + n
	}
	if a >= n {
		return a - n
	}
	return a
}

// same tells whether two buffers begin at the same byte, as those of a call in
// place do.
func same(a, b []byte) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }

// move copies src to dst where they are not the same memory.
func move(dst, src []byte) {
	if !same(dst, src) {
		bytecopy.Keep(dst, src)
	}
}

// exchange sends and receives, where either side may be missing (rank -1).
func exchange(l Link, send []byte, dest int, recv []byte, source int) error {
	switch {
	case dest < 0 && source < 0:
		return nil
	case dest < 0:
		return l.Recv(recv, source)
	case source < 0:
		return l.Send(send, dest)
	}
	return l.Sendrecv(send, dest, recv, source)
}

// elemBlocks divides bytes into one part per rank, as evenly as whole elements
// allow; the tables are scratch.
func elemBlocks(l Link, bytes, elem int) blocks {
	n := l.Size()
	c := evenCut(bytes, elem, n)
	b := blocks{counts: scratchInts(l, n), displs: scratchInts(l, n+1)}
	for i := range n {
		b.displs[i] = c.at(i)
		b.counts[i] = c.at(i+1) - c.at(i)
	}
	b.displs[n] = bytes
	return b
}
