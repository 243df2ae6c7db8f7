package coll

// Recursive doubling allgather.
//
// Idea: in round k every rank exchanges its 2^k blocks with the rank at distance 2^k.
//
// Cost: log₂ P α + (P-1)/P nβ, where n is the length of recv.
// Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005; MPI-4.1 section 6.7.
// Restrictions: the number of ranks is a power of two; equal counts.
func allgatherDoubling(l Link, _ *Config, _, recv []byte, b blocks) error {
	f := newFold(l.Size(), 0)
	c := rankPartition(b, f)
	return gatherParts(l, f, &c, l.Rank(), recv)
}

// gatherParts runs the algorithm among the members of f. c divides buf into one part per member. At
// first buf holds the part of this rank, which is member me; when gatherParts returns, buf holds the
// parts of all members.
func gatherParts(l Link, f fold, c *partition, me int, buf []byte) error {
	for mask := 1; mask < f.pow; mask *= 2 {
		mine, peer := me&^(mask-1), f.rank(me^mask)
		theirs := mine ^ mask
		if err := l.Sendrecv(c.of(buf, mine, mine+mask), peer, c.of(buf, theirs, theirs+mask), peer); err != nil {
			return err
		}
	}
	return nil
}
