package main

import (
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// layout says where the ranks' parts lie in the buffer of a collective such as Gatherv.
type layout struct {
	// Arguments of the collective. displs is nil if the parts lie one after the other without gaps.
	counts, displs []int
	at             []int // by rank: index of the part's first element
	total          int   // length of the buffer
}

// drawLayout returns a layout of parts with these counts: if packed is set, one after the other without
// gaps; otherwise in a random order with random gaps.
func (k *call) drawLayout(counts []int, packed bool) layout {
	l := layout{counts: counts, at: make([]int, len(counts))}
	order := count(len(counts))
	if !packed {
		order, l.displs = k.own.Perm(len(counts)), l.at
	}
	for _, r := range order {
		if !packed {
			l.total += k.own.IntN(3)
		}
		l.at[r] = l.total
		l.total += counts[r]
	}
	return l
}

// part returns the part of rank r in the buffer b, which has the layout l.
func part[T any](l layout, b []T, r int) []T {
	return b[l.at[r] : l.at[r]+l.counts[r] : l.at[r]+l.counts[r]]
}

// fill returns a copy of the buffer b, in which the ranks' parts are at their places in the layout.
func fill[T any](l layout, b []T, parts [][]T) []T {
	b = slices.Clone(b)
	for r := range parts {
		copy(part(l, b, r), parts[r])
	}
	return b
}

// drawCounts returns a number of elements for each rank, the same on all ranks: n for each if even is
// set, and otherwise random numbers from 0 to 2n.
func (k *call) drawCounts(n int, even bool) []int {
	counts := make([]int, k.c.Size())
	for r := range counts {
		if counts[r] = n; !even && k.rng.IntN(4) > 0 {
			counts[r] = k.rng.IntN(2*n + 1)
		} else if !even {
			counts[r] = 0
		}
	}
	return counts
}

// blocks returns the test data of all ranks: counts[r] elements for rank r.
func (e element[T]) blocks(salt uint64, counts []int) [][]T {
	parts := make([][]T, len(counts))
	for r, n := range counts {
		parts[r] = e.block(salt, r, 0, n)
	}
	return parts
}

// drawnCall is a call of a collective with random arguments. The program calls either call or start, and
// then check. Or it calls prepare and starts what prepare returns; to start it again, it calls restore
// first.
type drawnCall struct {
	call    func() error                     // the blocking form
	start   func() comm.Request              // the nonblocking form
	prepare func() (*comm.Persistent, error) // the persistent form
	restore func()                           // restores the contents of the buffers before the call
	check   func() error                     // checks the buffers when the collective is complete
}

// restore returns a function that gives the buffers the contents that they have now.
func restore[T any](bufs ...[]T) func() {
	before := make([][]T, len(bufs))
	for i, b := range bufs {
		before[i] = slices.Clone(b)
	}
	return func() {
		for i, b := range bufs {
			copy(b, before[i])
		}
	}
}

// expect returns a function that checks that the two buffers of each pair are equal. The first pair is
// what was received and what is expected there. The second pair, if any, is what was sent and the same
// data before the call.
func expect[T comparable](pairs ...[]T) func() error {
	return func() error {
		for i := 0; i < len(pairs); i += 2 {
			if err := same([]string{"received", "sent"}[i/2], pairs[i], pairs[i+1]); err != nil {
				return err
			}
		}
		return nil
	}
}

func (e element[T]) bcast(k *call) (drawnCall, error) {
	c, n, root := k.c, k.length(e.size(), k.c.Size()), k.rng.IntN(k.c.Size())
	want := e.block(k.salt, root, 0, n)
	buf, err := e.buffer(k, n)
	if c.Rank() == root {
		copy(buf, want)
	}
	return drawnCall{
		func() error { return comm.Bcast(c, buf, root) },
		func() comm.Request { return comm.Ibcast(c, buf, root) },
		func() (*comm.Persistent, error) { return comm.BcastInit(c, buf, root) }, restore(buf),
		expect(buf, want),
	}, err
}

// gather returns a random call of Gather, or of Gatherv if even is false.
func (e element[T]) gather(k *call, even bool) (drawnCall, error) {
	c, me, root := k.c, k.c.Rank(), k.rng.IntN(k.c.Size())
	counts := k.drawCounts(k.length(e.size(), k.c.Size()), even)
	parts := e.blocks(k.salt, counts)
	send, err := e.filled(k, parts[me])
	if err != nil {
		return drawnCall{}, err
	}
	check := expect(send, parts[me])
	var l layout
	var recv []T
	if me == root {
		l = k.drawLayout(counts, even || k.own.IntN(2) == 0)
		if recv, err = e.buffer(k, l.total); err != nil {
			return drawnCall{}, err
		}
		if k.own.IntN(3) == 0 { // in place
			send = part(l, recv, me)
			copy(send, parts[me])
		}
		check = expect(recv, fill(l, recv, parts), send, parts[me])
	}
	if even {
		return drawnCall{
			func() error { return comm.Gather(c, send, recv, root) },
			func() comm.Request { return comm.Igather(c, send, recv, root) },
			func() (*comm.Persistent, error) { return comm.GatherInit(c, send, recv, root) }, restore(send, recv), check,
		}, nil
	}
	return drawnCall{
		func() error { return comm.Gatherv(c, send, recv, l.counts, l.displs, root) },
		func() comm.Request { return comm.Igatherv(c, send, recv, l.counts, l.displs, root) },
		func() (*comm.Persistent, error) { return comm.GathervInit(c, send, recv, l.counts, l.displs, root) }, restore(send, recv), check,
	}, nil
}

// scatter returns a random call of Scatter, or of Scatterv if even is false.
func (e element[T]) scatter(k *call, even bool) (drawnCall, error) {
	c, me, root := k.c, k.c.Rank(), k.rng.IntN(k.c.Size())
	counts := k.drawCounts(k.length(e.size(), k.c.Size()), even)
	parts := e.blocks(k.salt, counts)
	recv, err := e.buffer(k, counts[me])
	if err != nil {
		return drawnCall{}, err
	}
	check := expect(recv, parts[me])
	var l layout
	var send []T
	if me == root {
		l = k.drawLayout(counts, even || k.own.IntN(2) == 0)
		if send, err = e.buffer(k, l.total); err != nil {
			return drawnCall{}, err
		}
		copy(send, fill(l, send, parts))
		if k.own.IntN(3) == 0 { // in place
			recv = part(l, send, me)
		}
		check = expect(recv, parts[me], send, slices.Clone(send))
	}
	if even {
		return drawnCall{
			func() error { return comm.Scatter(c, send, recv, root) },
			func() comm.Request { return comm.Iscatter(c, send, recv, root) },
			func() (*comm.Persistent, error) { return comm.ScatterInit(c, send, recv, root) }, restore(send, recv), check,
		}, nil
	}
	return drawnCall{
		func() error { return comm.Scatterv(c, send, l.counts, l.displs, recv, root) },
		func() comm.Request { return comm.Iscatterv(c, send, l.counts, l.displs, recv, root) },
		func() (*comm.Persistent, error) { return comm.ScattervInit(c, send, l.counts, l.displs, recv, root) }, restore(send, recv), check,
	}, nil
}

// allgather returns a random call of Allgather, or of Allgatherv if even is false.
func (e element[T]) allgather(k *call, even bool) (drawnCall, error) {
	c, me, p := k.c, k.c.Rank(), k.c.Size()
	counts := k.drawCounts(k.length(e.size(), p*p), even)
	parts := e.blocks(k.salt, counts)
	l := k.drawLayout(counts, even || k.own.IntN(2) == 0)
	recv, err := e.buffer(k, l.total)
	if err != nil {
		return drawnCall{}, err
	}
	send, err := e.filled(k, parts[me])
	if err != nil {
		return drawnCall{}, err
	}
	if k.rng.IntN(3) == 0 { // in place
		send = part(l, recv, me)
		copy(send, parts[me])
	}
	check := expect(recv, fill(l, recv, parts), send, parts[me])
	if even {
		return drawnCall{
			func() error { return comm.Allgather(c, send, recv) },
			func() comm.Request { return comm.Iallgather(c, send, recv) },
			func() (*comm.Persistent, error) { return comm.AllgatherInit(c, send, recv) }, restore(send, recv), check,
		}, nil
	}
	return drawnCall{
		func() error { return comm.Allgatherv(c, send, recv, l.counts, l.displs) },
		func() comm.Request { return comm.Iallgatherv(c, send, recv, l.counts, l.displs) },
		func() (*comm.Persistent, error) { return comm.AllgathervInit(c, send, recv, l.counts, l.displs) }, restore(send, recv), check,
	}, nil
}

// alltoall returns a random call of Alltoall, or of Alltoallv if even is false.
func (e element[T]) alltoall(k *call, even bool) (drawnCall, error) {
	c, me, p := k.c, k.c.Rank(), k.c.Size()
	n := k.length(e.size(), p*p)
	to := make([][]int, p) // to[r][s]: number of elements that rank r sends to rank s
	for r := range to {
		to[r] = k.drawCounts(n, even)
	}
	inPlace := k.rng.IntN(4) == 0
	from := make([]int, p)
	for r := range from {
		if inPlace { // in place, two ranks must send each other equal numbers of elements
			to[max(r, me)][min(r, me)] = to[min(r, me)][max(r, me)]
		}
		from[r] = to[r][me]
	}
	sent, wanted := make([][]T, p), make([][]T, p)
	for r := range p {
		sent[r] = e.block(k.salt, me*p+r, 0, to[me][r])
		wanted[r] = e.block(k.salt, r*p+me, 0, from[r])
	}
	out, in := k.drawLayout(to[me], even || k.own.IntN(2) == 0), k.drawLayout(from, even || k.own.IntN(2) == 0)
	recv, err := e.buffer(k, in.total)
	if err != nil {
		return drawnCall{}, err
	}
	send, err := e.buffer(k, out.total)
	if err != nil {
		return drawnCall{}, err
	}
	copy(send, fill(out, send, sent))
	check := expect(recv, fill(in, recv, wanted), send, slices.Clone(send))
	if inPlace {
		copy(recv, fill(in, recv, sent))
		check = expect(recv, fill(in, recv, wanted))
		send, out.counts, out.displs = recv, nil, nil
	}
	if even {
		return drawnCall{
			func() error { return comm.Alltoall(c, send, recv) },
			func() comm.Request { return comm.Ialltoall(c, send, recv) },
			func() (*comm.Persistent, error) { return comm.AlltoallInit(c, send, recv) }, restore(send, recv), check,
		}, nil
	}
	return drawnCall{
		func() error { return comm.Alltoallv(c, send, out.counts, out.displs, recv, in.counts, in.displs) },
		func() comm.Request {
			return comm.Ialltoallv(c, send, out.counts, out.displs, recv, in.counts, in.displs)
		},
		func() (*comm.Persistent, error) {
			return comm.AlltoallvInit(c, send, out.counts, out.displs, recv, in.counts, in.displs)
		}, restore(send, recv), check,
	}, nil
}
