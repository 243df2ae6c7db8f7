package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Reduce-scatter in which every rank combines its own block.
//
// Idea: in each round every rank copies a part of its operand for each other rank's block to its
// data buffer, waits for all ranks, and combines that part of its own block from all data buffers.
// Rounds use the two halves of the data buffer in turn. A rank that has published the parts of a
// round has combined those of the previous one, so one wait per round is enough.
//
// Cost: per rank a copy of n (P-1)/P, and a combination of n (P-1)/P.
// Source: as for [Host.slices]; MPI-4.1 section 6.10.
// Restrictions: all ranks share memory; an element fits one rank's place in half a data buffer.
func reduceScatterShared(l Link, _ *Config, send, recv []byte, b blocks, op Op) error {
	h := enter(l)
	dataBuffer, err := h.ownDataBuffer()
	if err != nil {
		return err
	}
	// A single round uses the whole data buffer.
	most, part, halves := b.largest(h.Size), h.dataBufferBytes/h.Size/op.Size*op.Size, 1
	if most > part {
		part, halves = h.dataBufferBytes/2/h.Size/op.Size*op.Size, 2
	}
	rounds := max(1, segmentCount(most, part))
	inPlace := same(send, recv)
	to := recv
	if inPlace && rounds > 1 { // recv overlaps blocks that later rounds send
		to = l.Scratch(len(recv))
	}
	o := operands{h: h}
	for t := range rounds {
		half := t % halves * (h.dataBufferBytes / 2)
		for r := range h.Size {
			from := b.of(send, r)
			// In place, the results overwrite the beginning of send, so this rank reads its own
			// operand from its data buffer too.
			if r == h.Rank && !inPlace || len(from) <= t*part {
				continue
			}
			bytecopy.Share(dataBuffer[half+r*part:], segmentOf(from, t, part))
		}
		if t == 0 {
			err = h.arrive()
			if err == nil {
				err = h.awaitAllArrivals()
			}
		} else {
			h.publish(&h.own().written.word, h.step(t))
			err = h.awaitAllWritten(t)
		}
		if err != nil {
			return err
		}
		if len(to) <= t*part {
			continue
		}
		dst := segmentOf(to, t, part)
		o.at = half + h.Rank*part
		if o.own = dataBuffer[o.at:]; !inPlace {
			o.own = segmentOf(b.of(send, h.Rank), t, part)
		}
		o.reduce(dst, op, h.Size)
	}
	move(recv, to)
	return nil
}
