package coll

// k-nomial tree broadcast; with radix 2 the binomial tree.
//
// Idea: ranks are numbered from the root. A rank that has the data sends it to the roots of k-1
// subtrees per level, the largest subtrees first. A larger radix k makes the tree flatter, but each
// rank sends more messages. A larger radix is faster if the sender's own cost per message is much
// lower than the latency.
//
// Cost: binomial ⌈log₂ P⌉ (α + nβ); k-nomial ⌈log_k P⌉ (α + (k-1) nβ), or less if the network
// carries several messages of one sender at once.
// Source: MPI-4.1 section 6.4; Thakur, Rabenseifner, Gropp, Optimization of
// Collective Communication Operations in MPICH, IJHPCA 19(1), 2005.
// Restrictions: none.
func bcastKnomial(l Link, buf []byte, root, radix int) error {
	rank, size := l.Rank(), l.Size()
	v := mod(rank-root, size)
	mask := 1
	for ; mask < size; mask *= radix {
		if below := v % (mask * radix); below != 0 {
			if err := l.Recv(buf, mod(v-below+root, size)); err != nil {
				return err
			}
			break
		}
	}
	for mask /= radix; mask > 0; mask /= radix {
		for j := 1; j < radix && v+j*mask < size; j++ {
			l.Isend(buf, mod(v+j*mask+root, size))
		}
	}
	return l.WaitAll()
}

func bcastBinomial(l Link, _ *Config, buf []byte, root int) error {
	return bcastKnomial(l, buf, root, 2)
}

func bcastKnomialRadix(l Link, cfg *Config, buf []byte, root int) error {
	return bcastKnomial(l, buf, root, cfg.Radix)
}
