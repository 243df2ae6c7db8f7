package coll

import (
	"math/bits"

	"github.com/weft-hpc/weft/internal/bytecopy"
)

// blocks describes where each rank's block is in a buffer. If counts is nil, each block has the
// same length, which is the field equal, and the blocks follow each other in rank order. Otherwise
// counts and displs hold the lengths and offsets by rank. All are in bytes. blocks is passed by
// value, so it needs no allocation.
type blocks struct {
	equal          int
	counts, displs []int
}

// unknown stands for blocks of unequal lengths. This rank does not know the lengths and offsets.
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

// of returns rank's block of buf.
func (b blocks) of(buf []byte, rank int) []byte {
	o := b.off(rank)
	return buf[o : o+b.size(rank)]
}

// largest returns the size of the largest block of ranks 0 to n-1.
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

// total returns the sum of the sizes of the blocks of ranks 0 to n-1.
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

// partition divides a buffer into consecutive parts, on element boundaries. The parts are either
// as even as possible, or they follow the blocks of the ranks; then the first rem parts hold the
// blocks of two ranks each (see fold).
type partition struct {
	// Even parts: the number of elements, the bytes of an element, and the number of parts.
	elems, elem, parts int

	byRank bool   // the parts follow the blocks of the ranks
	ranks  blocks // if byRank: these blocks; off(number of ranks) is the end of the last one
	rem    int    // if byRank: number of parts that hold two blocks
}

func evenPartition(bytes, elem, parts int) partition {
	return partition{elems: bytes / elem, elem: elem, parts: parts}
}

func rankPartition(b blocks, f fold) partition {
	return partition{byRank: true, ranks: b, rem: f.rem}
}

// at returns the byte offset of part i. If i is the number of parts, at returns the end of the
// buffer.
func (c *partition) at(i int) int {
	if c.byRank {
		return c.ranks.off(i + min(i, c.rem))
	}
	return (c.elems/c.parts*i + min(i, c.elems%c.parts)) * c.elem
}

// of returns parts lo to hi-1 of buf.
func (c *partition) of(buf []byte, lo, hi int) []byte { return buf[c.at(lo):c.at(hi)] }

// fold maps size ranks to pow members, where pow is the largest power of two that is at most size,
// for algorithms that need a power of two. rem is size - pow. Of the first 2·rem ranks, each even
// rank is a member for itself and for the odd rank above it. Each rank after these is a member for
// itself. The members are in rank order, so a member combines operands of adjacent ranks. In the
// drawing (shift 0) a line stands below each rank that has no member of its own:
//
//	size 7:  rank    0 1 2 3 4 5 6
//	         member  0 ─ 1 ─ 2 ─ 3
//	size 6:  rank    0 1 2 3 4 5
//	         member  0 ─ 1 ─ 2 3
//
// shift rotates the ranks: they are counted from rank shift, modulo size. Rank shift is member 0.
type fold struct {
	size, pow, rem, shift int
}

func newFold(size, shift int) fold {
	pow := floorPow2(size)
	return fold{size: size, pow: pow, rem: size - pow, shift: shift}
}

// virtual returns the distance of rank from rank shift, modulo size.
func (f fold) virtual(rank int) int { return mod(rank-f.shift, f.size) }

// member returns rank's number among the members, or -1 if another rank is the member for it.
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

// rank returns the rank of member m.
func (f fold) rank(m int) int { return mod(m+min(m, f.rem)+f.shift, f.size) }

// partner returns the other rank of rank's pair, and whether rank belongs to a pair.
func (f fold) partner(rank int) (int, bool) {
	v := f.virtual(rank)
	if v >= 2*f.rem {
		return 0, false
	}
	return mod(v^1+f.shift, f.size), true
}

func floorPow2(n int) int { return 1 << (bits.Len(uint(n)) - 1) }

func isPow2(n int) bool { return n&(n-1) == 0 }

// mod returns a modulo n, for -n <= a < 2n.
func mod(a, n int) int {
	if a < 0 {
		return a + n
	}
	if a >= n {
		return a - n
	}
	return a
}

// same reports whether two buffers that are not empty begin at the same byte. The send and receive
// buffers of a call in place do.
func same(a, b []byte) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }

// move copies src to dst, unless they begin at the same byte.
func move(dst, src []byte) {
	if !same(dst, src) {
		bytecopy.Keep(dst, src)
	}
}

// exchange sends to dest and receives from source. If dest is -1, it sends nothing; if source is -1,
// it receives nothing.
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

// elemBlocks divides a vector, whose length and element size are given in bytes, into one block per
// rank, as evenly as whole elements allow. counts and displs of the result are scratch memory of
// the link.
func elemBlocks(l Link, bytes, elem int) blocks {
	n := l.Size()
	c := evenPartition(bytes, elem, n)
	b := blocks{counts: scratchInts(l, n), displs: scratchInts(l, n+1)}
	for i := range n {
		b.displs[i] = c.at(i)
		b.counts[i] = c.at(i+1) - c.at(i)
	}
	b.displs[n] = bytes
	return b
}
