package coll

// Pairwise reduce-scatter.
//
// Idea: in step k a rank sends the rank k above it that rank's block, and receives a contribution
// to its own block from the rank k below it (modulo P). The contributions of lower ranks arrive
// nearest first; each becomes the left operand of the first accumulator. After rank 0 the
// contributions of higher ranks arrive from the highest down, and go to a second accumulator, which
// at the end becomes the right operand. So the order is kept. If the operation commutes, the first
// accumulator takes all contributions. A rank combines one contribution while it receives the next.
//
// Cost: (P-1) α + (P-1)/P nβ, plus the γ that the transfers do not hide.
// Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005; MPI-4.1 section 6.10.
// Restrictions: none. The algorithm writes recv last, so recv may be any part of send.
func reduceScatterPairwise(l Link, _ *Config, send, recv []byte, b blocks, op Op) error {
	rank, size := l.Rank(), l.Size()
	n := b.size(rank)
	low := l.Scratch(n)
	// Nil if the operation commutes or there is no higher rank; then low takes all contributions.
	var high []byte
	highest := !op.Commutes && rank < size-1
	if highest {
		high = l.Scratch(n)
	}
	tmp := [2][]byte{l.Scratch(n), l.Scratch(n)}
	copy(low, b.of(send, rank))

	in := l.Irecv(tmp[1], mod(rank-1, size))
	out := l.Isend(b.of(send, mod(rank+1, size)), mod(rank+1, size))
	for k := 1; k < size; k++ {
		if err := l.Wait(in); err != nil {
			return err
		}
		if err := l.Wait(out); err != nil {
			return err
		}
		if k+1 < size {
			in = l.Irecv(tmp[(k+1)%2], mod(rank-k-1, size))
			dest := mod(rank+k+1, size)
			out = l.Isend(b.of(send, dest), dest)
		}
		switch have := tmp[k%2]; {
		case k <= rank || op.Commutes:
			op.Reduce2(low, have)
		case highest:
			copy(high, have)
			highest = false
		default:
			op.Reduce2(high, have)
		}
	}
	if high != nil {
		op.Reduce2(high, low)
		low = high
	}
	copy(recv, low)
	return nil
}
