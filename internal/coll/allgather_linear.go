package coll

// Linear allgather.
//
// Idea: every rank sends its block to all others and receives theirs, a bounded
// number at a time; rank r starts with r+1, so that no rank is everybody's
// first.
//
// Cost: (P-1) o + α + (P-1)/P nβ, where o is a message's own cost at the sender:
// the fewest steps where messages to several ranks overlap.
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
