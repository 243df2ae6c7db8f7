package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Allreduce by everybody for himself.
//
// Idea: every rank puts its operand where all can read it, waits for all, and
// combines everything itself: one round, however many ranks there are, and
// nobody need run twice where ranks share a core. All do it in the same order,
// from the highest rank down, and so get the same bits. For two ranks it is the
// best way for vectors of any length, which go piece by piece; more ranks share
// the work of long ones, see allreduce_slices.
//
// Cost: a copy and P-1 combinations per rank.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 section 6.9.6.
// Restrictions: all ranks share memory; an element fits a piece.
func allreduceShared(l Link, cfg *Config, send, recv []byte, op Op) error {
	return enter(l).Allreduce(cfg, send, recv, op)
}

// Allreduce is the allreduce within the host, after Enter.
//
// Hot path: no allocation, no lock and no system call where ranks are not late.
func (h *Host) Allreduce(cfg *Config, send, recv []byte, op Op) error {
	if h.Size > 2 && len(send) >= max(1, cfg.SharedSliceBytes) {
		return h.slices(send, recv, op, everybody)
	}
	piece := h.pieces(fewPieces, op.Size)
	if len(send) <= piece {
		if err := h.offer(send); err != nil {
			return err
		}
		if err := h.meetAll(); err != nil {
			return err
		}
		if len(send) > 0 {
			// Not what lies in the own line: another core has taken that away.
			o := operands{h: h, own: send, in: len(send) <= inlineBytes}
			o.fold(recv, op, h.Size)
		}
		return nil
	}

	bay, err := h.ownBay()
	if err != nil {
		return err
	}
	if err := h.arrive(); err != nil {
		return err
	}
	o := operands{h: h}
	n := count(len(send), piece)
	for i := range n {
		if err := h.room(i, everybody); err != nil {
			return err
		}
		from := cutOut(send, i, piece)
		o.own, o.at = from, h.place(i)
		bytecopy.Share(h.pieceAt(bay, i, len(from)), from)
		h.say(&h.own().put.word, h.step(i+1))
		for x := 1; x < h.Size; x++ {
			r := h.after(x)
			if i == 0 {
				if err := h.meet(r); err != nil {
					return err
				}
			}
			if err := h.await(r, &h.peers[r].put.word, h.step(i+1)); err != nil {
				return err
			}
		}
		o.fold(cutOut(recv, i, piece), op, h.Size)
		h.done(i, n)
	}
	h.known = h.call
	return nil
}

// Reduce and allreduce by slices.
//
// Idea: a segment of the vector, as long as a bay, is cut into a slice per rank.
// Every rank puts what it has of the others' slices into its bay, combines its
// own slice from all bays, puts the result where its own slice is in its bay,
// and all, or the root, copy the slices from there.
//
//	              slice 0     slice 1     slice 2
//	bay of rank 0 result 0    operand     operand
//	bay of rank 1 operand     result 1    operand
//	bay of rank 2 operand     operand     result 2
//
// put counts two steps per segment: the operands lie there, the result does.
// With the first step of the next segment a rank also says that it has copied
// the results of this one.
//
// Cost: per rank a copy of n, a combination of n (P-1)/P, and a copy of n (P-1)/P.
// Source: Jain et al., Framework for Scalable Intra-Node Collective Operations
// using Shared Memory, SC 2018; MPI-4.1 section 6.9.6.
// Restrictions: all ranks share memory; an element fits a bay. Each slice is
// combined by one rank, so that all get the same bits.
func (h *Host) slices(send, recv []byte, op Op, root int) error {
	bay, err := h.ownBay()
	if err != nil {
		return err
	}
	place := h.bay / h.Size / op.Size * op.Size // of a slice, which may be shorter in the last segment
	segment := place * h.Size
	for t := range count(len(send), segment) {
		from := cutOut(send, t, segment)
		parts := evenCut(len(from), op.Size, h.Size)
		for x := 1; x < h.Size; x++ {
			r := h.after(x)
			if t > 0 { // it has combined what lies here
				if err := h.await(r, &h.peers[r].put.word, h.step(2*t)); err != nil {
					return err
				}
			}
			bytecopy.Share(bay[r*place:], parts.of(from, r, r+1))
		}
		if t == 0 {
			err = h.arrive()
			if err == nil {
				err = h.meetAll()
			}
		} else {
			h.say(&h.own().put.word, h.step(2*t+1))
			err = h.allAt(2*t + 1)
		}
		if err != nil {
			return err
		}
		o := operands{h: h, own: parts.of(from, h.Rank, h.Rank+1), at: h.Rank * place}
		own := bay[o.at : o.at+len(o.own)]
		if len(own) > 0 {
			o.fold(own, op, h.Size)
		}
		h.say(&h.own().put.word, h.step(2*t+2))
		if root != everybody && root != h.Rank {
			continue
		}
		to := cutOut(recv, t, segment)
		copy(parts.of(to, h.Rank, h.Rank+1), own)
		for x := 1; x < h.Size; x++ {
			r := h.after(x)
			if err := h.await(r, &h.peers[r].put.word, h.step(2*t+2)); err != nil {
				return err
			}
			copy(parts.of(to, r, r+1), h.bayOf(r)[r*place:])
		}
	}
	return nil
}

// allAt waits until the put of all has come to n.
func (h *Host) allAt(n int) error {
	for x := 1; x < h.Size; x++ {
		r := h.after(x)
		if err := h.await(r, &h.peers[r].put.word, h.step(n)); err != nil {
			return err
		}
	}
	return nil
}
