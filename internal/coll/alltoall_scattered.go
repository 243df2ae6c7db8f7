package coll

// Scattered alltoall.
//
// Idea: every rank posts receives and sends to the ranks at distance 1, 2, …,
// a bounded number at a time, and lets the transport overlap them. Both ends of
// a message stand in the same batch, so that batches cannot wait in a circle.
//
// Cost: (P-1) o + ⌈P/window⌉ α + nβ, where o is a message's own cost at the sender.
// Source: MPI-4.1 section 6.8.
// Restrictions: none; a call in place copies its operand to scratch.
func alltoallScattered(l Link, cfg *Config, send []byte, sb blocks, recv []byte, rb blocks) error {
	rank, size := l.Rank(), l.Size()
	own, from := rb.of(recv, rank), sb.of(send, rank)
	if same(send, recv) {
		sb, from = rb, own
		send = l.Scratch(len(recv))
		move(send, recv)
	}
	for d := 1; ; {
		for end := min(size, d+cfg.Window); d < end; d++ {
			source, dest := mod(rank-d, size), mod(rank+d, size)
			l.Irecv(rb.of(recv, source), source)
			l.Isend(sb.of(send, dest), dest)
		}
		move(own, from) // while the others begin
		from = own
		if err := l.WaitAll(); err != nil {
			return err
		}
		if d >= size {
			return nil
		}
	}
}
