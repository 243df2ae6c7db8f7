package coll

// Pairwise exchange alltoall.
//
// Idea: in step k every rank exchanges blocks with one partner. If P is a power of two, the partner
// of a rank is rank XOR k; otherwise it is the rank for which both ranks add up to k modulo P. A
// rank that is its own partner skips the step. Partners are mutual, so a call in place needs only
// one block of scratch memory.
//
// Cost: (P-1) α + nβ, where n is the bytes that a rank sends; one more step if P is not a power of
// two.
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
