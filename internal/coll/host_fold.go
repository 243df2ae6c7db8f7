package coll

// operands are one segment of the operands of all ranks of a host: this rank's own operand, and those
// of the others in shared memory.
type operands struct {
	h      *Host
	own    []byte // the segment of this rank's operand
	at     int    // offset of the others' operands in their data buffers …
	inline bool   // … unless they are in the arrival lines
}

// of returns the n bytes of a rank's operand.
func (o *operands) of(rank, n int) []byte {
	switch {
	case rank == o.h.Rank:
		return o.own[:n]
	case o.inline:
		return o.h.peers[rank].lines[o.h.call%ringLines].data[:n]
	}
	return o.h.dataBufferOf(rank)[o.at : o.at+n]
}

// reduce combines the operands of ranks 0 to n-1 of the host and writes the result to dst. It
// combines from the highest rank down, so the result does not depend on which rank computes it. dst
// may be the same slice as o.own.
func (o *operands) reduce(dst []byte, op Op, n int) {
	size, me := len(dst), o.h.Rank
	last := o.of(n-1, size)
	if n == 1 {
		move(dst, last)
		return
	}
	next := o.of(n-2, size)
	if n == 2 && op.Reduce3 != nil {
		op.Reduce3(dst, next, last)
		return
	}
	// The operands of ranks below early are read after the first write to acc. If this rank is one
	// of these, and dst is the memory of its operand, acc must be other memory.
	acc, early := dst, n-1
	if op.Reduce3 != nil {
		early = n - 2
	}
	if me < early && same(dst, o.own) {
		acc = o.h.scratch(size)
	}
	if op.Reduce3 != nil {
		op.Reduce3(acc, next, last)
	} else {
		move(acc, last)
		op.Reduce2(acc, next)
	}
	for r := n - 3; r >= 0; r-- {
		if r == me && op.Reduce3 != nil {
			op.Reduce3(dst, o.own[:size], acc)
			acc = dst
			continue
		}
		op.Reduce2(acc, o.of(r, size))
	}
	move(dst, acc)
}
