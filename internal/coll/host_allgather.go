package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Allgather by reading each other's blocks.
//
// Idea: every rank puts its block where all can read it, and copies those of the
// others from there. What is longer than half a bay goes in rounds, by turns in
// the two halves: who has put its part of a round has copied those of the round
// before the last.
//
// Cost: a copy of the own block and one of each other's.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 section 6.7.
// Restrictions: all ranks share memory.
func allgatherShared(l Link, _ *Config, _, recv []byte, b blocks) error {
	return enter(l).allgather(recv, b)
}

// Allgather is the allgather of equal blocks within the host, after Enter. send
// is the own block, and may be where it belongs in recv.
//
// Hot path: no allocation, no lock and no system call where ranks are not late.
func (h *Host) Allgather(send, recv []byte) error {
	b := blocks{equal: len(recv) / h.Size}
	send = ownBlock(send, recv, b, h.Rank)
	move(b.of(recv, h.Rank), send)
	return h.allgather(recv, b)
}

func (h *Host) allgather(recv []byte, b blocks) error {
	most, own := b.largest(h.Size), b.of(recv, h.Rank)
	part := h.bay / 2
	if most <= part {
		if err := h.offer(own); err != nil {
			return err
		}
		for x := 1; x < h.Size; x++ {
			r := h.after(x)
			if err := h.meet(r); err != nil {
				return err
			}
			to := b.of(recv, r)
			copy(to, h.offered(r, len(to)))
		}
		h.known = h.call
		return nil
	}

	bay, err := h.ownBay()
	if err != nil {
		return err
	}
	if err := h.arrive(); err != nil {
		return err
	}
	for t := range count(most, part) {
		half := t % 2 * part
		if len(own) > t*part {
			bytecopy.Share(bay[half:], cutOut(own, t, part))
		}
		h.say(&h.own().put.word, h.step(t+1))
		for x := 1; x < h.Size; x++ {
			r := h.after(x)
			if t == 0 {
				if err := h.meet(r); err != nil {
					return err
				}
			}
			if err := h.await(r, &h.peers[r].put.word, h.step(t+1)); err != nil {
				return err
			}
			if from := b.of(recv, r); len(from) > t*part {
				to := cutOut(from, t, part)
				copy(to, h.bayOf(r)[half:])
			}
		}
	}
	h.known = h.call
	return nil
}
