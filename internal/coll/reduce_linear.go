package coll

// Linear reduction.
//
// Idea: the root receives the operands one by one, from the highest rank down. Each operand is the
// left operand, and the partial result is the right one.
//
// Cost: (P-1) (α + nβ + nγ), all at the root.
// Source: MPI-4.1 section 6.9 (the canonical order).
// Restrictions: none. For every operation the result is that of a serial reduction from the right.
func reduceLinear(l Link, _ *Config, send, recv []byte, op Op, root int) error {
	rank, size := l.Rank(), l.Size()
	if rank != root {
		return l.Send(send, root)
	}
	var acc, tmp []byte
	if acc = recv; root != size-1 && same(send, recv) {
		acc = l.Scratch(len(recv)) // the loop reads send later
	}
	for r := size - 1; r >= 0; r-- {
		in := send
		switch {
		case r == root && r == size-1:
			move(acc, send)
		case r == size-1:
			if err := l.Recv(acc, r); err != nil {
				return err
			}
		case r != root:
			if tmp == nil {
				tmp = l.Scratch(len(recv))
			}
			if err := l.Recv(tmp, r); err != nil {
				return err
			}
			in = tmp
			fallthrough
		default:
			op.Reduce2(acc, in)
		}
	}
	move(recv, acc)
	return nil
}
