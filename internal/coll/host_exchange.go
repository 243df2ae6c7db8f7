package coll

import (
	"encoding/binary"

	"github.com/weft-hpc/weft/internal/bytecopy"
)

// Gather, scatter and alltoall by reading each other's blocks.
//
// Idea: a rank puts what it has for each reader into its bay, arrives, and
// copies what the others have for it. What does not fit goes in rounds, by turns
// in the two halves of the bay, each cut into as many places as there are
// readers. Pairs of whom only they know how much they exchange have the lengths
// before the data, for the reader to compare.
//
//	bay of a writer of pairs of any length, 3 readers
//	┌ 3 lengths ┬ half 0: for 0 │ for 1 │ for 2 ┬ half 1: for 0 │ for 1 │ for 2 ┐
//
// got says how many rounds a rank has copied, so that the writer knows when half
// a bay is free for the next round but one. Ranks have as many rounds as their
// longest block of either side takes, and wait in a round only for the partners
// that have as many: no circle, since a rank waits for an earlier round, or to
// read for what is written in its round.
//
// Cost: two copies of every block.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 sections 6.5, 6.6, 6.8.
// Restrictions: all ranks share memory.
type hostExchange struct {
	h          *Host
	send, recv []byte
	sb, rb     blocks
	uniform    bool // all know all lengths
	to, from   int  // who reads what this rank writes, whom it reads: a rank of the host, everybody, nobody
	readers    int  // of a writer

	in   bool // what a rank writes fits its line's data
	base int  // of the bay: where the halves begin
	part int  // bytes of a pair in one round
	half int  // where the second half begins, after base; 0: there is one round only
}

// nobody stands for no rank.
const nobody = -2

func gatherShared(l Link, _ *Config, send, recv []byte, b blocks, root int) error {
	return enter(l).gather(send, recv, b, root)
}

func scatterShared(l Link, _ *Config, send, recv []byte, b blocks, root int) error {
	return enter(l).scatter(send, recv, b, root)
}

func alltoallShared(l Link, _ *Config, send []byte, sb blocks, recv []byte, rb blocks) error {
	return enter(l).alltoall(send, sb, recv, rb)
}

// Alltoall is the alltoall of equal blocks within the host, after Enter.
//
// Hot path: no allocation, no lock and no system call where ranks are not late.
func (h *Host) Alltoall(send, recv []byte) error {
	b := blocks{equal: len(recv) / h.Size}
	if len(send) > h.bay {
		return h.alltoall(send, b, recv, b)
	}
	l, err := h.line()
	if err != nil {
		return err
	}
	inline := len(send) <= inlineBytes
	to := l.data[:]
	if !inline {
		if to, err = h.ownBay(); err != nil {
			return err
		}
	}
	for r := range h.Size {
		if r != h.Rank {
			bytecopy.Share(to[b.off(r):], b.of(send, r))
		}
	}
	h.arrived(l)
	own := b.off(h.Rank)
	move(b.of(recv, h.Rank), b.of(send, h.Rank))
	for x := 1; x < h.Size; x++ {
		r := h.after(x)
		if err := h.meet(r); err != nil {
			return err
		}
		from := h.peers[r].lines[h.call%ringLines].data[:]
		if !inline {
			from = h.bayOf(r)
		}
		copy(b.of(recv, r), from[own:])
	}
	h.known = h.call
	return nil
}

func (h *Host) alltoall(send []byte, sb blocks, recv []byte, rb blocks) error {
	move(rb.of(recv, h.Rank), sb.of(send, h.Rank))
	x := hostExchange{
		h: h, send: send, sb: sb, recv: recv, rb: rb, uniform: sb.uniform() && rb.uniform(),
		to: everybody, from: everybody, readers: h.Size,
	}
	return x.run()
}

// gather takes the root's rank within the host, as scatter does.
func (h *Host) gather(send, recv []byte, b blocks, root int) error {
	x := hostExchange{h: h, send: send, recv: recv, rb: b, uniform: b.uniform(), to: root, from: nobody, readers: 1}
	if h.Rank == root {
		move(b.of(recv, root), send)
		x.to, x.from = nobody, everybody
	}
	return x.run()
}

func (h *Host) scatter(send, recv []byte, b blocks, root int) error {
	x := hostExchange{h: h, send: send, sb: b, recv: recv, uniform: b.uniform(), to: nobody, from: root, readers: h.Size}
	if h.Rank == root {
		move(recv, b.of(send, root))
		x.to, x.from = everybody, nobody
	}
	return x.run()
}

// out is what this rank has for a reader, and where in the bay it has its place.
func (x *hostExchange) out(rank int) (data []byte, place int) {
	if x.readers == 1 {
		return x.send, 0
	}
	return x.sb.of(x.send, rank), rank
}

// into is where what a writer has for this rank goes, and its place in that
// one's bay.
func (x *hostExchange) into(rank int) (data []byte, place int) {
	switch {
	case x.readers == 1:
		return x.rb.of(x.recv, rank), 0
	case x.from != everybody:
		return x.recv, x.h.Rank
	}
	return x.rb.of(x.recv, rank), x.h.Rank
}

// partner says whether this rank has to do with another: which is to or from.
func partner(which, rank int) bool { return which == everybody || which == rank }

func (x *hostExchange) run() error {
	h := x.h
	most := 0
	for i := 1; i < h.Size; i++ {
		r := h.after(i)
		if partner(x.to, r) {
			data, _ := x.out(r)
			most = max(most, len(data))
		}
		if partner(x.from, r) {
			data, _ := x.into(r)
			most = max(most, len(data))
		}
	}
	rounds := x.cut(most)
	if rounds > maxSteps {
		return ErrLength
	}
	if err := x.begin(); err != nil {
		return err
	}
	for t := range rounds {
		if t > 0 && x.to != nobody {
			if err := x.write(t); err != nil {
				return err
			}
		}
		if x.from == nobody {
			continue
		}
		if err := x.read(t); err != nil {
			return err
		}
		if t == 0 && x.from == everybody {
			h.known = h.call
		}
		if t+3 <= rounds {
			h.say(&h.own().got.word, h.step(t+1))
		}
	}
	return nil
}

// cut decides what lies where, and says how many rounds this rank has whose
// longest block is most.
func (x *hostExchange) cut(most int) (rounds int) {
	room := x.h.bay
	switch {
	case x.uniform && most*x.readers <= inlineBytes:
		x.in, x.part = true, most
		return 1
	case x.uniform && most <= room/x.readers:
		x.part = most
		return 1
	case !x.uniform:
		x.base = (8*x.readers + 63) &^ 63
		room -= x.base
	}
	x.half = room / 2 &^ 7
	x.part = x.half / x.readers &^ 7
	return max(1, count(most, x.part))
}

// at is where what a reader with a place gets in round t lies in a bay.
func (x *hostExchange) at(t, place int) int { return x.base + t%2*x.half + place*x.part }

// begin writes what is for the first round, and arrives.
func (x *hostExchange) begin() error {
	h := x.h
	if x.to == nobody {
		return h.arrive()
	}
	l, err := h.line()
	if err != nil {
		return err
	}
	to := l.data[:]
	if !x.in {
		if to, err = h.ownBay(); err != nil {
			return err
		}
	}
	for i := 1; i < h.Size; i++ {
		r := h.after(i)
		if !partner(x.to, r) {
			continue
		}
		data, place := x.out(r)
		if !x.uniform {
			binary.NativeEndian.PutUint64(to[8*place:], uint64(len(data)))
		}
		if len(data) > 0 {
			bytecopy.Share(to[x.at(0, place):], cutOut(data, 0, x.part))
		}
	}
	h.arrived(l)
	return nil
}

// write writes what is for round t, from the second on.
func (x *hostExchange) write(t int) error {
	h := x.h
	bay := h.bayOf(h.Rank)
	for i := 1; i < h.Size; i++ {
		r := h.after(i)
		if !partner(x.to, r) {
			continue
		}
		data, place := x.out(r)
		if len(data) <= t*x.part {
			continue
		}
		if t >= 2 {
			if err := h.await(r, &h.peers[r].got.word, h.step(t-1)); err != nil {
				return err
			}
		}
		bytecopy.Share(bay[x.at(t, place):], cutOut(data, t, x.part))
	}
	h.say(&h.own().put.word, h.step(t))
	return nil
}

// read copies what others have written for round t.
func (x *hostExchange) read(t int) error {
	h := x.h
	for i := 1; i < h.Size; i++ {
		r := h.after(i)
		if !partner(x.from, r) {
			continue
		}
		data, place := x.into(r)
		if t == 0 {
			if err := h.meet(r); err != nil {
				return err
			}
			if !x.uniform {
				if n := binary.NativeEndian.Uint64(h.bayOf(r)[8*place:]); n != uint64(len(data)) {
					return h.link.Miscount(r, int(n), len(data))
				}
			}
		}
		if len(data) <= t*x.part && (t > 0 || len(data) == 0) {
			continue
		}
		if t > 0 {
			if err := h.await(r, &h.peers[r].put.word, h.step(t)); err != nil {
				return err
			}
		}
		from := h.peers[r].lines[h.call%ringLines].data[:]
		if !x.in {
			from = h.bayOf(r)
		}
		copy(cutOut(data, t, x.part), from[x.at(t, place):])
	}
	return nil
}
