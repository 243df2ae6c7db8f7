package coll

// Recursive doubling scan.
//
// Idea: before round k = 0, 1, … a rank has the combination of its own operand and of the 2^k - 1
// operands before it (or of all before it, if there are fewer). It sends this partial result to the
// rank 2^k above, and receives the partial result of the rank 2^k below, which becomes the left
// operand.
//
// Cost: ⌈log₂ P⌉ (α + nβ + nγ). Exscan combines twice per round.
// Source: Hillis, Steele, Data Parallel Algorithms, Communications of the ACM
// 29(12), 1986; MPI-4.1 section 6.11.
// Restrictions: none. The order of operands is kept.
func scanDoubling(l Link, _ *Config, send, recv []byte, op Op, exclusive bool) error {
	rank, size := l.Rank(), l.Size()
	acc := recv
	if exclusive {
		acc = l.Scratch(len(send))
	}
	move(acc, send)
	in := l.Scratch(len(send))
	for d := 1; d < size; d *= 2 {
		source, dest := rank-d, rank+d
		if source < 0 {
			source = -1
		}
		if dest >= size {
			dest = -1
		}
		if err := exchange(l, acc, dest, in, source); err != nil {
			return err
		}
		if source < 0 {
			continue
		}
		switch {
		case exclusive && d == 1:
			copy(recv, in)
		case exclusive:
			op.Reduce2(recv, in)
		}
		if !exclusive || 2*d+rank < size { // exscan needs acc only if this rank sends in the next round
			op.Reduce2(acc, in)
		}
	}
	return nil
}
