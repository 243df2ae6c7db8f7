package coll

// Bruck's alltoall.
//
// Idea: a rank numbers its blocks by distance: block i must go to the rank i above it, modulo P. In
// the round of bit k, all blocks in whose number that bit is set move 2^k ranks up, in one message.
// After the rounds of all bits, every block has moved its distance.
//
// Cost: ⌈log₂ P⌉ (α + nβ/2), where n is the bytes that a rank sends. There are fewer and larger
// messages than in other algorithms, but more copies.
// Source: Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE TPDS 8(11), 1997; MPI-4.1
// section 6.8.
// Restrictions: equal counts.
func alltoallBruck(l Link, _ *Config, send []byte, _ blocks, recv []byte, rb blocks) error {
	rank, size, n := l.Rank(), l.Size(), rb.equal
	all := l.Scratch(size * n)
	copy(all, send[rank*n:size*n])
	copy(all[(size-rank)*n:], send[:rank*n])
	out, in := l.Scratch(size/2*n), l.Scratch(size/2*n)
	for d := 1; d < size; d *= 2 {
		k := 0
		for i := d; i < size; i = (i + 1) | d {
			k += copy(out[k:], all[i*n:(i+1)*n])
		}
		if err := l.Sendrecv(out[:k], mod(rank+d, size), in[:k], mod(rank-d, size)); err != nil {
			return err
		}
		k = 0
		for i := d; i < size; i = (i + 1) | d {
			k += copy(all[i*n:(i+1)*n], in[k:])
		}
	}
	for i := range size {
		copy(rb.of(recv, mod(rank-i, size)), all[i*n:(i+1)*n])
	}
	return nil
}
