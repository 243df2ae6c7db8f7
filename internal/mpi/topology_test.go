package mpi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestCart checks coordinates, neighbours and shifts of grids against loops over the coordinates.
func TestCart(t *testing.T) {
	for _, x := range []struct {
		ranks    int
		dims     []int
		periodic []bool
	}{
		{1, nil, nil}, {1, []int{1}, []bool{true}}, {2, []int{2}, []bool{true}}, {5, []int{2, 2}, nil},
		{6, []int{2, 3}, []bool{false, true}}, {8, []int{2, 2, 2}, []bool{true, false, true}},
	} {
		t.Run(fmt.Sprint(x.dims, x.periodic), func(t *testing.T) {
			ranks(t, x.ranks, func(c *comm.Comm) error {
				n := 1
				for _, d := range x.dims {
					n *= d
				}
				g, err := c.Cart(x.dims, x.periodic)
				require.NoError(t, err)
				if c.Rank() >= n {
					require.Nil(t, g)
					sources, dests := g.Neighbors()
					require.True(t, sources == nil && dests == nil && g.Coords(0) == nil && g.RankAt(0) == comm.ProcNull)
					return nil
				}
				require.Equal(t, n, g.Size())
				require.Equal(t, c.Rank(), g.Rank())
				periodic := x.periodic
				if periodic == nil {
					periodic = make([]bool, len(x.dims))
				}
				for rank := range n {
					at := g.Coords(rank)
					back := 0
					for d, v := range at {
						back = back*x.dims[d] + v
					}
					require.Equal(t, rank, back)
					require.Equal(t, rank, g.RankAt(at...))
				}
				require.Nil(t, g.Coords(n))
				require.Equal(t, comm.ProcNull, g.RankAt(append(g.Coords(0), 0)...))
				var want []int
				for d := range x.dims {
					for _, by := range []int{0, 1, 2, 5, -1, -7, 1 << 40, -1 << 40} {
						shifted := func(by int) int {
							at := g.Coords(g.Rank())
							at[d] += by
							if periodic[d] {
								at[d] = ((at[d] % x.dims[d]) + x.dims[d]) % x.dims[d]
							} else if at[d] < 0 || at[d] >= x.dims[d] {
								return comm.ProcNull
							}
							return g.RankAt(at...)
						}
						source, dest := g.Shift(d, by)
						require.Equal(t, [2]int{shifted(-by), shifted(by)}, [2]int{source, dest}, "dimension %d by %d", d, by)
					}
					source, dest := g.Shift(d, 1)
					want = append(want, source, dest)
				}
				sources, dests := g.Neighbors()
				require.Equal(t, want, sources)
				require.Equal(t, want, dests)
				source, dest := g.Shift(len(x.dims), 1)
				require.Equal(t, [2]int{comm.ProcNull, comm.ProcNull}, [2]int{source, dest})
				return nil
			})
		})
	}
}

// TestCartSub divides a grid into its rows and columns.
func TestCartSub(t *testing.T) {
	ranks(t, 6, func(c *comm.Comm) error {
		g, err := c.Cart([]int{2, 3}, []bool{false, true})
		require.NoError(t, err)
		row, err := g.Sub(false, true)
		require.NoError(t, err)
		column, err := g.Sub(true, false)
		require.NoError(t, err)
		dims, periodic := row.Dims()
		require.Equal(t, []int{3}, dims)
		require.Equal(t, []bool{true}, periodic)
		at := g.Coords(g.Rank())
		require.Equal(t, []int{at[1], at[0]}, []int{row.Rank(), column.Rank()})
		sum, err := comm.AllreduceOne(row.Comm, g.Rank(), comm.Sum[int])
		require.NoError(t, err)
		require.Equal(t, 9*at[0]+3, sum)
		return nil
	})
}

func TestWrongTopologies(t *testing.T) {
	for name, x := range map[string]struct {
		call func(c *comm.Comm) error
		want error
	}{
		"too large":    {func(c *comm.Comm) error { _, err := c.Cart([]int{2, 2}, nil); return err }, comm.ErrArg},
		"no ranks":     {func(c *comm.Comm) error { _, err := c.Cart([]int{2, 0}, nil); return err }, comm.ErrArg},
		"periodic":     {func(c *comm.Comm) error { _, err := c.Cart([]int{2}, []bool{true, true}); return err }, comm.ErrArg},
		"other dims":   {func(c *comm.Comm) error { _, err := c.Cart([]int{1 + c.Rank(), 2 - c.Rank()}, nil); return err }, comm.ErrMismatch},
		"no such rank": {func(c *comm.Comm) error { _, err := c.Graph([]int{2}, nil); return err }, comm.ErrRank},
		"weights": {func(c *comm.Comm) error {
			_, err := c.Graph([]int{0}, []int{0}, comm.Weights(nil, []int{1, 2}))
			return err
		}, comm.ErrCount},
		"negative": {func(c *comm.Comm) error { _, err := c.GraphOf([]comm.Edge{{From: 0, To: 1, Weight: -1}}); return err }, comm.ErrArg},
		"one side": {func(c *comm.Comm) error {
			var sources []int
			if c.Rank() == 0 {
				sources = []int{1}
			}
			_, err := c.Graph(sources, nil)
			return err
		}, comm.ErrMismatch},
		"nil": {func(*comm.Comm) error { return comm.NeighborAlltoall(nil, []int{}, []int{}) }, comm.ErrClosed},
		"nil Cart": {func(*comm.Comm) error {
			var g *comm.Cart
			_, err := comm.IneighborAllgather(g, []int{}, []int{}).Wait()
			return err
		}, comm.ErrClosed},
		"blocks": {func(c *comm.Comm) error {
			g, err := c.Cart([]int{2}, []bool{true})
			if err == nil {
				err = comm.NeighborAlltoall(g, make([]int, 3), make([]int, 2))
			}
			return err
		}, comm.ErrCount},
		"overlap": {func(c *comm.Comm) error {
			g, err := c.Cart([]int{2}, []bool{true})
			buf := make([]int, 2)
			if err == nil {
				err = comm.NeighborAlltoall(g, buf, buf)
			}
			return err
		}, comm.ErrBuffer},
		"views": {func(c *comm.Comm) error {
			g, err := c.Cart([]int{2}, []bool{true})
			if err == nil {
				err = comm.NeighborAlltoallView(g, make([]comm.View[int], 1), nil)
			}
			return err
		}, comm.ErrCount},
		"views to gather": {func(c *comm.Comm) error {
			g, err := c.Cart([]int{2}, []bool{true})
			if err == nil {
				err = comm.NeighborAllgatherView(g, comm.Slice([]int{1}), make([]comm.View[int], 1))
			}
			return err
		}, comm.ErrCount},
		"no view to gather": {func(c *comm.Comm) error {
			g, err := c.Cart([]int{2}, []bool{true})
			if err == nil {
				err = comm.NeighborAllgatherView(g, comm.View[int]{}, []comm.View[int]{comm.Slice([]int{1}), comm.Slice([]int{1})})
			}
			return err
		}, comm.ErrType},
		"a wrong view to gather": {func(c *comm.Comm) error {
			g, err := c.Cart([]int{2}, []bool{true})
			if err == nil {
				wrong := comm.Of(make([]int, 2), comm.Vector(-1, 1, 1))
				err = comm.NeighborAllgatherView(g, comm.Slice([]int{1}), []comm.View[int]{comm.Slice([]int{1}), wrong})
			}
			return err
		}, comm.ErrLayout},
	} {
		t.Run(name, func(t *testing.T) {
			ranks(t, 2, func(c *comm.Comm) error {
				d, err := c.Dup()
				require.NoError(t, err)
				err = x.call(d)
				// Rank 1 finds the difference too, or gets ErrRevoked.
				require.True(t, isErr(err, x.want) || isErr(err, comm.ErrRevoked), err)
				return nil
			})
		})
	}
}

// exchangeAll does every neighbour collective over a topology. slotOf returns, for edge i of a
// sending rank, the index of the edge among the sources of the receiver. Each edge carries
// different data.
func exchangeAll(n comm.Neighborhood, c *comm.Comm, slotOf func(rank, i int) int) error {
	sources, dests := n.Neighbors()
	const k = 3
	// data is what a rank sends to a peer, to slot j of the peer's sources.
	data := func(from, slot int) []int64 {
		s := make([]int64, k)
		for i := range s {
			s[i] = int64(from)<<40 | int64(slot)<<20 | int64(i)
		}
		return s
	}
	var send, want, gathered []int64
	var out, in []comm.View[int64]
	mem := make([]int64, 4*k*(len(sources)+len(dests)+1))
	for i := range dests {
		block := data(c.Rank(), slotOf(c.Rank(), i))
		send = append(send, block...)
		v := comm.Of(mem, comm.Vector(k, 1, 2).Shift(2*k*i))
		if _, err := comm.Unpack(v, block); err != nil {
			return err
		}
		out = append(out, v)
	}
	for j, source := range sources {
		if source == comm.ProcNull {
			want = append(want, make([]int64, k)...)
			gathered = append(gathered, make([]int64, k)...)
		} else {
			want = append(want, data(source, j)...)
			gathered = append(gathered, data(source, -1)...)
		}
		in = append(in, comm.Of(mem, comm.Vector(k, 1, 2).Shift(2*k*(len(dests)+j))))
	}
	counts, sendcounts := slices.Repeat([]int{k}, len(sources)), slices.Repeat([]int{k}, len(dests))
	own := data(c.Rank(), -1)
	all := comm.Of(mem, comm.Vector(k, 1, 2).Shift(2*k*(len(dests)+len(sources))))
	if _, err := comm.Unpack(all, own); err != nil {
		return err
	}
	recv := make([]int64, k*len(sources))
	wait := func(r comm.Request) error { _, err := r.Wait(); return err }
	again := func(p *comm.Persistent, err error) error {
		for range 3 {
			if err == nil {
				err = p.Start()
			}
			if err == nil {
				_, err = p.Wait()
			}
		}
		if err != nil {
			return err
		}
		return p.Free()
	}
	// All ranks make the calls in the same order.
	calls := []struct {
		name string
		call func() error
		want []int64
	}{
		{"NeighborAllgather", func() error { return comm.NeighborAllgather(n, own, recv) }, gathered},
		{"IneighborAllgather", func() error { return wait(comm.IneighborAllgather(n, own, recv)) }, gathered},
		{"NeighborAllgatherInit", func() error { return again(comm.NeighborAllgatherInit(n, own, recv)) }, gathered},
		{"NeighborAllgatherv", func() error { return comm.NeighborAllgatherv(n, own, recv, counts, nil) }, gathered},
		{"IneighborAllgatherv", func() error { return wait(comm.IneighborAllgatherv(n, own, recv, counts, nil)) }, gathered},
		{"NeighborAllgathervInit", func() error { return again(comm.NeighborAllgathervInit(n, own, recv, counts, nil)) }, gathered},
		{"NeighborAllgatherView", func() error { return comm.NeighborAllgatherView(n, all, in) }, gathered},
		{"IneighborAllgatherView", func() error { return wait(comm.IneighborAllgatherView(n, all, in)) }, gathered},
		{"NeighborAllgatherViewInit", func() error { return again(comm.NeighborAllgatherViewInit(n, all, in)) }, gathered},
		{"NeighborAlltoall", func() error { return comm.NeighborAlltoall(n, send, recv) }, want},
		{"IneighborAlltoall", func() error { return wait(comm.IneighborAlltoall(n, send, recv)) }, want},
		{"NeighborAlltoallInit", func() error { return again(comm.NeighborAlltoallInit(n, send, recv)) }, want},
		{"NeighborAlltoallv", func() error { return comm.NeighborAlltoallv(n, send, sendcounts, nil, recv, counts, nil) }, want},
		{"IneighborAlltoallv", func() error {
			return wait(comm.IneighborAlltoallv(n, send, sendcounts, nil, recv, counts, nil))
		}, want},
		{"NeighborAlltoallvInit", func() error {
			return again(comm.NeighborAlltoallvInit(n, send, sendcounts, nil, recv, counts, nil))
		}, want},
		{"NeighborAlltoallView", func() error { return comm.NeighborAlltoallView(n, out, in) }, want},
		{"IneighborAlltoallView", func() error { return wait(comm.IneighborAlltoallView(n, out, in)) }, want},
		{"NeighborAlltoallViewInit", func() error { return again(comm.NeighborAlltoallViewInit(n, out, in)) }, want},
	}
	for _, x := range calls {
		clear(recv)
		for _, v := range in {
			_, _ = comm.Unpack(v, make([]int64, k))
		}
		if err := x.call(); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		if !strings.Contains(x.name, "View") {
			if err := same(x.name, recv, x.want); err != nil {
				return err
			}
			continue
		}
		for j, v := range in {
			if err := holds(fmt.Sprintf("%s, block %d", x.name, j), v, x.want[k*j:k*(j+1)]); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestNeighborsOfCart: in a grid, what a rank sends upwards arrives from below, also if both
// neighbours are the same rank or the rank itself.
func TestNeighborsOfCart(t *testing.T) {
	for _, x := range []struct {
		dims     []int
		periodic []bool
	}{
		{[]int{1}, []bool{true}}, {[]int{2}, []bool{true}}, {[]int{3}, []bool{false}}, {[]int{2, 2}, []bool{true, false}}, {[]int{1, 2}, []bool{true, true}},
	} {
		n := 1
		for _, d := range x.dims {
			n *= d
		}
		t.Run(fmt.Sprint(x.dims, x.periodic), func(t *testing.T) {
			overFabrics(t, []int{n}, func(c *comm.Comm) error {
				g, err := c.Cart(x.dims, x.periodic)
				if err != nil {
					return err
				}
				return exchangeAll(g, g.Comm, func(_, i int) int { return i ^ 1 })
			})
		})
	}
}

// TestNeighborsOfGraph: several edges between two ranks match in order.
func TestNeighborsOfGraph(t *testing.T) {
	const n = 4
	edges := [][2]int{{0, 1}, {0, 1}, {1, 0}, {2, 2}, {2, 2}, {1, 3}, {3, 1}, {0, 1}, {3, 0}, {0, 3}, {2, 0}}
	sources, dests := make([][]int, n), make([][]int, n)
	slots := make([][]int, n)
	for _, e := range edges {
		dests[e[0]] = append(dests[e[0]], e[1])
		slots[e[0]] = append(slots[e[0]], len(sources[e[1]]))
		sources[e[1]] = append(sources[e[1]], e[0])
	}
	overFabrics(t, []int{n}, func(c *comm.Comm) error {
		me := c.Rank()
		g, err := c.Graph(sources[me], dests[me])
		if err != nil {
			return err
		}
		if err := exchangeAll(g, g.Comm, func(rank, i int) int { return slots[rank][i] }); err != nil {
			return err
		}
		// Each rank passes some of the edges of the whole graph.
		var some []comm.Edge
		for i, e := range edges {
			if i%n == me {
				some = append(some, comm.Edge{From: e[0], To: e[1]})
			}
		}
		h, err := c.GraphOf(some)
		if err != nil {
			return err
		}
		in, out := h.Neighbors()
		slices.Sort(in)
		slices.Sort(out)
		wantIn, wantOut := slices.Clone(sources[me]), slices.Clone(dests[me])
		slices.Sort(wantIn)
		slices.Sort(wantOut)
		if !slices.Equal(in, wantIn) || !slices.Equal(out, wantOut) {
			return fmt.Errorf("neighbours %v and %v, not %v and %v", in, out, wantIn, wantOut)
		}
		return comm.NeighborAllgather(h, []int{me}, make([]int, len(in)))
	})
}

// TestWeights: a rank gets the weights of its edges, in the order of its neighbours. Each edge from r to d has the
// weight 10*r+d+1, and in one call none has a weight.
func TestWeights(t *testing.T) {
	const n = 4
	ranks(t, n, func(c *comm.Comm) error {
		next, before := func(r int) []int { return []int{(r + 1) % n, (r + 2) % n} }, func(r int) []int { return []int{(r + 2) % n, (r + 3) % n} }
		weights := func(from, to []int) []int {
			list := make([]int, 0, 2)
			for _, r := range from {
				for _, d := range to {
					list = append(list, 10*r+d+1)
				}
			}
			return list
		}
		check := func(g *comm.Graph, err error) {
			require.NoError(t, err)
			sources, dests := g.Neighbors()
			in, out := g.Weights()
			me := []int{g.Rank()}
			require.Len(t, sources, 2)
			require.Equal(t, weights(sources, me), in)
			require.Equal(t, weights(me, dests), out)
			in[0] = -1
			again, _ := g.Weights()
			require.NotEqual(t, in, again)
			require.NoError(t, g.Free())
		}
		me := c.Rank()
		w := comm.Weights(weights(before(me), []int{me}), weights([]int{me}, next(me)))
		check(c.Graph(before(me), next(me), w))
		check(c.Graph(before(me), next(me), w, comm.Reorder()))
		var edges []comm.Edge // those of the next rank
		from := (me + 1) % n
		for _, d := range next(from) {
			edges = append(edges, comm.Edge{From: from, To: d, Weight: 10*from + d + 1})
		}
		check(c.GraphOf(edges))
		check(c.GraphOf(edges, comm.Reorder()))
		g, err := c.Graph(before(me), next(me))
		require.NoError(t, err)
		in, out := g.Weights()
		require.Equal(t, [][]int{{1, 1}, {1, 1}}, [][]int{in, out})
		var none *comm.Graph
		in, out = none.Weights()
		require.True(t, in == nil && out == nil)
		return g.Free()
	}, commtest.WithNodes(0, 1, 0, 1))
}

// TestReorder places the ranks of two or more hosts in a grid and in a graph. There must be fewer
// edges between hosts than without Reorder, and messages must follow the edges of the new ranks.
func TestReorder(t *testing.T) {
	// crossing returns the number of edges between different hosts, summed over all ranks.
	crossing := func(c *comm.Comm, n comm.Neighborhood, host int) (int, error) {
		hosts := make([]int, c.Size())
		if err := comm.Allgather(c, []int{host}, hosts); err != nil {
			return 0, err
		}
		count := 0
		_, dests := n.Neighbors()
		for _, d := range dests {
			if d >= 0 && hosts[d] != host {
				count++
			}
		}
		return comm.AllreduceOne(c, count, comm.Sum[int])
	}
	for _, x := range []struct {
		name  string
		hosts []int
		dims  []int
		most  int // maximum number of edges between hosts in the grid, in both directions
		graph int // the same for the graph, whose order does not use the shape of the grid
	}{
		{"round robin", []int{0, 1, 0, 1, 0, 1, 0, 1}, []int{2, 4}, 4, 4},
		{"blocks of four hosts", []int{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}, []int{4, 4}, 16, 24},
		{"unequal hosts", []int{1, 0, 0, 1, 0, 0}, []int{6}, 2, 2},
	} {
		t.Run(x.name, func(t *testing.T) {
			ranks(t, len(x.hosts), func(c *comm.Comm) error {
				host := x.hosts[c.Rank()]
				g, err := c.Cart(x.dims, nil, comm.Reorder())
				require.NoError(t, err)
				n, err := crossing(g.Comm, g, host)
				require.NoError(t, err)
				require.LessOrEqual(t, n, x.most)
				if err := exchangeAll(g, g.Comm, func(_, i int) int { return i ^ 1 }); err != nil {
					return err
				}
				plain, err := c.Cart(x.dims, nil)
				require.NoError(t, err)
				before, err := crossing(plain.Comm, plain, host)
				require.NoError(t, err)
				require.Less(t, n, before)

				// A graph with the edges of the plain grid.
				var peers []int
				_, dests := plain.Neighbors()
				for _, d := range dests {
					if d >= 0 {
						peers = append(peers, d)
					}
				}
				h, err := c.Graph(peers, peers, comm.Reorder())
				require.NoError(t, err)
				m, err := crossing(h.Comm, h, host)
				require.NoError(t, err)
				require.LessOrEqual(t, m, x.graph)
				recv := make([]int, len(peers)+4)
				sources, _ := h.Neighbors()
				if err := comm.NeighborAllgather(h, []int{h.Rank()}, recv[:len(sources)]); err != nil {
					return err
				}
				require.Equal(t, sources, recv[:len(sources)])
				return nil
			}, commtest.WithNodes(x.hosts...))
		})
	}
}
