package coll

// Recursive doubling allgather.
//
// Idea: in round k every rank exchanges its 2^k blocks with the rank at distance 2^k.
//
// Cost: log₂ P α + (P-1)/P nβ, where n is the length of recv.
// Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005; MPI-4.1 section 6.7.
// Restrictions: the number of ranks is a power of two; equal counts.
func allgatherDoubling(l Link, _ *Config, _, recv []byte, b blocks) error {
	rank, size, n := l.Rank(), l.Size(), b.equal
	for mask := 1; mask < size; mask *= 2 {
		mine, peer := rank&^(mask-1), rank^mask
		theirs := mine ^ mask
		err := l.Sendrecv(recv[mine*n:(mine+mask)*n], peer, recv[theirs*n:(theirs+mask)*n], peer)
		if err != nil {
			return err
		}
	}
	return nil
}
