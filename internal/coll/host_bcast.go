package coll

// Bcast by one writer and many readers.
//
// Idea: the root copies its data to its arrival line or its data buffer, and the others copy it
// from there. Data longer than a segment moves segment by segment: the readers copy one while the
// root writes the next. The data buffer has slots for manySegments segments, and the root waits
// only if no slot is free.
//
// Cost: two copies, which overlap except for the first segment.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 section 6.4.
// Restrictions: all ranks share memory.
func bcastShared(l Link, _ *Config, buf []byte, root int) error { return enter(l).Bcast(buf, root) }

// Bcast copies the root's buf to all ranks of the host. root is a rank within the host. The caller
// has called [Host.Enter].
//
// Hot path: no allocation; no lock and no system call if all ranks arrive at about the same time.
func (h *Host) Bcast(buf []byte, root int) error {
	segment := h.splitDataBuffers(manySegments, 1)
	switch {
	case h.Size == 1:
		return nil
	case len(buf) > segment:
	case h.Rank == root:
		return h.publishData(buf)
	default:
		if err := h.arrive(); err != nil {
			return err
		}
		return h.finishBcast(buf, root)
	}

	if h.Rank == root {
		return h.writeSegments(buf, segment, allRanks)
	}
	if err := h.arrive(); err != nil {
		return err
	}
	if err := h.awaitArrival(root); err != nil {
		return err
	}
	dataBuffer, n := h.dataBufferOf(root), segmentCount(len(buf), segment)
	for i := range n {
		if err := h.await(root, &h.peers[root].written.word, h.step(i+1)); err != nil {
			return err
		}
		to := segmentOf(buf, i, segment)
		copy(to, h.segmentAt(dataBuffer, i, len(to)))
		h.publishConsumed(i, n)
	}
	return nil
}

// finishBcast waits for the data that the root has passed to publishData, and copies it to buf.
func (h *Host) finishBcast(buf []byte, root int) error {
	if h.Rank == root {
		return nil
	}
	if err := h.awaitArrival(root); err != nil {
		return err
	}
	copy(buf, h.publishedData(root, len(buf)))
	return nil
}
