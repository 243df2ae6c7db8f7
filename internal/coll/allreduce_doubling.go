package coll

// Recursive doubling allreduce.
//
// Idea: in round k every rank exchanges its partial result with the rank at distance 2^k and
// combines the two. After log₂ P rounds every rank has the result. If P is not a power of two, one
// rank of each pair of a fold takes part for both, and at the end sends the other the result.
//
// Cost: ⌊log₂ P⌋ (α + nβ + nγ); 2 (α + nβ) + nγ more if P is not a power of two.
// Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005; MPI-4.1 section 6.9.6.
// Restrictions: none. A partial result always covers adjacent ranks, and the partial result of the
// lower ranks is the left operand. So the order is kept, and all ranks get the same bits.
func allreduceDoubling(l Link, _ *Config, send, recv []byte, op Op) error {
	f := newFold(l.Size(), 0)
	me := f.member(l.Rank())
	partner, paired := f.partner(l.Rank())
	if me < 0 {
		if err := l.Send(send, partner); err != nil {
			return err
		}
		return l.Recv(recv, partner)
	}
	move(recv, send)
	acc, in := recv, l.Scratch(len(recv))
	if paired {
		if err := l.Recv(in, partner); err != nil {
			return err
		}
		op.Reduce2(in, acc)
		acc, in = in, acc
	}
	for mask := 1; mask < f.pow; mask *= 2 {
		peer := f.rank(me ^ mask)
		if err := l.Sendrecv(acc, peer, in, peer); err != nil {
			return err
		}
		if me&mask != 0 {
			op.Reduce2(acc, in)
		} else {
			op.Reduce2(in, acc)
			acc, in = in, acc
		}
	}
	move(recv, acc)
	if paired {
		return l.Send(recv, partner)
	}
	return nil
}
