package coll

// Binomial gather.
//
// Idea: ranks are numbered from the root; each collects the blocks of its
// subtree, which follow its own, and sends them up as one message.
//
// Cost: ⌈log₂ P⌉ α + (P-1)/P nβ, with n the bytes that the root receives; blocks
// are copied at every level, so it is for small ones.
// Source: MPI-4.1 section 6.5; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
// Restrictions: equal counts.
func gatherBinomial(l Link, _ *Config, send, recv []byte, b blocks, root int) error {
	rank, size, n := l.Rank(), l.Size(), b.equal
	v := mod(rank-root, size)
	mask := 1
	for mask < size && v&mask == 0 {
		mask *= 2
	}
	mine := min(mask, size-v) // ranks in my subtree, me included
	if v != 0 && mine == 1 {
		return l.Send(send, mod(v-mask+root, size))
	}
	// Blocks stand in the order of v, which is the one of recv for root 0 only.
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
