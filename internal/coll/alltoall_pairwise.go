package coll

// Pairwise exchange alltoall.
//
// Idea: in every step the ranks are paired off and each exchanges with its
// partner: rank XOR k among a power of two of ranks, else the rank that makes
// the sum k modulo P, where a rank may be its own partner and pauses. Since
// partners are mutual, a call in place needs one block of scratch only.
//
// Cost: (P-1) α + nβ; one more step where P is not a power of two.
// Source: MPI-4.1 section 6.8; the pairing is the round-robin tournament.
// Restrictions: none.
func alltoallPairwise(l Link, _ *Config, send []byte, sb blocks, recv []byte, rb blocks) error {
	rank, size := l.Rank(), l.Size()
	inPlace := same(send, recv)
	var tmp []byte
	if inPlace {
		sb = rb
		tmp = l.Scratch(rb.largest(size))
	} else {
		copy(rb.of(recv, rank), sb.of(send, rank))
	}
	for k := range size {
		peer := mod(k-rank, size)
		if isPow2(size) {
			peer = rank ^ k
		}
		if peer == rank {
			continue
		}
		to := rb.of(recv, peer)
		in := to
		if inPlace {
			in = tmp[:len(to)]
		}
		if err := l.Sendrecv(sb.of(send, peer), peer, in, peer); err != nil {
			return err
		}
		if inPlace {
			copy(to, in)
		}
	}
	return nil
}
