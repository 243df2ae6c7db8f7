package coll

// Linear gather.
//
// Idea: every rank sends its block directly to the root. The root keeps at most Config.Window
// receives pending.
//
// Cost: (P-1) α + nβ at the root, no copies.
// Source: MPI-4.1 section 6.5.
// Restrictions: none. Only the root needs the lengths of all blocks.
func gatherLinear(l Link, cfg *Config, send, recv []byte, b blocks, root int) error {
	rank, size := l.Rank(), l.Size()
	if rank != root {
		return l.Send(send, root)
	}
	move(b.of(recv, root), send)
	for d := 1; d < size; {
		for end := min(size, d+cfg.Window); d < end; d++ {
			r := mod(root+d, size)
			l.Irecv(b.of(recv, r), r)
		}
		if err := l.WaitAll(); err != nil {
			return err
		}
	}
	return nil
}
