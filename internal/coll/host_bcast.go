package coll

// Bcast by one writer and many readers.
//
// Idea: the root puts its data into its line or its bay, and the others copy it
// from there. What is longer than a piece goes piece by piece, each copied while
// the root writes the next.
//
// Cost: two copies, at the same time but for the first piece; the root waits
// only for room.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 section 6.4.
// Restrictions: all ranks share memory.
func bcastShared(l Link, _ *Config, buf []byte, root int) error { return enter(l).Bcast(buf, root) }

// Bcast is the bcast within the host, after Enter; root is a rank of it.
//
// Hot path: no allocation, no lock and no system call where ranks are not late.
func (h *Host) Bcast(buf []byte, root int) error {
	piece := h.pieces(manyPieces, 1)
	switch {
	case h.Size == 1:
		return nil
	case len(buf) > piece:
	case h.Rank == root:
		return h.offer(buf)
	default:
		if err := h.arrive(); err != nil {
			return err
		}
		if err := h.meet(root); err != nil {
			return err
		}
		copy(buf, h.offered(root, len(buf)))
		return nil
	}

	if h.Rank == root {
		return h.feed(buf, piece, everybody)
	}
	if err := h.arrive(); err != nil {
		return err
	}
	if err := h.meet(root); err != nil {
		return err
	}
	bay, n := h.bayOf(root), count(len(buf), piece)
	for i := range n {
		if err := h.await(root, &h.peers[root].put.word, h.step(i+1)); err != nil {
			return err
		}
		to := cutOut(buf, i, piece)
		copy(to, h.pieceAt(bay, i, len(to)))
		h.done(i, n)
	}
	return nil
}
