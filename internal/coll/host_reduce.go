package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Reduce by one reader.
//
// Idea: every rank puts its operand where the root can read it and is done;
// the root combines all of them, from the highest rank down. What is longer than
// a piece goes piece by piece: the others write one while the root combines the
// last. So two ranks copy and combine every byte once, at the same time; more
// ranks share the work where the vector is long, see allreduce_slices.
//
// Cost: one copy, and P-1 combinations at the root.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 section 6.9.1.
// Restrictions: all ranks share memory; an element fits a piece.
func reduceShared(l Link, cfg *Config, send, recv []byte, op Op, root int) error {
	return enter(l).Reduce(cfg, send, recv, op, root)
}

// Reduce is the reduce within the host, after Enter; root is a rank of it.
//
// Hot path: no allocation, no lock and no system call where ranks are not late.
func (h *Host) Reduce(cfg *Config, send, recv []byte, op Op, root int) error {
	if h.Size == 1 {
		move(recv, send)
		return nil
	}
	if h.Size > 2 && len(send) > cfg.SharedRootBytes {
		return h.slices(send, recv, op, root)
	}
	piece := h.pieces(manyPieces, op.Size)
	if h.Rank != root {
		if len(send) <= piece {
			return h.offer(send)
		}
		return h.feed(send, piece, root)
	}
	if err := h.arrive(); err != nil {
		return err
	}
	if err := h.meetAll(); err != nil {
		return err
	}
	o := operands{h: h, own: send, in: len(send) <= inlineBytes}
	if len(send) <= piece {
		if len(send) > 0 {
			o.fold(recv, op, h.Size)
		}
		return nil
	}
	n := count(len(send), piece)
	for i := range n {
		for r := range h.Size {
			if r == h.Rank {
				continue
			}
			if err := h.await(r, &h.peers[r].put.word, h.step(i+1)); err != nil {
				return err
			}
		}
		o.own, o.at = cutOut(send, i, piece), h.place(i)
		o.fold(cutOut(recv, i, piece), op, h.Size)
		h.done(i, n)
	}
	return nil
}

// feed puts a vector into the bay, piece by piece, for a reader or everybody.
func (h *Host) feed(data []byte, piece, reader int) error {
	bay, err := h.ownBay()
	if err != nil {
		return err
	}
	if err := h.arrive(); err != nil {
		return err
	}
	for i := range count(len(data), piece) {
		if err := h.room(i, reader); err != nil {
			return err
		}
		from := cutOut(data, i, piece)
		bytecopy.Share(h.pieceAt(bay, i, len(from)), from)
		h.say(&h.own().put.word, h.step(i+1))
	}
	return nil
}
