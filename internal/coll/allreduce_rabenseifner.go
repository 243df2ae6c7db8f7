package coll

// Rabenseifner's allreduce.
//
// Idea: a reduce-scatter by recursive halving (halving.go), then an allgather of the parts by
// recursive doubling (allgather_doubling.go).
//
// Cost: 2 log₂ P α + 2 (P-1)/P nβ + (P-1)/P nγ; 2α + 2nβ + nγ more if P is not a power of two.
// Source: Rabenseifner, ICCS 2004; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
// Restrictions: commutative operations.
func allreduceRabenseifner(l Link, _ *Config, send, recv []byte, op Op) error {
	f := newFold(l.Size(), 0)
	me := f.member(l.Rank())
	partner, paired := f.partner(l.Rank())
	src, err := foldIn(l, op, f, send, recv)
	if err != nil {
		return err
	}
	if me < 0 {
		return l.Recv(recv, partner)
	}
	c := evenPartition(len(send), op.Size, f.pow)
	if err := halve(l, op, f, &c, me, src, recv); err != nil {
		return err
	}
	if err := gatherParts(l, f, &c, me, recv); err != nil {
		return err
	}
	if paired {
		return l.Send(recv, partner)
	}
	return nil
}
