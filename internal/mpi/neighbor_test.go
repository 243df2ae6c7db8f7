package mpi_test

import (
	"fmt"
	stdmaps "maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// mixed is a series of random neighbour collectives in a grid or graph, mixed with other collectives
// of the same communicator. All ranks draw the same numbers.
type mixed struct {
	c              *comm.Comm
	n              comm.Neighborhood
	rng            *rand.Rand
	sources, dests []int
	slots          []int                  // by dest: the index of the edge among the sources of the receiver
	pending        []func() error         // each waits for a nonblocking call and checks its result
	persistent     map[int]persistentCall // by number of elements of a block
}

// persistentCall is a persistent NeighborAlltoall, which is not active.
type persistentCall struct {
	p          *comm.Persistent
	send, recv []int64
}

// newMixed makes a random grid, or a random graph, some of whose edges occur several times or
// connect a rank with itself.
func newMixed(c *comm.Comm, seed uint64) (*mixed, error) {
	m := &mixed{rng: rand.New(rand.NewPCG(seed, 1)), persistent: map[int]persistentCall{}}
	me, size := c.Rank(), c.Size()
	if m.rng.IntN(3) == 0 {
		dims, err := comm.Dims(size, make([]int, 1+m.rng.IntN(3))...)
		if err != nil {
			return nil, err
		}
		periodic := make([]bool, len(dims))
		for i := range periodic {
			periodic[i] = m.rng.IntN(2) == 0
		}
		g, err := c.Cart(dims, periodic)
		if err != nil {
			return nil, err
		}
		m.c, m.n = g.Comm, g
		m.sources, m.dests = g.Neighbors()
		for i := range m.dests {
			m.slots = append(m.slots, i^1)
		}
		return m, nil
	}
	sources := make([][]int, size)
	for range m.rng.IntN(3 * size) {
		from, to := m.rng.IntN(size), m.rng.IntN(size)
		if from == me {
			m.dests, m.slots = append(m.dests, to), append(m.slots, len(sources[to]))
		}
		sources[to] = append(sources[to], from)
	}
	m.sources = sources[me]
	g, err := c.Graph(m.sources, m.dests)
	if err != nil {
		return nil, err
	}
	m.c, m.n = g.Comm, g
	return m, nil
}

// exchange makes a random neighbour collective in round k. If it is nonblocking, exchange appends to
// m.pending.
func (m *mixed) exchange(k int) error {
	const gather, gatherv, alltoall, alltoallv, views, persistent, gatherViews, forms = 0, 1, 2, 3, 4, 5, 6, 7
	form, blocking := m.rng.IntN(forms), m.rng.IntN(2) == 0
	// In elements of 8 bytes. The blocks travel in arrival lines, in data buffers, and as messages.
	equal := []int{0, 1, 3, 50, 600, 4096, 5000}[m.rng.IntN(7)]
	toAll := form == gather || form == gatherv || form == gatherViews
	// sent returns the block that rank from sends to slot i of the sources of a rank.
	sent := func(from, i int) []int64 {
		n := equal
		if toAll {
			i = 0
		}
		if form != gather && form != alltoall && form != persistent {
			n = (equal*(1+from%3) + i) % (equal + 1)
		}
		b := make([]int64, n)
		for j := range b {
			b[j] = int64(from+1)<<48 | int64(k)<<28 | int64(i)<<20 | int64(j)
		}
		return b
	}
	// view returns a view of every second element of new memory, which holds b.
	view := func(b []int64) comm.View[int64] {
		v := comm.Of(make([]int64, 2*len(b)), comm.Vector(len(b), 1, 2))
		_, _ = comm.Unpack(v, b) // cannot fail: the view has as many elements as b
		return v
	}
	var send, want []int64
	var sendcounts, recvcounts []int
	var out, in []comm.View[int64]
	for _, slot := range m.slots {
		b := sent(m.c.Rank(), slot)
		send, sendcounts, out = append(send, b...), append(sendcounts, len(b)), append(out, view(b))
	}
	if toAll {
		send = sent(m.c.Rank(), 0)
	}
	for i, from := range m.sources {
		b := make([]int64, equal)
		if from != comm.ProcNull { // otherwise the block stays as it is
			b = sent(from, i)
		}
		want, recvcounts, in = append(want, b...), append(recvcounts, len(b)), append(in, view(make([]int64, len(b))))
	}
	recv := make([]int64, len(want))
	var r comm.Request
	switch form {
	case gather:
		r = comm.IneighborAllgather(m.n, send, recv)
	case gatherv:
		r = comm.IneighborAllgatherv(m.n, send, recv, recvcounts, nil)
	case gatherViews:
		if m.c.Rank()%3 == k%3 { // this rank passes slices
			r, form = comm.IneighborAllgatherv(m.n, send, recv, recvcounts, nil), gatherv
		} else {
			r = comm.IneighborAllgatherView(m.n, view(send), in)
		}
	case alltoallv:
		r = comm.IneighborAlltoallv(m.n, send, sendcounts, nil, recv, recvcounts, nil)
	case views:
		r = comm.IneighborAlltoallView(m.n, out, in)
	case alltoall:
		if blocking {
			return first(comm.NeighborAlltoall(m.n, send, recv), same("NeighborAlltoall", recv, want))
		}
		r = comm.IneighborAlltoall(m.n, send, recv)
	case persistent:
		return m.exchangeAgain(equal, send, want, blocking)
	}
	what := fmt.Sprintf("form %d in round %d, blocks of %d elements", form, k, equal)
	check := func() error {
		if err := wait(r); err != nil || form != views && form != gatherViews {
			return first(err, same(what, recv, want))
		}
		for i, at := 0, 0; i < len(in); at, i = at+recvcounts[i], i+1 {
			if err := holds(fmt.Sprint(what, ", view ", i), in[i], want[at:at+recvcounts[i]]); err != nil {
				return err
			}
		}
		return nil
	}
	if blocking {
		return check()
	}
	m.pending = append(m.pending, check)
	return nil
}

// exchangeAgain starts a persistent NeighborAlltoall, and completes it by Wait, or by Test if poll is
// true.
func (m *mixed) exchangeAgain(elements int, send, want []int64, poll bool) (err error) {
	x, ok := m.persistent[elements]
	if !ok {
		x = persistentCall{send: make([]int64, len(send)), recv: make([]int64, len(want))}
		if x.p, err = comm.NeighborAlltoallInit(m.n, x.send, x.recv); err != nil {
			return err
		}
		m.persistent[elements] = x
	}
	copy(x.send, send)
	clear(x.recv)
	if err := x.p.Start(); err != nil {
		return err
	}
	for done := false; poll && !done && err == nil; runtime.Gosched() {
		_, done, err = x.p.Test()
	}
	if err == nil {
		_, err = x.p.Wait()
	}
	return first(err, same("persistent NeighborAlltoall", x.recv, want))
}

// run makes the calls of all rounds. Several may be in progress at the same time.
func (m *mixed) run(rounds int) error {
	finish := func() error {
		for _, check := range m.pending {
			if err := check(); err != nil {
				return err
			}
		}
		m.pending = nil
		return nil
	}
	for k := range rounds {
		var err error
		switch m.rng.IntN(8) {
		case 0:
			sum, size := 0, m.c.Size()
			sum, err = comm.AllreduceOne(m.c, m.c.Rank()+k, comm.Sum[int])
			if want := size*(size-1)/2 + size*k; err == nil && sum != want {
				err = fmt.Errorf("Allreduce of round %d: %d, not %d", k, sum, want)
			}
		case 1:
			root, want := m.rng.IntN(m.c.Size()), count(m.rng.IntN(3000), k)
			buf := make([]int, len(want))
			if m.c.Rank() == root {
				copy(buf, want)
			}
			r := comm.Ibcast(m.c, buf, root)
			m.pending = append(m.pending, func() error { return first(wait(r), same("Ibcast", buf, want)) })
		case 2:
			err = finish()
		default:
			err = m.exchange(k)
		}
		if err != nil {
			return err
		}
	}
	if err := finish(); err != nil {
		return err
	}
	for _, elements := range slices.Sorted(stdmaps.Keys(m.persistent)) {
		if err := m.persistent[elements].p.Free(); err != nil {
			return err
		}
	}
	return m.c.Free()
}

func mixNeighbors(c *comm.Comm) error {
	for seed := range withRace(4, 1) {
		m, err := newMixed(c, uint64(seed+10*c.Size()))
		if err == nil {
			err = m.run(40)
		}
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
	}
	return nil
}

// TestNeighborsMixed makes random neighbour collectives of all forms, mixed with other collectives,
// and checks what they receive.
func TestNeighborsMixed(t *testing.T) { overFabrics(t, []int{1, 3, 5, 7}, mixNeighbors) }

// TestNeighborsOnHosts does the same on several hosts, whose ranks share memory.
func TestNeighborsOnHosts(t *testing.T) {
	for _, of := range [][]int{{0, 1, 1}, {0, 1, 0, 1, 0}, {0, 0, 0, 1, 1, 2, 1}} {
		t.Run(fmt.Sprint(of), func(t *testing.T) { ranks(t, len(of), mixNeighbors, newHosts(of...).providers()) })
	}
	t.Run("one rank cannot map", func(t *testing.T) { // so there is no arena
		h := newHosts(0, 0, 0)
		h.noMap = 1
		ranks(t, 3, mixNeighbors, h.providers())
	})
}

// ring makes a graph in which each rank sends to the next one and to the one before.
func ring(c *comm.Comm) (*comm.Graph, error) {
	n := c.Size()
	peers := []int{(c.Rank() + 1) % n, (c.Rank() + n - 1) % n}
	return c.Graph(peers, peers)
}

// TestDeadNeighbor kills a rank while its neighbours make neighbour collectives. They must fail.
func TestDeadNeighbor(t *testing.T) {
	overMortal(t, func(run runJob) {
		for _, x := range []struct{ length, n int }{{1, 3}, {1000, 2}, {1000, 5}, {10000, 3}} {
			length := x.length
			run(fmt.Sprintf("%d/%d", length, x.n), x.n, func(c *comm.Comm) error {
				g, err := ring(c)
				if err != nil {
					return err
				}
				send, recv := make([]int, 2*length), make([]int, 2*length)
				for range 3 {
					if err := comm.NeighborAlltoall(g, send, recv); err != nil {
						return err
					}
				}
				if err := c.Barrier(); err != nil {
					return err
				}
				if c.Rank() == 1 {
					commtest.Kill(c)
					return nil
				}
				for err == nil {
					err = comm.NeighborAlltoall(g, send, recv)
				}
				if !isErr(err, comm.ErrProcFailed) && !isErr(err, comm.ErrRevoked) {
					return err
				}
				commtest.Kill(c) // otherwise Run would call Finalize, which returns an error after a failure
				return nil
			})
		}
	})
}

// TestNeighborsDisagree: ranks whose calls differ get an error that says how.
func TestNeighborsDisagree(t *testing.T) {
	for name, x := range map[string]struct {
		call func(g *comm.Graph) error
		want error
		text string
	}{
		"counts": {func(g *comm.Graph) error {
			n := 3 + g.Rank()
			return comm.NeighborAlltoall(g, make([]int, 2*n), make([]int, 2*n))
		}, comm.ErrCount, "elements"},
		"messages": {func(g *comm.Graph) error { // rank 0 expects a message, rank 1 sends a short block
			n := 3 + 10000*(1-g.Rank())
			return comm.NeighborAllgather(g, make([]int, n), make([]int, 2*n))
		}, comm.ErrCount, "elements"},
		"types": {func(g *comm.Graph) error {
			if g.Rank() == 0 {
				return comm.NeighborAlltoall(g, make([]int, 4), make([]int, 4))
			}
			return comm.NeighborAlltoall(g, make([]float64, 4), make([]float64, 4))
		}, comm.ErrMismatch, "with elements of another layout"},
		"calls": {func(g *comm.Graph) error {
			if g.Rank() == 0 {
				return comm.NeighborAlltoall(g, make([]int, 4), make([]int, 4))
			}
			return comm.NeighborAllgather(g, make([]int, 2), make([]int, 4))
		}, comm.ErrMismatch, "rank 1 called NeighborAllgather"},
		"barrier": {func(g *comm.Graph) error {
			if g.Rank() == 0 {
				return comm.NeighborAlltoall(g, make([]int, 4), make([]int, 4))
			}
			return g.Barrier()
		}, comm.ErrMismatch, "rank 1 called Barrier"},
	} {
		t.Run(name, func(t *testing.T) {
			overFabrics(t, []int{2}, func(c *comm.Comm) error {
				g, err := ring(c)
				if err != nil {
					return err
				}
				for range 2 { // the first call may make the arena
					if err := comm.NeighborAlltoall(g, make([]int, 4), make([]int, 4)); err != nil {
						return err
					}
				}
				err = x.call(g)
				if err == nil { // the other rank has found the difference
					err = g.Barrier()
				}
				if !isErr(err, comm.ErrRevoked) {
					if err := wantErr(name, err, x.want, x.text); err != nil {
						return err
					}
				}
				return g.Free()
			})
		})
	}
}

// TestNeighborsOfTwoTypes: ranks that are not neighbours may use different types. If they disagree
// later, the error names the later calls.
func TestNeighborsOfTwoTypes(t *testing.T) {
	overFabrics(t, []int{4}, func(c *comm.Comm) error {
		peer := []int{c.Rank() ^ 1}
		g, err := c.Graph(peer, peer)
		if err != nil {
			return err
		}
		for k := range 30 {
			if c.Rank() < 2 {
				err = comm.NeighborAlltoall(g, []int{k}, []int{0})
			} else {
				err = comm.NeighborAlltoall(g, make([]float32, 5), make([]float32, 5))
			}
			if err != nil {
				return err
			}
		}
		if c.Rank() < 2 {
			err = comm.Allreduce(g.Comm, []int{1}, []int{0}, comm.Sum)
		} else {
			err = comm.Allreduce(g.Comm, []float32{1}, []float32{0}, comm.Sum)
		}
		if !isErr(err, comm.ErrMismatch) && !isErr(err, comm.ErrRevoked) {
			return err
		}
		return first(wantErr("the cause", err, err, "× float32 by Sum"), wantErr("the cause", err, err, "× int64 by Sum"), g.Free())
	})
}
