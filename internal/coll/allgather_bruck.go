package coll

// Bruck's allgather.
//
// Idea: a rank stores the blocks in the order of ranks that starts at itself, modulo P. In round k
// it sends its first 2^k blocks to the rank 2^k below, and receives the blocks that follow its own
// from the rank 2^k above. The last round moves only the missing blocks. At the end a rank rotates
// the blocks to their places.
//
// Cost: ⌈log₂ P⌉ α + (P-1)/P nβ, for any P, where n is the length of recv, and a copy of all
// blocks.
// Source: Bruck, Ho, Kipnis, Upfal, Weathersby, Efficient Algorithms for All-to-All Communications
// in Multiport Message-Passing Systems, IEEE TPDS 8(11), 1997; MPI-4.1 section 6.7.
// Restrictions: equal counts.
func allgatherBruck(l Link, _ *Config, _, recv []byte, b blocks) error {
	rank, size, n := l.Rank(), l.Size(), b.equal
	tmp := recv // rank 0 needs no rotation
	if rank != 0 {
		tmp = l.Scratch(size * n)
		copy(tmp[:n], b.of(recv, rank))
	}
	for d := 1; d < size; d *= 2 {
		k := min(d, size-d)
		err := l.Sendrecv(tmp[:k*n], mod(rank-d, size), tmp[d*n:(d+k)*n], mod(rank+d, size))
		if err != nil {
			return err
		}
	}
	if rank != 0 {
		copy(recv[rank*n:], tmp[:(size-rank)*n])
		copy(recv[:rank*n], tmp[(size-rank)*n:])
	}
	return nil
}
