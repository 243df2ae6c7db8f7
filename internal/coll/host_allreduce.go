package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Allreduce in which every rank combines all operands.
//
// Idea: every rank publishes its operand, waits for all others, and combines all operands itself.
// That takes one round for any number of ranks, so ranks that share a core need not run twice. All
// ranks combine in the same order, from the highest rank down, and so get the same bits. Two ranks
// use this for vectors of any length, segment by segment. More ranks share the work of long
// vectors; see [Host.slices].
//
// Cost: a copy and P-1 combinations per rank.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 section 6.9.6.
// Restrictions: all ranks share memory; an element fits a segment.
func allreduceShared(l Link, cfg *Config, send, recv []byte, op Op) error {
	return enter(l).Allreduce(cfg, send, recv, op)
}

// Allreduce combines the operands of the host's ranks on every rank. The caller has called
// [Host.Enter].
//
// Hot path: no allocation; no lock and no system call if all ranks arrive at about the same time.
func (h *Host) Allreduce(cfg *Config, send, recv []byte, op Op) error {
	segment := h.splitDataBuffers(fewSegments, op.Size)
	switch {
	case h.bySlices(cfg, len(send)):
		return h.slices(send, recv, op, allRanks)
	case len(send) <= segment:
		if err := h.publishData(send); err != nil {
			return err
		}
		return h.finishAllreduce(send, recv, op)
	}

	dataBuffer, err := h.ownDataBuffer()
	if err != nil {
		return err
	}
	if err := h.arrive(); err != nil {
		return err
	}
	o := operands{h: h}
	n := segmentCount(len(send), segment)
	for i := range n {
		if err := h.waitSlotFree(i, allRanks); err != nil {
			return err
		}
		from := segmentOf(send, i, segment)
		o.own, o.at = from, h.slotOffset(i)
		bytecopy.Share(h.segmentAt(dataBuffer, i, len(from)), from)
		h.publish(&h.own().written.word, h.step(i+1))
		if i == 0 {
			if err := h.awaitAllArrivals(); err != nil {
				return err
			}
		}
		if err := h.awaitAllWritten(i + 1); err != nil {
			return err
		}
		o.reduce(segmentOf(recv, i, segment), op, h.Size)
		h.publishConsumed(i, n)
	}
	return nil
}

// bySlices reports whether the ranks share the work of an allreduce of n bytes.
func (h *Host) bySlices(cfg *Config, n int) bool {
	return h.Size > 2 && n >= max(1, cfg.SharedSliceBytes)
}

// isShortAllreduce reports whether an allreduce of n bytes has one round.
func (h *Host) isShortAllreduce(cfg *Config, n int, op Op) bool {
	return !h.bySlices(cfg, n) && n <= h.splitDataBuffers(fewSegments, op.Size)
}

// finishAllreduce waits for the operands that the other ranks have passed to publishData, and combines
// all operands.
func (h *Host) finishAllreduce(send, recv []byte, op Op) error {
	if err := h.awaitAllArrivals(); err != nil {
		return err
	}
	if len(send) > 0 {
		// Read this rank's operand from send, not from its arrival line: the line may be in the cache
		// of another core now.
		o := operands{h: h, own: send, inline: len(send) <= inlineBytes}
		o.reduce(recv, op, h.Size)
	}
	return nil
}

// Reduce and allreduce by slices.
//
// Idea: a segment of the vector is as long as a data buffer and has one slice per rank. Every rank
// copies its operands for the slices of the other ranks to its data buffer. Then it combines its
// own slice from its operand and the data buffers of the others, and writes the result to its own
// slice of its data buffer. All ranks, or the root, copy the results from there.
//
//	                  slice 0     slice 1     slice 2
//	buffer of rank 0  result 0    operand     operand
//	buffer of rank 1  operand     result 1    operand
//	buffer of rank 2  operand     operand     result 2
//
// The word written counts two steps per segment: first the operands are in the data buffer, then
// the result is. The first step of the next segment also publishes that the rank has copied the
// results of this one.
//
// Cost: per rank a copy of n, a combination of n (P-1)/P, and a copy of n (P-1)/P.
// Source: Jain et al., Framework for Scalable Intra-Node Collective Operations
// using Shared Memory, SC 2018; MPI-4.1 section 6.9.6.
// Restrictions: all ranks share memory; an element fits a slice. One rank combines each slice, so
// all ranks get the same bits.
func (h *Host) slices(send, recv []byte, op Op, root int) error {
	dataBuffer, err := h.ownDataBuffer()
	if err != nil {
		return err
	}
	// In bytes. The slices of the last segment may be shorter.
	slice := h.dataBufferBytes / h.Size / op.Size * op.Size
	segment := slice * h.Size
	for t := range segmentCount(len(send), segment) {
		from := segmentOf(send, t, segment)
		parts := evenPartition(len(from), op.Size, h.Size)
		for x := 1; x < h.Size; x++ {
			r := h.after(x)
			if t > 0 { // wait until r has combined this rank's operand of the previous segment, which is there
				if err := h.await(r, &h.peers[r].written.word, h.step(2*t)); err != nil {
					return err
				}
			}
			bytecopy.Share(dataBuffer[r*slice:], parts.of(from, r, r+1))
		}
		if t == 0 {
			err = h.arrive()
			if err == nil {
				err = h.awaitAllArrivals()
			}
		} else {
			h.publish(&h.own().written.word, h.step(2*t+1))
			err = h.awaitAllWritten(2*t + 1)
		}
		if err != nil {
			return err
		}
		o := operands{h: h, own: parts.of(from, h.Rank, h.Rank+1), at: h.Rank * slice}
		own := dataBuffer[o.at : o.at+len(o.own)]
		if len(own) > 0 {
			o.reduce(own, op, h.Size)
		}
		h.publish(&h.own().written.word, h.step(2*t+2))
		if root != allRanks && root != h.Rank {
			continue
		}
		to := segmentOf(recv, t, segment)
		copy(parts.of(to, h.Rank, h.Rank+1), own)
		for x := 1; x < h.Size; x++ {
			r := h.after(x)
			if err := h.await(r, &h.peers[r].written.word, h.step(2*t+2)); err != nil {
				return err
			}
			copy(parts.of(to, r, r+1), h.dataBufferOf(r)[r*slice:])
		}
	}
	return nil
}

// awaitAllWritten waits until the word written of every other rank counts at least n steps of the
// current call.
func (h *Host) awaitAllWritten(n int) error {
	for x := 1; x < h.Size; x++ {
		r := h.after(x)
		if err := h.await(r, &h.peers[r].written.word, h.step(n)); err != nil {
			return err
		}
	}
	return nil
}
