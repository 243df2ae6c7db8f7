package coll

import "github.com/weft-hpc/weft/internal/bytecopy"

// Reduce-scatter by blocks.
//
// Idea: every rank puts a part of each of the others' blocks into its bay, waits
// for all, and combines its own block from all bays; then the next part, in the
// other half of the bay. Who has put the parts of a round has combined those of
// the round before, so one wait per round does.
//
// Cost: per rank a copy of n (P-1)/P, and a combination of n (P-1)/P.
// Source: as allreduce_slices; MPI-4.1 section 6.10.
// Restrictions: all ranks share memory; an element fits the part of a bay that
// is a pair's.
func reduceScatterShared(l Link, _ *Config, send, recv []byte, b blocks, op Op) error {
	h := enter(l)
	bay, err := h.ownBay()
	if err != nil {
		return err
	}
	// With one round, the whole bay; else halves, by turns.
	most, part, halves := b.largest(h.Size), h.bay/h.Size/op.Size*op.Size, 1
	if most > part {
		part, halves = h.bay/2/h.Size/op.Size*op.Size, 2
	}
	rounds := max(1, count(most, part))
	inPlace := same(send, recv)
	to := recv
	if inPlace && rounds > 1 { // recv lies over blocks that are still to be sent
		to = l.Scratch(len(recv))
	}
	o := operands{h: h}
	for t := range rounds {
		half := t % halves * (h.bay / 2)
		for r := range h.Size {
			from := b.of(send, r)
			if r == h.Rank && !inPlace || len(from) <= t*part {
				continue
			}
			bytecopy.Share(bay[half+r*part:], cutOut(from, t, part))
		}
		if t == 0 {
			err = h.arrive()
			if err == nil {
				err = h.meetAll()
			}
		} else {
			h.say(&h.own().put.word, h.step(t))
			err = h.allAt(t)
		}
		if err != nil {
			return err
		}
		if len(to) <= t*part {
			continue
		}
		dst := cutOut(to, t, part)
		o.at = half + h.Rank*part
		if o.own = bay[o.at:]; !inPlace {
			o.own = cutOut(b.of(send, h.Rank), t, part)
		}
		o.fold(dst, op, h.Size)
	}
	move(recv, to)
	return nil
}
