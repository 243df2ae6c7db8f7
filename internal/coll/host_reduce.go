package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Reduce by one reader.
//
// Idea: every rank except the root copies its operand to its buffer in shared memory, and the root
// combines all operands, from the highest rank down. A buffer has room for manySegments segments.
// If the operand is at most one segment long, its rank does not wait in this call until the root
// has read it. Longer operands move segment by segment: a rank writes one while the root combines
// the previous one, and waits while its buffer is full. So of two ranks, one copies every byte
// while the other combines. If the vector is long, more than two ranks share the work; see
// [Host.slices].
//
// Cost: one copy, and P-1 combinations at the root.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 section 6.9.1.
// Restrictions: all ranks share memory; an element fits a segment.
func reduceShared(l Link, cfg *Config, send, recv []byte, op Op, root int) error {
	return enter(l).Reduce(cfg, send, recv, op, root)
}

// Reduce combines the operands of the host's ranks at the root. root is a rank within the host. The
// caller has called [Host.Enter].
//
// Hot path: no allocation; no lock and no system call if all ranks arrive at about the same time.
func (h *Host) Reduce(cfg *Config, send, recv []byte, op Op, root int) error {
	if h.Size == 1 {
		move(recv, send)
		return nil
	}
	if h.Size > 2 && len(send) > cfg.SharedRootBytes {
		return h.slices(send, recv, op, root)
	}
	segment := h.splitDataBuffers(manySegments, op.Size)
	if h.Rank != root {
		if len(send) <= segment {
			return h.publishData(send)
		}
		return h.writeSegments(send, segment, root)
	}
	if err := h.arrive(); err != nil {
		return err
	}
	if err := h.awaitAllArrivals(); err != nil {
		return err
	}
	o := operands{h: h, own: send, inline: len(send) <= inlineBytes}
	if len(send) <= segment {
		if len(send) > 0 {
			o.reduce(recv, op, h.Size)
		}
		return nil
	}
	n := segmentCount(len(send), segment)
	for i := range n {
		if err := h.awaitAllWritten(i + 1); err != nil {
			return err
		}
		o.own, o.at = segmentOf(send, i, segment), h.slotOffset(i)
		o.reduce(segmentOf(recv, i, segment), op, h.Size)
		h.publishConsumed(i, n)
	}
	return nil
}

// writeSegments publishes this rank's arrival, and copies a vector to its data buffer segment by
// segment. The reader is a rank within the host, or allRanks for all other ranks. segment is the
// length of a segment in bytes.
func (h *Host) writeSegments(data []byte, segment, reader int) error {
	dataBuffer, err := h.ownDataBuffer()
	if err != nil {
		return err
	}
	if err := h.arrive(); err != nil {
		return err
	}
	for i := range segmentCount(len(data), segment) {
		if err := h.waitSlotFree(i, reader); err != nil {
			return err
		}
		from := segmentOf(data, i, segment)
		bytecopy.Share(h.segmentAt(dataBuffer, i, len(from)), from)
		h.publish(&h.own().written.word, h.step(i+1))
	}
	return nil
}
