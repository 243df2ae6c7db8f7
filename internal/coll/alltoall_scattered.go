package coll

// Scattered alltoall.
//
// Idea: every rank posts receives from and sends to the ranks at distance 1, 2, …, in batches of
// Config.Window ranks, and the transport overlaps them. The send and the receive of a message are
// in the same batch on both ranks, so batches cannot deadlock.
//
// Cost: (P-1) o + ⌈(P-1)/window⌉ α + nβ, where o is the sender's own cost per message and n is the
// bytes that a rank sends.
// Source: MPI-4.1 section 6.8.
// Restrictions: none. A call in place copies its operand to scratch memory.
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
		move(own, from) // overlaps the transfers
		from = own
		if err := l.WaitAll(); err != nil {
			return err
		}
		if d >= size {
			return nil
		}
	}
}
