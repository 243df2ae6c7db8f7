package coll

// Rabenseifner's reduction.
//
// Idea: a reduce-scatter by recursive halving, then a binomial gather of the parts to the root,
// which is member 0.
//
// Cost: 2 log₂ P α + 2 (P-1)/P nβ + (P-1)/P nγ; α + nβ + nγ more if P is not a power of two.
// Source: Rabenseifner, ICCS 2004; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
// Restrictions: commutative operations.
func reduceRabenseifner(l Link, _ *Config, send, recv []byte, op Op, root int) error {
	rank, size := l.Rank(), l.Size()
	f := newFold(size, root)
	me := f.member(rank)
	work := recv
	if rank != root {
		work = nil
		if me >= 0 {
			work = l.Scratch(len(send))
		}
	}
	src, err := foldIn(l, op, f, send, work)
	if err != nil || me < 0 {
		return err
	}
	c := evenPartition(len(send), op.Size, f.pow)
	if err := halve(l, op, f, &c, me, src, work); err != nil {
		return err
	}
	for mask := 1; mask < f.pow; mask *= 2 {
		if me&mask != 0 {
			return l.Send(c.of(work, me, me+mask), f.rank(me-mask))
		}
		if err := l.Recv(c.of(work, me+mask, me+2*mask), f.rank(me+mask)); err != nil {
			return err
		}
	}
	return nil
}
