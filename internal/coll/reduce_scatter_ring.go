package coll

// Ring reduce-scatter.
//
// Idea: block b starts at rank b+1 and travels around the ring to rank b. Every rank on the way
// combines its operand with the block.
//
// Cost: (P-1) α + (P-1)/P n (β + γ). Only neighbours exchange messages.
// Source: Patarasuk, Yuan, J. of Parallel and Distributed Computing 69(2), 2009;
// MPI-4.1 section 6.10.
// Restrictions: commutative operations. The algorithm writes recv last, so recv may be any part of
// send.
func reduceScatterRing(l Link, _ *Config, send, recv []byte, b blocks, op Op) error {
	rank, size := l.Rank(), l.Size()
	right, left := mod(rank+1, size), mod(rank-1, size)
	most := b.largest(size)
	in, spare := l.Scratch(most), l.Scratch(most)
	part := b.of(send, left)
	for k := range size - 1 {
		block := mod(rank-k-2, size)
		in = in[:b.size(block)]
		if err := l.Sendrecv(part, right, in, left); err != nil {
			return err
		}
		op.Reduce2(in, b.of(send, block))
		part = in
		in, spare = spare, in[:most]
	}
	copy(recv, part)
	return nil
}
