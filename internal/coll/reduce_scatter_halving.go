package coll

// Recursive halving reduce-scatter.
//
// Idea: in each step a member exchanges half of its range of blocks with a peer, and combines (see
// halving.go). A member stands for one rank or for a pair of adjacent ranks. At the end the even
// rank of a pair sends the odd rank its block.
//
// Cost: log₂ P α + (P-1)/P n (β + γ); about 2α + nβ + nγ more if P is not a power of two.
// Source: Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005; MPI-4.1 section 6.10.
// Restrictions: commutative operations.
func reduceScatterHalving(l Link, _ *Config, send, recv []byte, b blocks, op Op) error {
	rank, size := l.Rank(), l.Size()
	f := newFold(size, 0)
	me := f.member(rank)
	partner, paired := f.partner(rank)
	var work []byte
	if me >= 0 {
		work = l.Scratch(len(send))
	}
	src, err := foldIn(l, op, f, send, work)
	if err != nil {
		return err
	}
	if me < 0 {
		return l.Recv(recv, partner)
	}
	c := rankPartition(b, f)
	if err := halve(l, op, f, &c, me, src, work); err != nil {
		return err
	}
	if paired {
		if err := l.Send(b.of(work, partner), partner); err != nil {
			return err
		}
	}
	move(recv, b.of(work, rank))
	return nil
}
