package coll

// k-nomial tree reduction; with radix 2 the binomial tree.
//
// Idea: the tree of the broadcast, from the leaves to the root. A rank combines its own operand
// with those of its subtrees, nearest first. Each subtree covers consecutive ranks, counted from
// the root of the tree, so the order of the operands is kept.
//
// Cost: binomial ⌈log₂ P⌉ (α + nβ + nγ); k-nomial ⌈log_k P⌉ (α + (k-1)(nβ + nγ)).
// Source: MPI-4.1 section 6.9; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005.
// Restrictions: none. If the operation does not commute, rank 0 is the root of the tree and then
// sends the result to the root of the call, because a rotated tree would change the order of the
// operands.
func reduceKnomial(l Link, send, recv []byte, op Op, root, radix int) error {
	rank, size := l.Rank(), l.Size()
	top := root
	if !op.Commutes {
		top = 0
	}
	v := mod(rank-top, size)
	var t reduction
	t.init(op, send, recv, rank == root)
	for mask := 1; mask < size; mask *= radix {
		if below := v % (mask * radix); below != 0 {
			if err := l.Send(t.acc, mod(v-below+top, size)); err != nil {
				return err
			}
			break
		}
		for j := 1; j < radix && v+j*mask < size; j++ {
			if err := t.recvRight(l, mod(v+j*mask+top, size)); err != nil {
				return err
			}
		}
	}
	switch {
	case top != root && rank == top:
		return l.Send(t.acc, root)
	case top != root && rank == root:
		return l.Recv(recv, top)
	case rank == root:
		move(recv, t.acc)
	}
	return nil
}

func reduceBinomial(l Link, _ *Config, send, recv []byte, op Op, root int) error {
	return reduceKnomial(l, send, recv, op, root, 2)
}

func reduceKnomialRadix(l Link, cfg *Config, send, recv []byte, op Op, root int) error {
	return reduceKnomial(l, send, recv, op, root, cfg.Radix)
}

// reduction combines operands in the order in which recvRight receives them, without a copy of the
// rank's own operand. The partial result is in the buffer to which the last Reduce2 wrote or,
// before the first one, in the send buffer.
type reduction struct {
	op    Op
	acc   []byte // the partial result
	own   bool   // the algorithm may write to acc; false: acc is the caller's send buffer
	spare []byte // receive buffer for the next operand; nil: recvRight takes scratch memory
}

// init sets the rank's own operand as the partial result. At the root, reduction also uses recv as
// a buffer; on other ranks recv may be nil.
func (t *reduction) init(op Op, send, recv []byte, root bool) {
	t.op, t.acc = op, send
	if root {
		if same(send, recv) {
			t.own = true
		} else {
			t.spare = recv
		}
	}
}

// recvRight receives the operand of higher ranks, counted from the root of the tree, and combines
// it: acc = acc ∘ operand.
func (t *reduction) recvRight(l Link, source int) error {
	if t.spare == nil {
		t.spare = l.Scratch(len(t.acc))
	}
	in := t.spare
	if err := l.Recv(in, source); err != nil {
		return err
	}
	if t.own && t.op.Commutes {
		t.op.Reduce2(t.acc, in)
		return nil
	}
	t.op.Reduce2(in, t.acc)
	t.spare = nil
	if t.own {
		t.spare = t.acc
	}
	t.acc, t.own = in, true
	return nil
}
