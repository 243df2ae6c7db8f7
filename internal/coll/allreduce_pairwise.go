package coll

// Allreduce by pairwise reduce-scatter and ring allgather.
//
// Idea: the vector has P parts. Rank i combines part i of all operands, and an allgather of the
// parts follows.
//
// Cost: 2 (P-1) α + 2 (P-1)/P nβ + (P-1)/P nγ.
// Source: MPI-4.1 sections 6.9.6 and 6.10.
// Restrictions: none. This is the algorithm for large messages if the operation does not commute.
func allreducePairwise(l Link, cfg *Config, send, recv []byte, op Op) error {
	b := elemBlocks(l, len(send), op.Size)
	if err := reduceScatterPairwise(l, cfg, send, b.of(recv, l.Rank()), b, op); err != nil {
		return err
	}
	return allgatherRing(l, cfg, b.of(recv, l.Rank()), recv, b)
}
