package coll

// Recursive doubling allgather.
//
// Idea: in round k every rank exchanges the 2^k blocks that it has with the
// rank at distance 2^k.
//
// Cost: log₂ P α + (P-1)/P nβ, with n the bytes that a rank ends up with.
// Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005; MPI-4.1 section 6.7.
// Restrictions: a power of two of ranks; equal counts.
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
