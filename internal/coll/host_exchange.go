package coll

import (
	"encoding/binary"

	"github.com/weft-hpc/weft/internal/bytecopy"
)

// Gather, scatter and alltoall in shared memory.
//
// Idea: a rank copies its block for each reader to its data buffer, arrives, and copies the blocks
// that the others have for it. Long blocks move in rounds, which use the two halves of the data
// buffer in turn. Each half has one place per reader, for a part of that reader's block. If only the
// two ranks of a pair know the length of their block (Gatherv, Scatterv, Alltoallv), the writer puts
// the lengths before the data, and each reader compares its length with the one that it expects.
//
//	data buffer of a writer on a host of 3 ranks, if only the ranks of a pair know the lengths
//	┌ 3 lengths ┬ half 0: for 0 │ for 1 │ for 2 ┬ half 1: for 0 │ for 1 │ for 2 ┐
//
// A rank's word consumed counts the rounds in which the rank has copied all data for it. So a
// writer sees there whether the reader's place in the half of round t is free for round t+2. The
// number of rounds of a rank depends on the longest block that it sends or receives. After round 0,
// a rank waits in a round only for ranks to or from which it has data in that round. There is no
// cycle of waits: a writer waits for an earlier round of its readers, and a reader waits for its
// writers to write the same round.
//
// Cost: two copies of every block.
// Source: Graham and Shipman, EuroPVM/MPI 2008; MPI-4.1 sections 6.5, 6.6, 6.8.
// Restrictions: all ranks share memory.
type hostExchange struct {
	h          *Host
	send, recv []byte
	sb, rb     blocks
	uniform    bool // all blocks have the same length; false in the v-forms

	// target reads what this rank writes, and this rank reads what source writes. Each is a
	// rank of the host, allRanks or noRank.
	target, source int
	readerCount    int // places in a half: 1 if only the root reads (gather), else one per rank of the host

	inline bool // the data of each writer for all its readers fits its arrival line, and is there
	base   int  // offset of the first half in the data buffer: the space for lengths; 0 if uniform
	part   int  // most bytes from one writer to one reader in a round; the size of a place
	half   int  // offset of the second half from base; 0: there is one round
}

// noRank stands for no rank, as a root, target or source.
const noRank = -2

func gatherShared(l Link, _ *Config, send, recv []byte, b blocks, root int) error {
	return enter(l).gather(send, recv, b, root)
}

func scatterShared(l Link, _ *Config, send, recv []byte, b blocks, root int) error {
	return enter(l).scatter(send, recv, b, root)
}

func alltoallShared(l Link, _ *Config, send []byte, sb blocks, recv []byte, rb blocks) error {
	return enter(l).alltoall(send, sb, recv, rb)
}

// Alltoall exchanges blocks of equal length between the ranks of the host. The caller has called
// [Host.Enter].
//
// Hot path: no allocation; no lock and no system call if all ranks arrive at about the same time.
func (h *Host) Alltoall(send, recv []byte) error {
	b := blocks{equal: len(recv) / h.Size}
	if len(send) > h.dataBufferBytes {
		return h.alltoall(send, b, recv, b)
	}
	l, err := h.line()
	if err != nil {
		return err
	}
	inline := len(send) <= inlineBytes
	to := l.data[:]
	if !inline {
		if to, err = h.ownDataBuffer(); err != nil {
			return err
		}
	}
	for r := range h.Size {
		if r != h.Rank {
			bytecopy.Share(to[b.off(r):], b.of(send, r))
		}
	}
	h.publishArrival(l)
	own := b.off(h.Rank)
	move(b.of(recv, h.Rank), b.of(send, h.Rank))
	for x := 1; x < h.Size; x++ {
		r := h.after(x)
		if err := h.awaitArrival(r); err != nil {
			return err
		}
		from := h.peers[r].lines[h.call%ringLines].data[:]
		if !inline {
			from = h.dataBufferOf(r)
		}
		copy(b.of(recv, r), from[own:])
	}
	h.arrivedAll = h.call
	return nil
}

func (h *Host) alltoall(send []byte, sb blocks, recv []byte, rb blocks) error {
	move(rb.of(recv, h.Rank), sb.of(send, h.Rank))
	x := hostExchange{
		h: h, send: send, sb: sb, recv: recv, rb: rb, uniform: sb.uniform() && rb.uniform(),
		target: allRanks, source: allRanks, readerCount: h.Size,
	}
	return x.run()
}

// gather gathers blocks within the host. root is a rank within the host.
func (h *Host) gather(send, recv []byte, b blocks, root int) error {
	x := hostExchange{h: h, send: send, recv: recv, rb: b, uniform: b.uniform(), target: root, source: noRank, readerCount: 1}
	if h.Rank == root {
		move(b.of(recv, root), send)
		x.target, x.source = noRank, allRanks
	}
	return x.run()
}

// scatter distributes blocks within the host. root is a rank within the host.
func (h *Host) scatter(send, recv []byte, b blocks, root int) error {
	x := hostExchange{h: h, send: send, sb: b, recv: recv, uniform: b.uniform(), target: noRank, source: root, readerCount: h.Size}
	if h.Rank == root {
		move(recv, b.of(send, root))
		x.target, x.source = allRanks, noRank
	}
	return x.run()
}

// outgoing returns this rank's block for the reader rank, and the number of the block's place in
// this rank's data buffer.
func (x *hostExchange) outgoing(rank int) (data []byte, place int) {
	if x.readerCount == 1 {
		return x.send, 0
	}
	return x.sb.of(x.send, rank), rank
}

// incoming returns the part of the receive buffer for the block of the writer rank, and the number
// of the block's place in that writer's data buffer.
func (x *hostExchange) incoming(rank int) (data []byte, place int) {
	switch {
	case x.readerCount == 1:
		return x.rb.of(x.recv, rank), 0
	case x.source != allRanks:
		return x.recv, x.h.Rank
	}
	return x.rb.of(x.recv, rank), x.h.Rank
}

// involves reports whether rank is among the ranks that which (a target or a source) stands for.
func involves(which, rank int) bool { return which == allRanks || which == rank }

func (x *hostExchange) run() error {
	h := x.h
	most := 0
	for i := 1; i < h.Size; i++ {
		r := h.after(i)
		if involves(x.target, r) {
			data, _ := x.outgoing(r)
			most = max(most, len(data))
		}
		if involves(x.source, r) {
			data, _ := x.incoming(r)
			most = max(most, len(data))
		}
	}
	rounds := x.plan(most)
	if rounds > maxSteps {
		return ErrLength
	}
	if err := x.begin(); err != nil {
		return err
	}
	for t := range rounds {
		if t > 0 && x.target != noRank {
			if err := x.write(t); err != nil {
				return err
			}
		}
		if x.source == noRank {
			continue
		}
		if err := x.read(t); err != nil {
			return err
		}
		if t == 0 && x.source == allRanks {
			h.arrivedAll = h.call
		}
		if t+3 <= rounds {
			h.publish(&h.own().consumed.word, h.step(t+1))
		}
	}
	return nil
}

// plan sets the layout of the data buffers, and returns the number of rounds of this rank. most
// is the length of the longest block that this rank sends or receives.
func (x *hostExchange) plan(most int) (rounds int) {
	free := x.h.dataBufferBytes
	switch {
	case x.uniform && most*x.readerCount <= inlineBytes:
		x.inline, x.part = true, most
		return 1
	case x.uniform && most <= free/x.readerCount:
		x.part = most
		return 1
	case !x.uniform:
		x.base = (8*x.readerCount + 63) &^ 63
		free -= x.base
	}
	x.half = free / 2 &^ 7
	x.part = x.half / x.readerCount &^ 7
	return max(1, segmentCount(most, x.part))
}

// at returns the offset in a data buffer, or if inline in an arrival line, of the data that moves
// in round t from the given place.
func (x *hostExchange) at(t, place int) int { return x.base + t%2*x.half + place*x.part }

// begin writes this rank's data of round 0, and publishes that the rank has arrived.
func (x *hostExchange) begin() error {
	h := x.h
	if x.target == noRank {
		return h.arrive()
	}
	l, err := h.line()
	if err != nil {
		return err
	}
	to := l.data[:]
	if !x.inline {
		if to, err = h.ownDataBuffer(); err != nil {
			return err
		}
	}
	for i := 1; i < h.Size; i++ {
		r := h.after(i)
		if !involves(x.target, r) {
			continue
		}
		data, place := x.outgoing(r)
		if !x.uniform {
			binary.NativeEndian.PutUint64(to[8*place:], uint64(len(data)))
		}
		if len(data) > 0 {
			bytecopy.Share(to[x.at(0, place):], segmentOf(data, 0, x.part))
		}
	}
	h.publishArrival(l)
	return nil
}

// write writes this rank's data of round t > 0. Before it overwrites the data of round t-2 for a
// reader, it waits until that reader has copied it.
func (x *hostExchange) write(t int) error {
	h := x.h
	dataBuffer := h.dataBufferOf(h.Rank)
	for i := 1; i < h.Size; i++ {
		r := h.after(i)
		if !involves(x.target, r) {
			continue
		}
		data, place := x.outgoing(r)
		if len(data) <= t*x.part {
			continue
		}
		if t >= 2 {
			if err := h.await(r, &h.peers[r].consumed.word, h.step(t-1)); err != nil {
				return err
			}
		}
		bytecopy.Share(dataBuffer[x.at(t, place):], segmentOf(data, t, x.part))
	}
	h.publish(&h.own().written.word, h.step(t))
	return nil
}

// read waits for the data that others write for this rank in round t, and copies it. In round 0 it
// also compares the lengths of the blocks, unless all have the same length.
func (x *hostExchange) read(t int) error {
	h := x.h
	for i := 1; i < h.Size; i++ {
		r := h.after(i)
		if !involves(x.source, r) {
			continue
		}
		data, place := x.incoming(r)
		if t == 0 {
			if err := h.awaitArrival(r); err != nil {
				return err
			}
			if !x.uniform {
				if n := binary.NativeEndian.Uint64(h.dataBufferOf(r)[8*place:]); n != uint64(len(data)) {
					return h.link.Miscount(r, int(n), len(data))
				}
			}
		}
		if len(data) <= t*x.part && (t > 0 || len(data) == 0) {
			continue
		}
		if t > 0 {
			if err := h.await(r, &h.peers[r].written.word, h.step(t)); err != nil {
				return err
			}
		}
		from := h.peers[r].lines[h.call%ringLines].data[:]
		if !x.inline {
			from = h.dataBufferOf(r)
		}
		copy(segmentOf(data, t, x.part), from[x.at(t, place):])
	}
	return nil
}
