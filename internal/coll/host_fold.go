package coll

// operands are what ranks of a host have to combine, a piece each: the own one
// and those of others where they lie in shared memory.
type operands struct {
	h   *Host
	own []byte // of this rank
	at  int    // where the others' lie in their bays …
	in  bool   // … or, not longer than a line's data, in their lines
}

func (o *operands) of(rank, n int) []byte {
	switch {
	case rank == o.h.Rank:
		return o.own[:n]
	case o.in:
		return o.h.peers[rank].lines[o.h.call%ringLines].data[:n]
	}
	return o.h.bayOf(rank)[o.at : o.at+n]
}

// fold combines the operands of the ranks 0 to n-1 into dst: from the highest
// down, so that the result depends on the ranks alone. dst may be the very
// slice that the own operand is.
func (o *operands) fold(dst []byte, op Op, n int) {
	size, me := len(dst), o.h.Rank
	last := o.of(n-1, size)
	if n == 1 {
		move(dst, last)
		return
	}
	next := o.of(n-2, size)
	if n == 2 && op.Into != nil {
		op.Into(dst, next, last)
		return
	}
	// Where the own operand is still to come, dst must stay as it is until then.
	acc, early := dst, n-1
	if op.Into != nil {
		early = n - 2
	}
	if me < early && same(dst, o.own) {
		acc = o.h.scratch(size)
	}
	if op.Into != nil {
		op.Into(acc, next, last)
	} else {
		move(acc, last)
		op.Combine(acc, next)
	}
	for r := n - 3; r >= 0; r-- {
		if r == me && op.Into != nil {
			op.Into(dst, o.own[:size], acc)
			acc = dst
			continue
		}
		op.Combine(acc, o.of(r, size))
	}
	move(dst, acc)
}
