package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Scan and exscan in which every rank combines all operands of its prefix.
//
// Idea: every rank copies its operand to its data buffer, segment by segment. A rank reads only the
// operands of lower ranks, and combines them and, in Scan, its own. It waits for a higher rank only
// if that rank still reads a slot of its data buffer.
//
// Cost: a copy, and at most as many combinations as there are lower ranks.
// Source: as for allreduceShared; MPI-4.1 section 6.11.
// Restrictions: all ranks share memory; an element fits a segment.
func scanShared(l Link, _ *Config, send, recv []byte, op Op, exclusive bool) error {
	h := enter(l)
	dataBuffer, err := h.ownDataBuffer()
	if err != nil {
		return err
	}
	hi := h.Rank + 1
	if exclusive {
		hi = h.Rank
	}
	o := operands{h: h}
	segment := h.splitDataBuffers(fewSegments, op.Size)
	n := segmentCount(len(send), segment)
	for i := range n {
		for r := h.Rank + 1; r < h.Size; r++ {
			if err := h.waitSlotFree(i, r); err != nil {
				return err
			}
		}
		from := segmentOf(send, i, segment)
		o.own, o.at = from, h.slotOffset(i)
		bytecopy.Share(h.segmentAt(dataBuffer, i, len(from)), from)
		if i == 0 {
			if err := h.arrive(); err != nil {
				return err
			}
		} else {
			h.publish(&h.own().written.word, h.step(i))
		}
		for r := h.Rank - 1; r >= 0; r-- {
			if i == 0 {
				err = h.awaitArrival(r)
			} else {
				err = h.await(r, &h.peers[r].written.word, h.step(i))
			}
			if err != nil {
				return err
			}
		}
		if hi > 0 {
			o.reduce(segmentOf(recv, i, segment), op, hi)
		}
		h.publishConsumed(i, n)
	}
	if n == 0 {
		return h.arrive()
	}
	return nil
}
