package coll

// Binomial gather.
//
// Idea: ranks are numbered from the root. Each rank collects the blocks of its subtree, which
// follow its own block, and sends all of them to its parent in one message.
//
// Cost: ⌈log₂ P⌉ α + (P-1)/P nβ, where n is the bytes that the root receives. Every level copies
// the blocks, so this algorithm suits small blocks.
// Source: MPI-4.1 section 6.5; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
// Restrictions: equal counts.
func gatherBinomial(l Link, _ *Config, send, recv []byte, b blocks, root int) error {
	rank, size, n := l.Rank(), l.Size(), b.equal
	v := mod(rank-root, size)
	mask := 1
	for mask < size && v&mask == 0 {
		mask *= 2
	}
	mine := min(mask, size-v) // number of ranks in this rank's subtree, including itself
	if v != 0 && mine == 1 {
		return l.Send(send, mod(v-mask+root, size))
	}
	// whole holds the blocks in the order of v, which is the order of recv only if the root is 0.
	whole := recv
	if v != 0 || root != 0 {
		whole = l.Scratch(mine * n)
	}
	for m := 1; m < mask && v+m < size; m *= 2 {
		to := whole[m*n : min(2*m, mine)*n]
		if err := l.Recv(to, mod(v+m+root, size)); err != nil {
			return err
		}
	}
	if v != 0 {
		copy(whole[:n], send)
		return l.Send(whole, mod(v-mask+root, size))
	}
	if root != 0 {
		copy(recv[(root+1)*n:], whole[n:(size-root)*n])
		copy(recv[:root*n], whole[(size-root)*n:])
	}
	move(b.of(recv, root), send)
	return nil
}
