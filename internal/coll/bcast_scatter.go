package coll

// Scatter + allgather broadcast.
//
// Idea: the root scatters P parts of the data along a binomial tree, and an allgather of the parts
// follows. So every link carries about 2n bytes; in a binomial broadcast the root's link carries
// log₂ P · n bytes.
//
// Cost: allgather by recursive doubling 2 log₂ P α + 2 (P-1)/P nβ; by ring
// (⌈log₂ P⌉ + P-1) α + 2 (P-1)/P nβ, and in the ring only neighbours exchange messages.
// Source: Barnett, Gupta, Payne, Shuler, van de Geijn, Watts, Interprocessor
// Collective Communication Library (InterCom), SHPCC 1994; Thakur, Rabenseifner,
// Gropp, IJHPCA 19(1), 2005.
// Restrictions: for recursive doubling the number of ranks is a power of two.

func bcastScatterDoubling(l Link, _ *Config, buf []byte, root int) error {
	size := l.Size()
	v := mod(l.Rank()-root, size)
	c := evenPartition(len(buf), 1, size)
	if err := bcastScatter(l, &c, buf, root); err != nil {
		return err
	}
	for mask := 1; mask < size; mask *= 2 {
		mine, peer := v&^(mask-1), mod(v^mask+root, size)
		theirs := mine ^ mask
		out, in := c.of(buf, mine, mine+mask), c.of(buf, theirs, theirs+mask)
		var err error
		switch v {
		case 0: // the root has all
			err = l.Send(out, peer)
		case mask: // peer is the root
			err = l.Recv(in, peer)
		default:
			err = l.Sendrecv(out, peer, in, peer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func bcastScatterRing(l Link, _ *Config, buf []byte, root int) error {
	rank, size := l.Rank(), l.Size()
	v := mod(rank-root, size)
	c := evenPartition(len(buf), 1, size)
	if err := bcastScatter(l, &c, buf, root); err != nil {
		return err
	}
	right, left := mod(rank+1, size), mod(rank-1, size)
	for k := range size - 1 {
		s, r := mod(v-k, size), mod(v-k-1, size)
		out, in := c.of(buf, s, s+1), c.of(buf, r, r+1)
		var err error
		switch v {
		case 0: // the root has all
			err = l.Send(out, right)
		case size - 1: // right is the root
			err = l.Recv(in, left)
		default:
			err = l.Sendrecv(out, right, in, left)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bcastScatter scatters the root's buf along a binomial tree. The v-th rank after the root receives
// part v together with the parts of all its descendants in the tree, and sends each child the parts
// of that child and of its descendants.
func bcastScatter(l Link, c *partition, buf []byte, root int) error {
	size := l.Size()
	v := mod(l.Rank()-root, size)
	mask := 1
	for mask < size && v&mask == 0 {
		mask *= 2
	}
	if v != 0 {
		if err := l.Recv(c.of(buf, v, min(v+mask, size)), mod(v-mask+root, size)); err != nil {
			return err
		}
	}
	for mask /= 2; mask > 0; mask /= 2 {
		if child := v + mask; child < size {
			l.Isend(c.of(buf, child, min(child+mask, size)), mod(child+root, size))
		}
	}
	return l.WaitAll()
}
