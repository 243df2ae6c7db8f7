package coll

// Linear scatter.
//
// Idea: the root sends every rank its block, with at most Config.Window sends pending.
//
// Cost: (P-1) α + nβ at the root, no copies.
// Source: MPI-4.1 section 6.6.
// Restrictions: none. Only the root needs the lengths of all blocks.
func scatterLinear(l Link, cfg *Config, send, recv []byte, b blocks, root int) error {
	rank, size := l.Rank(), l.Size()
	if rank != root {
		return l.Recv(recv, root)
	}
	for d := 1; d < size; {
		for end := min(size, d+cfg.Window); d < end; d++ {
			r := mod(root+d, size)
			l.Isend(b.of(send, r), r)
		}
		if err := l.WaitAll(); err != nil {
			return err
		}
	}
	move(recv, b.of(send, root))
	return nil
}
