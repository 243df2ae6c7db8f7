package main

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/comm"
)

// neighbors makes a grid or a graph and does collectives between neighbours, mixed with collectives of
// all ranks. The block that a rank sends on an edge depends on the rank, the round and the place of
// the edge among the edges of the receiver.
func neighbors(k *call) error {
	c, p := k.c, k.c.Size()
	var n comm.Neighborhood
	var own *comm.Comm
	// slot returns the place of edge i of a sender among the edges of its receiver.
	var slot func(i int) int
	if k.rng.IntN(2) == 0 {
		dims, err := comm.Dims(p, make([]int, 1+k.rng.IntN(3))...)
		if err != nil {
			return err
		}
		periodic := make([]bool, len(dims))
		for d := range periodic {
			periodic[d] = k.rng.IntN(2) == 0
		}
		var opts []comm.TopoOption
		if k.rng.IntN(2) == 0 {
			opts = append(opts, comm.Reorder())
		}
		g, err := c.Cart(dims, periodic, opts...)
		if err != nil {
			return err
		}
		if err := coordinates(k, g, dims); err != nil {
			return fmt.Errorf("grid %v: %w", dims, err)
		}
		n, own = g, g.Comm
		slot = func(i int) int { return i ^ 1 }
	} else {
		// All ranks draw the same edges. Some occur several times, and some connect a rank with
		// itself. GraphOf gets each edge from any rank.
		drawn := make([]drawnEdge, k.rng.IntN(4*p))
		for i := range drawn {
			drawn[i] = drawnEdge{k.rng.IntN(p), comm.Edge{From: k.rng.IntN(p), To: k.rng.IntN(p), Weight: k.rng.IntN(9)}}
		}
		together := k.rng.IntN(2) == 0
		if together { // neighbours are in the order of the ranks that pass the edges
			slices.SortStableFunc(drawn, func(a, b drawnEdge) int { return a.by - b.by })
		}
		sources, dests, slots := make([][]int, p), make([][]int, p), make([][]int, p)
		in, out := make([][]int, p), make([][]int, p)
		var mine []comm.Edge
		for _, d := range drawn {
			from, to := d.From, d.To
			slots[from] = append(slots[from], len(sources[to]))
			sources[to], dests[from] = append(sources[to], from), append(dests[from], to)
			in[to], out[from] = append(in[to], d.Weight), append(out[from], d.Weight)
			if d.by == c.Rank() {
				mine = append(mine, d.Edge)
			}
		}
		var g *comm.Graph
		var err error
		if me := c.Rank(); together {
			g, err = c.GraphOf(mine)
		} else {
			g, err = c.Graph(sources[me], dests[me], comm.Weights(in[me], out[me]))
		}
		if err != nil {
			return err
		}
		me := g.Rank()
		if x, y := g.Weights(); !slices.Equal(x, in[me]) || !slices.Equal(y, out[me]) {
			return fmt.Errorf("the weights of the edges are %v and %v, not %v and %v", x, y, in[me], out[me])
		}
		n, own = g, g.Comm
		slot = func(i int) int { return slots[c.Rank()][i] }
	}
	x := &exchange{call: k, n: n, own: own, slot: slot}
	x.sources, x.dests = n.Neighbors()
	x.size = k.length(8, 8*p)
	for x.round = range 1 + k.rng.IntN(12) {
		k.delay()
		if k.rng.IntN(4) == 0 {
			sum, err := comm.AllreduceOne(own, own.Rank()+x.round, comm.Sum[int])
			if wish := own.Size()*(own.Size()-1)/2 + own.Size()*x.round; err != nil || sum != wish {
				return fmt.Errorf("sum of round %d is %d, not %d: %w", x.round, sum, wish, err)
			}
		}
		if err := x.do(); err != nil {
			return fmt.Errorf("round %d, %d elements from %v to %v: %w", x.round, x.size, x.sources, x.dests, err)
		}
	}
	for _, p := range x.prepared {
		if err := p.p.Free(); err != nil {
			return err
		}
	}
	return own.Free()
}

// drawnEdge is an edge, and the rank that passes it to GraphOf.
type drawnEdge struct {
	by int
	comm.Edge
}

// coordinates checks the coordinates of all ranks of a grid, and makes the grid of some of its dimensions.
func coordinates(k *call, g *comm.Cart, dims []int) error {
	for rank := range g.Size() {
		at := rank
		want := make([]int, len(dims))
		for d := len(dims) - 1; d >= 0; d-- {
			want[d], at = at%dims[d], at/dims[d]
		}
		if got := g.Coords(rank); !slices.Equal(got, want) || g.RankAt(got...) != rank {
			return fmt.Errorf("rank %d is at %v, where rank %d is, instead of at %v", rank, got, g.RankAt(got...), want)
		}
	}
	keep := make([]bool, len(dims))
	size := 1
	for d := range keep {
		if keep[d] = k.rng.IntN(2) == 0; keep[d] {
			size *= dims[d]
		}
	}
	sub, err := g.Sub(keep...)
	if err != nil {
		return err
	}
	var want []int // the kept coordinates of this rank
	for d, at := range g.Coords(g.Rank()) {
		if keep[d] {
			want = append(want, at)
		}
	}
	got := sub.Coords(sub.Rank())
	n, err := comm.AllreduceOne(sub.Comm, 1, comm.Sum[int])
	if err != nil || n != size || sub.Size() != size || !slices.Equal(got, want) {
		return fmt.Errorf("the grid of dimensions %v has %d ranks, and this rank is at %v in it: %w", keep, n, got, err)
	}
	return sub.Free()
}

// exchange is an exchange between neighbours.
type exchange struct {
	*call
	n              comm.Neighborhood
	own            *comm.Comm
	sources, dests []int
	slot           func(i int) int // the place of edge i of this rank among the edges of its receiver
	size, round    int             // size is the number of elements of the blocks of equal length
	prepared       []preparedExchange
}

// preparedExchange is a persistent exchange of blocks of equal length.
type preparedExchange struct {
	p          *comm.Persistent
	send, recv []int64
}

// kinds of exchanges
const (
	gather    = iota // NeighborAllgather
	gatherv          // NeighborAllgatherv
	gatherSet        // NeighborAllgatherView
	toAll            // NeighborAlltoall
	toAllv           // NeighborAlltoallv
	toAllSet         // NeighborAlltoallView
	exchanges
)

// block returns the block that rank from sends for slot of the edges of its receiver, in an exchange
// of a kind.
func (x *exchange) block(kind, from, slot int) []int64 {
	if kind < toAll { // the same block for all
		slot = 0
	}
	n := x.size
	if kind != gather && kind != toAll {
		n = int(mix(x.salt, uint64(from)<<16|uint64(slot), uint64(x.round)) % uint64(x.size+1))
	}
	b := make([]int64, n)
	for j := range b {
		b[j] = int64(mix(x.salt, uint64(from)<<32|uint64(slot)<<8|uint64(x.round), uint64(j)) >> 1)
	}
	return b
}

// do does an exchange of a random kind, in a random form, and checks the blocks that this rank
// receives.
func (x *exchange) do() (err error) {
	kind, form := x.rng.IntN(exchanges), x.rng.IntN(3)
	var send, recv, want []int64
	var sends, recvs []int // lengths of the blocks
	var out, in []comm.View[int64]
	var checks []func() error
	e := integers[int64]()
	for i := range x.dests {
		if kind < toAll && i > 0 {
			break
		}
		b := x.block(kind, x.own.Rank(), x.slot(i))
		send, sends = append(send, b...), append(sends, len(b))
	}
	if kind < toAll && len(x.dests) == 0 { // no rank gets the block
		send = x.block(kind, x.own.Rank(), 0)
		sends = []int{len(send)}
	}
	for i, source := range x.sources {
		n := x.size
		b := make([]int64, n)
		for j := range b {
			b[j] = int64(-j) // stays if there is no neighbour
		}
		before := b
		if source != comm.ProcNull {
			b = x.block(kind, source, i)
			before = make([]int64, len(b))
		}
		recv, want, recvs = append(recv, before...), append(want, b...), append(recvs, len(b))
	}
	if kind == gatherSet || kind == toAllSet {
		for i, at := 0, 0; i < len(sends); at, i = at+sends[i], i+1 {
			v, err := e.drawView(x.call, sends[i])
			if err != nil {
				return err
			}
			v.put(send[at:][:sends[i]])
			out = append(out, v.view)
		}
		for i, at := 0, 0; i < len(recvs); at, i = at+recvs[i], i+1 {
			v, err := e.drawView(x.call, recvs[i])
			if err != nil {
				return err
			}
			v.put(recv[at:][:recvs[i]])
			checks = append(checks, v.expect(fmt.Sprintf("view %d from %d", i, x.sources[i]), want[at:][:recvs[i]]))
			in = append(in, v.view)
		}
	} else {
		checks = append(checks, func() error { return same("blocks of neighbours", recv, want) })
	}
	x.delay()
	if kind == toAll && form == 2 {
		return x.again(send, recv, want)
	}
	switch kind {
	case gather:
		err = x.run(form, func() error { return comm.NeighborAllgather(x.n, send, recv) },
			func() comm.Request { return comm.IneighborAllgather(x.n, send, recv) },
			func() (*comm.Persistent, error) { return comm.NeighborAllgatherInit(x.n, send, recv) })
	case gatherv:
		err = x.run(form, func() error { return comm.NeighborAllgatherv(x.n, send, recv, recvs, nil) },
			func() comm.Request { return comm.IneighborAllgatherv(x.n, send, recv, recvs, nil) },
			func() (*comm.Persistent, error) { return comm.NeighborAllgathervInit(x.n, send, recv, recvs, nil) })
	case gatherSet:
		err = x.run(form, func() error { return comm.NeighborAllgatherView(x.n, out[0], in) },
			func() comm.Request { return comm.IneighborAllgatherView(x.n, out[0], in) },
			func() (*comm.Persistent, error) { return comm.NeighborAllgatherViewInit(x.n, out[0], in) })
	case toAll:
		err = x.run(form, func() error { return comm.NeighborAlltoall(x.n, send, recv) },
			func() comm.Request { return comm.IneighborAlltoall(x.n, send, recv) }, nil)
	case toAllv:
		err = x.run(form, func() error { return comm.NeighborAlltoallv(x.n, send, sends, nil, recv, recvs, nil) },
			func() comm.Request { return comm.IneighborAlltoallv(x.n, send, sends, nil, recv, recvs, nil) },
			func() (*comm.Persistent, error) {
				return comm.NeighborAlltoallvInit(x.n, send, sends, nil, recv, recvs, nil)
			})
	default:
		err = x.run(form, func() error { return comm.NeighborAlltoallView(x.n, out, in) },
			func() comm.Request { return comm.IneighborAlltoallView(x.n, out, in) },
			func() (*comm.Persistent, error) { return comm.NeighborAlltoallViewInit(x.n, out, in) })
	}
	if err == nil {
		err = all(checks)
	}
	if err != nil {
		return fmt.Errorf("kind %d, form %d: %w", kind, form, err)
	}
	return nil
}

// run makes a call in one of its forms: blocking, nonblocking or persistent.
func (x *exchange) run(form int, call func() error, start func() comm.Request, prepare func() (*comm.Persistent, error)) error {
	switch form {
	case 0:
		return call()
	case 1:
		_, err := x.wait([]comm.Request{start()})
		return err
	}
	p, err := prepare()
	if err == nil {
		err = persistents{list: []*comm.Persistent{p}}.run(x.call, nil)
	}
	return err
}

// again starts a persistent NeighborAlltoall, which an earlier round may have made.
func (x *exchange) again(send, recv, want []int64) error {
	if len(x.prepared) == 0 {
		r := preparedExchange{send: make([]int64, len(send)), recv: make([]int64, len(recv))}
		var err error
		if r.p, err = comm.NeighborAlltoallInit(x.n, r.send, r.recv); err != nil {
			return err
		}
		x.prepared = append(x.prepared, r)
	}
	r := x.prepared[0]
	copy(r.send, send)
	copy(r.recv, recv)
	err := r.p.Start()
	if err == nil {
		_, err = r.p.Wait()
	}
	if err == nil {
		err = same("blocks of a persistent exchange", r.recv, want)
	}
	return err
}
