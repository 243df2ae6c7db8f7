package mpi_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport/tcp"
)

// TestAllocations: calls that programs make in inner loops allocate nothing in steady state. All ranks
// make the same calls, and the test counts the allocations of all ranks.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	in, out := make([][]float64, 4), make([][]float64, 4)
	for i := range in {
		in[i], out[i] = make([]float64, 64), make([]float64, 64)
	}
	large := [2][]float64{make([]float64, 1<<16), make([]float64, 1<<16)}
	twice := comm.OpFunc(true, func(inout, in []float64) {
		for i := range inout {
			inout[i] += 2 * in[i]
		}
	})
	other := func(c *comm.Comm) int { return 1 - c.Rank() }
	var completions [2][2]comm.Completion
	var small, wide [2]comm.View[float64]
	for i := range small {
		small[i] = comm.Of(in[i], comm.Vector(20, 1, 3))
		wide[i] = comm.Of(large[i], comm.Vector(1<<14, 1, 4))
	}
	parts, places := []int{16, 16}, []int{0, 32}
	var sides, insides [4][2]comm.View[float64]
	for i := range sides {
		for k := range sides[i] {
			l := comm.Vector(8, 1, 4).Shift(32 * k)
			sides[i][k], insides[i][k] = comm.Of(in[i], l), comm.Of(out[i], l)
		}
	}
	exchange := func(c *comm.Comm, v comm.View[float64]) error {
		r := v.Irecv(c, other(c), 0)
		if err := v.Send(c, other(c), 0); err != nil {
			return err
		}
		_, err := r.Wait()
		return err
	}
	columns := make([][]comm.View[float64], 4) // by rank: 4 views to send, and 4 to receive
	for r := range columns {
		for i := range 8 {
			columns[r] = append(columns[r], comm.Of([][]float64{in[r], out[r]}[i/4], comm.Vector(16, 1, 4).Shift(i%4)))
		}
	}
	for _, x := range []struct {
		name  string
		ranks int
		call  func(c *comm.Comm) error
	}{
		{"Send and Recv", 2, func(c *comm.Comm) error {
			if c.Rank() == 0 {
				if err := comm.Send(c, in[0], 1, 0); err != nil {
					return err
				}
				_, err := comm.Recv(c, out[0], 1, 0)
				return err
			}
			if _, err := comm.Recv(c, out[1], comm.AnySource, comm.AnyTag); err != nil {
				return err
			}
			return comm.Send(c, in[1], 0, 0)
		}},
		{"large Sendrecv", 2, func(c *comm.Comm) error {
			_, err := comm.Sendrecv(c, large[1-c.Rank()][:1<<15], other(c), 0, large[c.Rank()][1<<15:], other(c), 0)
			return err
		}},
		{"small views", 2, func(c *comm.Comm) error { return exchange(c, small[c.Rank()]) }},
		{"large views", 2, func(c *comm.Comm) error { return exchange(c, wide[c.Rank()]) }},
		{"persistent messages", 2, again(func(c *comm.Comm) (*comm.Persistent, error) {
			return comm.RecvInit(c, out[c.Rank()], other(c), 0)
		}, func(c *comm.Comm) (*comm.Persistent, error) { return comm.SendInit(c, in[c.Rank()], other(c), 0) })},
		{"persistent Allreduce", 4, again(func(c *comm.Comm) (*comm.Persistent, error) {
			return comm.AllreduceInit(c, in[c.Rank()], out[c.Rank()], comm.Sum)
		})},
		{"persistent large Allreduce", 2, again(func(c *comm.Comm) (*comm.Persistent, error) {
			return comm.AllreduceInit(c, large[c.Rank()], large[c.Rank()], comm.Sum)
		})},
		{"persistent Bcast, Reduce and Scan", 4, again(func(c *comm.Comm) (*comm.Persistent, error) {
			return comm.BcastInit(c, in[c.Rank()], 1)
		}, func(c *comm.Comm) (*comm.Persistent, error) {
			return comm.ReduceInit(c, in[c.Rank()], out[c.Rank()], comm.Sum, 2)
		}, func(c *comm.Comm) (*comm.Persistent, error) {
			return comm.ScanInit(c, in[c.Rank()], out[c.Rank()], comm.Sum)
		}, (*comm.Comm).BarrierInit)},
		{"persistent Alltoall and Allgather", 4, again(func(c *comm.Comm) (*comm.Persistent, error) {
			return comm.AlltoallInit(c, in[c.Rank()], out[c.Rank()])
		}, func(c *comm.Comm) (*comm.Persistent, error) {
			return comm.AllgatherInit(c, in[c.Rank()][:16], out[c.Rank()])
		})},
		{"NeighborAlltoall", 4, onRing(func(n comm.Neighborhood, rank int) error {
			return comm.NeighborAlltoall(n, in[rank], out[rank])
		})},
		{"NeighborAlltoall of large data", 2, onRing(func(n comm.Neighborhood, rank int) error {
			return comm.NeighborAlltoall(n, large[rank][:1<<15], large[rank][1<<15:])
		})},
		{"NeighborAllgather", 4, onRing(func(n comm.Neighborhood, rank int) error {
			return comm.NeighborAllgather(n, in[rank][:32], out[rank])
		})},
		{"NeighborAlltoallv", 4, onRing(func(n comm.Neighborhood, rank int) error {
			return comm.NeighborAlltoallv(n, in[rank], parts, places, out[rank], parts, places)
		})},
		{"NeighborAlltoallView", 4, onRing(func(n comm.Neighborhood, rank int) error {
			return comm.NeighborAlltoallView(n, sides[rank][:], insides[rank][:])
		})},
		{"NeighborAllgatherView", 4, onRing(func(n comm.Neighborhood, rank int) error {
			return comm.NeighborAllgatherView(n, sides[rank][0], insides[rank][:])
		})},
		{"persistent NeighborAlltoall", 4, again(func(c *comm.Comm) (*comm.Persistent, error) {
			t, err := ringOf(c)
			if err != nil {
				return nil, err
			}
			return comm.NeighborAlltoallInit(t, in[c.Rank()], out[c.Rank()])
		})},
		{"partitions", 2, partitions(in, out)},
		{"Isend, Irecv and Wait", 2, func(c *comm.Comm) error {
			r := comm.Irecv(c, out[c.Rank()], other(c), 0)
			s := comm.Isend(c, in[c.Rank()], other(c), 0)
			_, err := r.Wait()
			_, err2 := s.Wait()
			if err == nil {
				err = err2
			}
			return err
		}},
		{"WaitAny", 2, func(c *comm.Comm) error {
			var rs [2]comm.Request
			rs[0] = comm.Irecv(c, out[c.Rank()], other(c), 0)
			rs[1] = comm.Isend(c, in[c.Rank()], other(c), 0)
			for range rs {
				if _, _, err := comm.WaitAny(rs[:]); err != nil {
					return err
				}
			}
			return nil
		}},
		{"WaitEach", 2, func(c *comm.Comm) error {
			rs := [2]comm.Request{comm.Irecv(c, out[c.Rank()], other(c), 0), comm.Isend(c, in[c.Rank()], other(c), 0)}
			_, err := comm.WaitEach(rs[:], completions[c.Rank()][:0])
			return err
		}},
		{"Ssend", 2, func(c *comm.Comm) error {
			r := comm.Irecv(c, out[c.Rank()], other(c), 0)
			if err := comm.Ssend(c, in[c.Rank()], other(c), 0); err != nil {
				return err
			}
			return wait(r)
		}},
		{"Barrier", 4, (*comm.Comm).Barrier},
		// The barrier keeps the ranks together. Otherwise messages of faster ranks would wait at slower
		// ranks, in memory that grows until the senders have no credit left.
		{"Bcast", 4, func(c *comm.Comm) error {
			if err := comm.Bcast(c, out[c.Rank()], 2); err != nil {
				return err
			}
			return c.Barrier()
		}},
		{"Reduce", 4, func(c *comm.Comm) error {
			if err := comm.Reduce(c, in[c.Rank()], out[c.Rank()], comm.Sum, 1); err != nil {
				return err
			}
			return c.Barrier()
		}},
		{"Allreduce", 4, func(c *comm.Comm) error { return comm.Allreduce(c, in[c.Rank()], out[c.Rank()], comm.Sum) }},
		{"Allreduce of 3", 3, func(c *comm.Comm) error { return comm.Allreduce(c, in[c.Rank()], out[c.Rank()], comm.Max) }},
		{"Allreduce by function", 2, func(c *comm.Comm) error { return comm.Allreduce(c, in[c.Rank()], out[c.Rank()], twice) }},
		{"Alltoall", 4, func(c *comm.Comm) error { return comm.Alltoall(c, in[c.Rank()], out[c.Rank()]) }},
		{"Scan", 3, func(c *comm.Comm) error {
			if err := comm.Scan(c, in[c.Rank()], out[c.Rank()], comm.Sum); err != nil {
				return err
			}
			return c.Barrier()
		}},
		{"large Allreduce", 2, func(c *comm.Comm) error { return comm.Allreduce(c, large[c.Rank()], large[c.Rank()], comm.Sum) }},
		{"ReduceScatterBlock", 4, func(c *comm.Comm) error {
			return comm.ReduceScatterBlock(c, in[c.Rank()], out[c.Rank()][:16], comm.Sum)
		}},
		{"Allgather", 4, func(c *comm.Comm) error { return comm.Allgather(c, in[c.Rank()][:16], out[c.Rank()]) }},
		{"NeighborAlltoall", 4, inGrid(func(g *comm.Cart) error { return comm.NeighborAlltoall(g, in[g.Rank()][:8], out[g.Rank()][:8]) })},
		{"NeighborAlltoall by data buffers", 3, inGrid(func(g *comm.Cart) error { return comm.NeighborAlltoall(g, in[g.Rank()], out[g.Rank()]) })},
		{"large NeighborAlltoall", 2, inGrid(func(g *comm.Cart) error {
			return comm.NeighborAlltoall(g, large[g.Rank()][:1<<15], large[g.Rank()][1<<15:])
		})},
		{"NeighborAllgather", 3, inGrid(func(g *comm.Cart) error {
			return comm.NeighborAllgather(g, in[g.Rank()][:16], out[g.Rank()])
		})},
		{"NeighborAlltoallView", 3, inGrid(func(g *comm.Cart) error {
			own := columns[g.Rank()]
			return comm.NeighborAlltoallView(g, own[:4], own[4:])
		})},
		{"NeighborAllgatherView", 3, inGrid(func(g *comm.Cart) error {
			own := columns[g.Rank()]
			return comm.NeighborAllgatherView(g, own[0], own[4:])
		})},
		{"persistent NeighborAlltoall", 4, again(func(c *comm.Comm) (*comm.Persistent, error) {
			g, err := grid(c)
			if err != nil {
				return nil, err
			}
			return comm.NeighborAlltoallInit(g, in[c.Rank()], out[c.Rank()])
		})},
	} {
		for _, over := range []string{"inproc", "inproc by messages", "tcp"} {
			var opts []commtest.Option
			switch over {
			case "inproc by messages":
				opts = append(opts, commtest.WithParam("coll.shared_memory", "0"))
			case "tcp":
				opts = append(opts, commtest.WithProviders(tcp.New()))
			}
			t.Run(over+"/"+x.name, func(t *testing.T) { countAllocations(t, x.ranks, x.call, opts...) })
		}
	}
}

// grid makes a periodic grid of two dimensions.
func grid(c *comm.Comm) (*comm.Cart, error) {
	dims, err := comm.Dims(c.Size(), 0, 0)
	if err != nil {
		return nil, err
	}
	return c.Cart(dims, []bool{true, true})
}

// inGrid returns a function that calls f with a grid. Its first call on a rank makes the grid.
func inGrid(f func(g *comm.Cart) error) func(c *comm.Comm) error {
	var made sync.Map // by *comm.Comm: the grid
	return func(c *comm.Comm) error {
		known, ok := made.Load(c)
		if !ok {
			g, err := grid(c)
			if err != nil {
				return err
			}
			known = g
			made.Store(c, known)
		}
		return f(known.(*comm.Cart))
	}
}

// again returns a function that starts persistent operations and waits for them. Its first call on a
// rank makes them.
func again(makers ...func(c *comm.Comm) (*comm.Persistent, error)) func(c *comm.Comm) error {
	var made sync.Map // by *comm.Comm: the operations
	return func(c *comm.Comm) error {
		known, ok := made.Load(c)
		if !ok {
			var ps []*comm.Persistent
			for _, m := range makers {
				p, err := m(c)
				if err != nil {
					return err
				}
				ps = append(ps, p)
			}
			known = ps
			made.Store(c, known)
		}
		ps := known.([]*comm.Persistent)
		if err := comm.StartAll(ps); err != nil {
			return err
		}
		for _, p := range ps {
			if _, err := p.Wait(); err != nil {
				return err
			}
		}
		return nil
	}
}

// ringOf makes a periodic grid of one dimension of all ranks.
func ringOf(c *comm.Comm) (*comm.Cart, error) { return c.Cart([]int{c.Size()}, []bool{true}) }

// onRing returns a function that calls f with the topology of ringOf. Its first call on a rank
// makes the topology.
func onRing(f func(n comm.Neighborhood, rank int) error) func(c *comm.Comm) error {
	var made sync.Map // by *comm.Comm: the *comm.Cart
	return func(c *comm.Comm) error {
		known, ok := made.Load(c)
		if !ok {
			t, err := ringOf(c)
			if err != nil {
				return err
			}
			known = t
			made.Store(c, known)
		}
		return f(known.(*comm.Cart), c.Rank())
	}
}

// partitions returns a function that sends in[rank] to the other rank in 4 partitions. Its first call on a
// rank makes the operations.
func partitions(in, out [][]float64) func(c *comm.Comm) error {
	type pair struct {
		send *comm.PartSend
		recv *comm.PartRecv
	}
	var made sync.Map // by *comm.Comm: the *pair
	return func(c *comm.Comm) error {
		known, ok := made.Load(c)
		if !ok {
			send, err1 := comm.PsendInit(c, in[c.Rank()], 4, 1-c.Rank(), 0)
			recv, err2 := comm.PrecvInit(c, out[c.Rank()], 4, 1-c.Rank(), 0)
			if err1 != nil || err2 != nil {
				return fmt.Errorf("%w, %w", err1, err2)
			}
			known = &pair{send, recv}
			made.Store(c, known)
		}
		x := known.(*pair)
		if err := x.recv.Start(); err != nil {
			return err
		}
		if err := x.send.Start(); err != nil {
			return err
		}
		if err := x.send.ReadyRange(0, 4); err != nil {
			return err
		}
		if _, err := x.recv.Arrived(3); err != nil {
			return err
		}
		if err := x.send.Wait(); err != nil {
			return err
		}
		return x.recv.Wait()
	}
}

func countAllocations(t *testing.T, n int, call func(c *comm.Comm) error, opts ...commtest.Option) {
	t.Helper()
	// The runtime itself allocates from time to time, far less than once per call.
	const tolerated = 0.1
	var perCall float64
	var enough atomic.Bool // all ranks are in this process
	ranks(t, n, func(c *comm.Comm) error {
		const rounds = 300
		loop := func() error {
			for range rounds {
				if err := call(c); err != nil {
					return err
				}
			}
			return c.Barrier()
		}
		// The pools fill, and grow again if some ranks are faster than others.
		for attempt := 0; attempt < 30 && !enough.Load(); attempt++ {
			var before, after runtime.MemStats
			if c.Rank() == 0 {
				runtime.ReadMemStats(&before)
			}
			if err := first(c.Barrier(), loop()); err != nil {
				return err
			}
			if c.Rank() == 0 {
				runtime.ReadMemStats(&after)
				if n := float64(after.Mallocs-before.Mallocs) / rounds; attempt == 0 || n < perCall {
					perCall = n
				}
				enough.Store(attempt > 0 && perCall <= tolerated)
			}
			if err := c.Barrier(); err != nil {
				return err
			}
		}
		return nil
	}, opts...)
	if perCall > tolerated {
		t.Errorf("%.2f allocations per call", perCall)
	}
}
