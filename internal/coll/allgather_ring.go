package coll

// Ring allgather.
//
// Idea: every rank sends the block that it received last to its right neighbour, P-1 times.
//
// Cost: (P-1) α + (P-1)/P nβ, where n is the length of recv. Only neighbours exchange messages, and
// there are no copies.
// Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005; MPI-4.1 section 6.7.
// Restrictions: none.
func allgatherRing(l Link, _ *Config, send, recv []byte, b blocks) error {
	rank, size := l.Rank(), l.Size()
	right, left := mod(rank+1, size), mod(rank-1, size)
	for k := range size - 1 {
		r := mod(rank-k-1, size)
		if err := l.Sendrecv(send, right, b.of(recv, r), left); err != nil {
			return err
		}
		send = b.of(recv, r)
	}
	return nil
}
