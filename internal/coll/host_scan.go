package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Scan and exscan by everybody for himself.
//
// Idea: as the allreduce of everybody for himself, but that a rank waits for the
// lower ranks only, and combines theirs.
//
// Cost: a copy, and as many combinations as there are lower ranks.
// Source: as allreduce; MPI-4.1 section 6.11.
// Restrictions: all ranks share memory; an element fits a piece.
func scanShared(l Link, _ *Config, send, recv []byte, op Op, exclusive bool) error {
	h := enter(l)
	bay, err := h.ownBay()
	if err != nil {
		return err
	}
	hi := h.Rank + 1
	if exclusive {
		hi = h.Rank
	}
	o := operands{h: h}
	piece := h.pieces(fewPieces, op.Size)
	n := count(len(send), piece)
	for i := range n {
		for r := h.Rank + 1; r < h.Size; r++ {
			if err := h.room(i, r); err != nil {
				return err
			}
		}
		from := cutOut(send, i, piece)
		o.own, o.at = from, h.place(i)
		bytecopy.Share(h.pieceAt(bay, i, len(from)), from)
		if i == 0 {
			if err := h.arrive(); err != nil {
				return err
			}
		} else {
			h.say(&h.own().put.word, h.step(i))
		}
		for r := h.Rank - 1; r >= 0; r-- {
			if i == 0 {
				err = h.meet(r)
			} else {
				err = h.await(r, &h.peers[r].put.word, h.step(i))
			}
			if err != nil {
				return err
			}
		}
		if hi > 0 {
			o.fold(cutOut(recv, i, piece), op, hi)
		}
		h.done(i, n)
	}
	if n == 0 {
		return h.arrive()
	}
	return nil
}
