package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Allgather in shared memory.
//
// Idea: every rank copies its block to its data buffer, and copies the blocks of the others from
// theirs. If the longest block is longer than half a data buffer, the blocks move in rounds, which
// use the two halves in turn. A rank that has published its part of round t has copied the other
// ranks' parts of round t-1, so all of them may overwrite these parts in round t+1.
//
// Cost: per rank one copy of its own block and one of each other block.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 section 6.7.
// Restrictions: all ranks share memory.
func allgatherShared(l Link, _ *Config, _, recv []byte, b blocks) error {
	return enter(l).allgather(recv, b)
}

// Allgather gathers blocks of equal length on every rank of the host. send is this rank's block; it
// may be the block's place in recv, or recv itself. The caller has called [Host.Enter].
//
// Hot path: no allocation; no lock and no system call if all ranks arrive at about the same time.
func (h *Host) Allgather(send, recv []byte) error {
	b := blocks{equal: len(recv) / h.Size}
	send = ownBlock(send, recv, b, h.Rank)
	move(b.of(recv, h.Rank), send)
	return h.allgather(recv, b)
}

func (h *Host) allgather(recv []byte, b blocks) error {
	most, own := b.largest(h.Size), b.of(recv, h.Rank)
	part := h.dataBufferBytes / 2
	if most <= part {
		if err := h.publishData(own); err != nil {
			return err
		}
		return h.finishAllgather(recv, b)
	}

	dataBuffer, err := h.ownDataBuffer()
	if err != nil {
		return err
	}
	if err := h.arrive(); err != nil {
		return err
	}
	for t := range segmentCount(most, part) {
		half := t % 2 * part
		if len(own) > t*part {
			bytecopy.Share(dataBuffer[half:], segmentOf(own, t, part))
		}
		h.publish(&h.own().written.word, h.step(t+1))
		for x := 1; x < h.Size; x++ {
			r := h.after(x)
			if t == 0 {
				if err := h.awaitArrival(r); err != nil {
					return err
				}
			}
			if err := h.await(r, &h.peers[r].written.word, h.step(t+1)); err != nil {
				return err
			}
			if from := b.of(recv, r); len(from) > t*part {
				to := segmentOf(from, t, part)
				copy(to, h.dataBufferOf(r)[half:])
			}
		}
	}
	h.arrivedAll = h.call
	return nil
}

// finishAllgather waits for the blocks that the other ranks have passed to publishData, and copies
// them to recv.
func (h *Host) finishAllgather(recv []byte, b blocks) error {
	for x := 1; x < h.Size; x++ {
		r := h.after(x)
		if err := h.awaitArrival(r); err != nil {
			return err
		}
		to := b.of(recv, r)
		copy(to, h.publishedData(r, len(to)))
	}
	h.arrivedAll = h.call
	return nil
}
