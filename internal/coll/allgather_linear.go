package coll

// Linear allgather.
//
// Idea: every rank sends its block to all others and receives theirs, with Config.Window ranks at a
// time. Rank r begins with a send to rank r+1, so the ranks do not all begin with the same one.
//
// Cost: (P-1) o + ⌈(P-1)/window⌉ α + (P-1)/P nβ, where o is the sender's own cost per message and n
// is the length of recv. If messages to several ranks overlap, this is the algorithm with the
// fewest steps.
// Source: MPI-4.1 section 6.7.
// Restrictions: none.
func allgatherLinear(l Link, cfg *Config, send, recv []byte, b blocks) error {
	rank, size := l.Rank(), l.Size()
	for d := 1; d < size; {
		for end := min(size, d+cfg.Window); d < end; d++ {
			source := mod(rank-d, size)
			l.Irecv(b.of(recv, source), source)
			l.Isend(send, mod(rank+d, size))
		}
		if err := l.WaitAll(); err != nil {
			return err
		}
	}
	return nil
}
