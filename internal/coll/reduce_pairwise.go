package coll

// Reduction by pairwise reduce-scatter and gather.
//
// Idea: the vector has P parts. Rank i combines part i of all operands and sends the result to the
// root.
//
// Cost: 2 (P-1) α + 2 (P-1)/P nβ + (P-1)/P nγ.
// Source: MPI-4.1 sections 6.9 and 6.10. Träff, An Improved Algorithm for (Non-commutative)
// Reduce-Scatter, EuroPVM/MPI 2005, describes the problem.
// Restrictions: none. This is the algorithm for large messages if the operation does not commute.
func reducePairwise(l Link, cfg *Config, send, recv []byte, op Op, root int) error {
	b := elemBlocks(l, len(send), op.Size)
	part := l.Scratch(b.size(l.Rank()))
	if err := reduceScatterPairwise(l, cfg, send, part, b, op); err != nil {
		return err
	}
	return gatherLinear(l, cfg, part, recv, b, root)
}
