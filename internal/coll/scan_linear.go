package coll

// Linear scan.
//
// Idea: each rank receives the prefix of the ranks before it, combines its own operand as the right
// operand, and sends the result to the next rank.
//
// Cost: (P-1) (α + nβ + nγ), but each rank sends once and combines once.
// Source: MPI-4.1 section 6.11.
// Restrictions: none. The order of operands is kept.
func scanLinear(l Link, _ *Config, send, recv []byte, op Op, exclusive bool) error {
	rank, last := l.Rank(), l.Size()-1
	acc := send // sent to the next rank
	if rank > 0 {
		before := l.Scratch(len(send))
		if err := l.Recv(before, rank-1); err != nil {
			return err
		}
		switch {
		case !exclusive:
			move(recv, send)
			op.Reduce2(recv, before)
			acc = recv
		case rank < last:
			acc = l.Scratch(len(send))
			copy(acc, send)
			op.Reduce2(acc, before)
			copy(recv, before)
		default:
			copy(recv, before)
		}
	} else if !exclusive {
		move(recv, send)
	}
	if rank < last {
		return l.Send(acc, rank+1)
	}
	return nil
}
