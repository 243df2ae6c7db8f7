package coll

// Binomial scatter.
//
// Idea: the tree of the binomial gather, from the root to the leaves. A rank receives the blocks of
// its subtree in one message, and sends those of its children's subtrees on.
//
// Cost: ⌈log₂ P⌉ α + (P-1)/P nβ, where n is the bytes that the root sends. Every level copies the
// blocks, so this algorithm suits small blocks.
// Source: MPI-4.1 section 6.6; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
// Restrictions: equal counts.
func scatterBinomial(l Link, _ *Config, send, recv []byte, b blocks, root int) error {
	rank, size, n := l.Rank(), l.Size(), b.equal
	v := mod(rank-root, size)
	mask := 1
	for mask < size && v&mask == 0 {
		mask *= 2
	}
	mine := min(mask, size-v)
	whole := send
	switch {
	case v == 0 && root != 0:
		whole = l.Scratch(size * n)
		copy(whole, send[root*n:])
		copy(whole[(size-root)*n:], send[:root*n])
	case v != 0:
		if whole = recv; mine > 1 {
			whole = l.Scratch(mine * n)
		}
		if err := l.Recv(whole, mod(v-mask+root, size)); err != nil {
			return err
		}
	}
	for mask /= 2; mask > 0; mask /= 2 {
		if v+mask < size {
			l.Isend(whole[mask*n:min(2*mask, mine)*n], mod(v+mask+root, size))
		}
	}
	if err := l.WaitAll(); err != nil {
		return err
	}
	if v == 0 {
		move(recv, b.of(send, root))
	} else {
		move(recv, whole[:n])
	}
	return nil
}
