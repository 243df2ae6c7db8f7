package coll

// The reduce-scatter by recursive halving that Rabenseifner's algorithms and
// reduce_scatter share.
//
// Idea: 2^k members hold a vector each. In every step a member exchanges with
// its peer half a range further the half that it gives up for the half that it
// keeps, and combines; after k steps member i holds part i of the result.
//
// Cost: log₂ P α + (P-1)/P n (β + γ).
// Source: Rabenseifner, Optimization of Collective Reduction Operations, ICCS
// 2004 (LNCS 3036); Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
// Restrictions: commutative operations.

// foldIn combines the operands of the pairs of f: the odd rank sends its own
// to the even one. It returns where the rank's operand is now: send, or work
// where something was combined. Work may be the same memory as send.
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
		op.Combine(work, tmp)
		return work, nil
	}
	if err := l.Recv(work, partner); err != nil {
		return nil, err
	}
	op.Combine(work, send)
	return work, nil
}

// halve leaves member me's part of the result in the same place of work. The
// operand is src, which is work or memory that does not overlap it, and which
// then is only read: the first step lands in work.
func halve(l Link, op Op, f fold, c *cut, me int, src, work []byte) error {
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
			op.Combine(mine, c.of(src, keep, keep+mask))
			src = work
			continue
		}
		if tmp == nil {
			tmp = l.Scratch(len(mine)) // later parts lie within this one
		}
		in := tmp[:len(mine)]
		if err := l.Sendrecv(out, peer, in, peer); err != nil {
			return err
		}
		op.Combine(mine, in)
	}
	return nil
}
