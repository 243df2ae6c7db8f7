package coll

// Reduce-scatter by recursive halving, which Rabenseifner's algorithms and reduce_scatter use.
//
// Idea: 2^k members hold one vector each. Each member starts with the range of all parts. In each
// step it exchanges with a peer at half the range's length: it sends the half of the range that it
// gives up, receives the peer's operand for the half that it keeps, and combines. After k steps
// member i holds part i of the result.
//
// Cost: log₂ P α + (P-1)/P n (β + γ).
// Source: Rabenseifner, Optimization of Collective Reduction Operations, ICCS
// 2004 (LNCS 3036); Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
// Restrictions: commutative operations.

// foldIn combines the operands within each pair of f: the rank of the pair that is no member sends
// its operand to the other rank. foldIn returns the buffer of this rank's operand: work if this
// rank has combined a pair, else send. work may be the same memory as send.
func foldIn(l Link, op Op, f fold, send, work []byte) ([]byte, error) {
	partner, ok := f.partner(l.Rank())
	switch {
	case !ok:
		return send, nil
	case f.member(l.Rank()) < 0:
		return send, l.Send(send, partner)
	case same(send, work):
		tmp := l.Scratch(len(send))
		if err := l.Recv(tmp, partner); err != nil {
			return nil, err
		}
		op.Reduce2(work, tmp)
		return work, nil
	}
	if err := l.Recv(work, partner); err != nil {
		return nil, err
	}
	op.Reduce2(work, send)
	return work, nil
}

// halve computes the part of the result that belongs to this rank, which is member me, at the
// offset of that part in work. src holds this rank's operand. src is either work itself, or memory
// that does not overlap work. In the second case halve only reads src, and its first step writes to
// work.
func halve(l Link, op Op, f fold, c *partition, me int, src, work []byte) error {
	var tmp []byte
	lo := 0
	for mask := f.pow / 2; mask > 0; mask /= 2 {
		keep, give := lo, lo+mask
		if me&mask != 0 {
			keep, give = give, keep
		}
		lo = keep
		peer := f.rank(me ^ mask)
		out, mine := c.of(src, give, give+mask), c.of(work, keep, keep+mask)
		if !same(src, work) {
			if err := l.Sendrecv(out, peer, mine, peer); err != nil {
				return err
			}
			op.Reduce2(mine, c.of(src, keep, keep+mask))
			src = work
			continue
		}
		if tmp == nil {
			tmp = l.Scratch(len(mine)) // later steps need less
		}
		in := tmp[:len(mine)]
		if err := l.Sendrecv(out, peer, in, peer); err != nil {
			return err
		}
		op.Reduce2(mine, in)
	}
	return nil
}
