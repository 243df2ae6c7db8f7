package coll_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/coll/colltest"
)

// Kinds of exchanges between neighbours, which package coll does not define.
const (
	neighborAllgather coll.Kind = 200 + iota
	neighborAlltoall
)

// graph holds the edges of each rank, in the order of the blocks. A number that is negative stands
// for no neighbour.
type graph struct {
	sources, dests [][]int
	places         [][]coll.EdgePlace
	members        [][]int // by rank: the ranks of its host
	edges          []*coll.Edges
}

// newGraph returns a graph with these edges.
func newGraph(n int, hosts []int, edges [][2]int) *graph {
	g := &graph{
		sources: make([][]int, n), dests: make([][]int, n), places: make([][]coll.EdgePlace, n), members: make([][]int, n),
		edges: make([]*coll.Edges, n),
	}
	for _, e := range edges {
		from, to := e[0], e[1]
		if to >= 0 {
			index := 0
			if from >= 0 {
				index = len(g.dests[from])
			}
			g.sources[to], g.places[to] = append(g.sources[to], from), append(g.places[to], coll.EdgePlace{Index: index})
		}
		if from >= 0 {
			g.dests[from] = append(g.dests[from], to)
		}
	}
	for r := range n {
		for i, from := range g.sources[r] {
			if from >= 0 {
				g.places[r][i].Of = len(g.dests[from])
			}
		}
		for o, host := range hosts {
			if host == hosts[r] {
				g.members[r] = append(g.members[r], o)
			}
		}
	}
	return g
}

// randomEdges returns at most most random edges, of which some occur several times, some connect a
// rank with itself, and some have one end only.
func randomEdges(rng *rand.Rand, n, most int) (edges [][2]int) {
	for range rng.IntN(most + 1) {
		e := [2]int{rng.IntN(n), rng.IntN(n)}
		if i := rng.IntN(16); i < 2 {
			e[i] = -1
		}
		edges = append(edges, e)
	}
	return edges
}

// of returns the edges of the rank of l.
func (g *graph) of(l *colltest.Link) *coll.Edges {
	r := l.Rank()
	if g.edges[r] == nil {
		h, _ := l.Host()
		g.edges[r] = coll.NewEdges(h, g.members[r], g.sources[r], g.places[r], g.dests[r])
	}
	return g.edges[r]
}

// reversedViews are blocks whose bytes lie in memory in the reverse order.
type reversedViews struct{ out, in [][]byte }

func (v *reversedViews) OutBytes(i int) int             { return len(v.out[i]) }
func (v *reversedViews) InBytes(i int) int              { return len(v.in[i]) }
func (v *reversedViews) PackBlock(to []byte, i int)     { reverse(to, v.out[i]) }
func (v *reversedViews) UnpackBlock(from []byte, i int) { reverse(v.in[i], from) }

func reverse(to, from []byte) {
	for i, b := range from {
		to[len(to)-1-i] = b
	}
}

// outBlock returns what block i sends, as the receiver stores it if it has no views.
func outBlock(c *coll.NeighborCall, i, n int) []byte {
	switch {
	case c.Views != nil:
		b := make([]byte, c.Views.OutBytes(i))
		c.Views.PackBlock(b, i)
		return b
	case c.Same:
		return c.Send
	case c.SendCounts != nil:
		return c.Send[c.SendDispls[i]:][:c.SendCounts[i]]
	}
	return c.Send[i*len(c.Send)/n:][:len(c.Send)/n]
}

// exchange makes the call of one rank, and sends and receives the blocks that do not move through
// shared memory. If publish is true, it uses Publish and Finish if they permit it.
func exchange(l *colltest.Link, g *graph, c coll.NeighborCall, publish bool) error {
	h, _ := l.Host()
	me := l.Rank()
	c.Edges, c.Sig = g.of(l), l.Sig()
	sources, dests := g.sources[me], g.dests[me]
	var toSelf, fromSelf []int
	var views [][2][]byte // of a receive to a view: the memory of the message, and the view
	message := func(i int) bool { return dests[i] >= 0 && h.SendsMessage(&c, i) }
	c.Messages = false
	for i, from := range sources {
		if from < 0 || !h.ReceivesMessage(&c, i) {
			continue
		}
		c.Messages = true
		var to []byte
		switch {
		case c.Views != nil:
			to = make([]byte, c.Views.InBytes(i))
			views = append(views, [2][]byte{to, c.Views.(*reversedViews).in[i]})
		case c.RecvCounts != nil:
			to = c.Recv[c.RecvDispls[i]:][:c.RecvCounts[i]]
		default:
			to = c.Recv[i*len(c.Recv)/len(sources):][:len(c.Recv)/len(sources)]
		}
		if from == me { // only views; this network has no messages from a rank to itself
			fromSelf = append(fromSelf, len(views)-1)
		} else {
			l.Irecv(to, from)
		}
	}
	for i := range dests {
		c.Messages = c.Messages || message(i)
	}
	short := coll.ShortCall{What: c.Kind, Neighbors: &c}
	published := false
	var err error
	if publish {
		calls := l.Calls()
		if published, err = h.Publish(l, &short); err != nil {
			return err
		}
		if l.Calls() != calls {
			return errors.New("Publish waits")
		}
		if published && h.TakePendingWake() {
			l.Wake()
		}
	}
	if !published {
		if err = h.StartNeighbors(l, &c); err != nil {
			return err
		}
	}
	for i, to := range dests {
		switch {
		case !message(i):
		case to == me:
			toSelf = append(toSelf, i)
		default:
			l.Isend(outBlock(&c, i, len(dests)), to)
		}
	}
	ready, calls := published && h.Ready(&short), l.Calls()
	if published {
		err = h.Finish(&short)
	} else {
		err = h.FinishNeighbors(&c)
	}
	if err != nil {
		return err
	}
	if ready && l.Calls() != calls {
		return errors.New("Finish waits after Ready")
	}
	if h.TakePendingWake() {
		l.Wake()
	}
	if err := l.WaitAll(); err != nil {
		return err
	}
	for k, i := range toSelf {
		copy(views[fromSelf[k]][0], outBlock(&c, i, len(dests)))
	}
	for _, v := range views {
		reverse(v[1], v[0])
	}
	return nil
}

// neighbors returns a scenario of a random exchange in the graph.
func (m *maker) neighbors(g *graph) *scenario {
	s := &scenario{n: m.n}
	form := m.rng.IntN(6) // 0, 1 and 5: the same block for all; 4 and 5: views
	kind := neighborAlltoall
	if form < 2 || form == 5 {
		kind = neighborAllgather
	}
	equal := 8 * m.elems()
	// sent holds, by sender, its blocks, by edge.
	sent := make([][][]byte, m.n)
	for r, dests := range g.dests {
		own := m.bytes(m.length(form == 1 || form == 5, equal))
		for range dests {
			block := own
			if kind == neighborAlltoall {
				block = m.bytes(m.length(form > 2, equal))
			}
			sent[r] = append(sent[r], block)
		}
	}
	for r := range m.n {
		c := coll.NeighborCall{Kind: kind, Same: kind == neighborAllgather}
		publish := m.rng.IntN(2) == 0
		total := 0
		blocks := make([][]byte, len(g.sources[r]))
		for i, from := range g.sources[r] {
			n := equal // no neighbour: the block stays as it is
			if from >= 0 {
				blocks[i] = sent[from][g.places[r][i].Index]
				n = len(blocks[i])
			}
			if form == 1 || form == 3 {
				c.RecvCounts, c.RecvDispls = append(c.RecvCounts, n), append(c.RecvDispls, total)
				total += m.rng.IntN(3) * 8 // a gap
			}
			total += n
		}
		if c.Same && len(g.dests[r]) > 0 {
			c.Send = sent[r][0]
		}
		views := &reversedViews{}
		for i := range g.dests[r] {
			block := sent[r][i]
			switch {
			case form >= 4:
				out := make([]byte, len(block))
				reverse(out, block)
				views.out = append(views.out, out)
			case c.Same:
			case form == 3:
				c.SendCounts, c.SendDispls = append(c.SendCounts, len(block)), append(c.SendDispls, len(c.Send))
				c.Send = append(append(c.Send, block...), make([]byte, 8*m.rng.IntN(3))...)
			default:
				c.Send = append(c.Send, block...)
			}
		}
		switch form {
		case 4, 5:
			for i, from := range g.sources[r] {
				if from < 0 {
					views.in = append(views.in, nil)
					continue
				}
				w, buf := newBuffer(len(blocks[i]))
				views.in = append(views.in, buf)
				content := make([]byte, len(buf))
				reverse(content, blocks[i])
				s.expect(fmt.Sprint("view ", i), r, w, content)
			}
			c.Views = views
		default:
			w, buf := newBuffer(total)
			c.Recv = buf
			content := append([]byte(nil), buf...)
			at := 0
			for i, b := range blocks {
				if c.RecvCounts != nil {
					at = c.RecvDispls[i]
				}
				copy(content[at:], b)
				at += equal
			}
			s.expect("recv", r, w, content)
		}
		s.call = append(s.call, func(l coll.Link) error { return exchange(l.(*colltest.Link), g, c, publish) })
	}
	return s
}

// length returns a random length if vary is true, and otherwise equal.
func (m *maker) length(vary bool, equal int) int {
	if vary {
		return m.elems() * 8
	}
	return equal
}

// TestHostNeighbors runs series of random exchanges in random graphs, mixed with random collectives,
// in worlds in which the ranks of each host share memory, and checks the results.
func TestHostNeighbors(t *testing.T) {
	rounds := uint64(12)
	if testing.Short() {
		rounds = 4
	}
	for where, opt := range networks {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{1, 2, 3, 4, 5, 7, 8} {
				for seed := range rounds {
					rng := rand.New(rand.NewPCG(seed, uint64(n)))
					for layout, hosts := range layouts(rng, n) {
						cfg := hostConfig(rng, coll.Auto)
						// Of the second graph some ranks have too many edges for the arrival line.
						graphs := []*graph{newGraph(n, hosts, randomEdges(rng, n, 3*n)), newGraph(n, hosts, randomEdges(rng, n, 100*n))}
						others := rng.IntN(4) // of 4 calls: the collectives
						var all []*scenario
						for range 30 {
							m := &maker{rng: rng, cfg: cfg, n: n, op: sum64(), max: []int{16, 40, 400, 4000}[rng.IntN(4)]}
							if rng.IntN(4) < others {
								all = append(all, m.make(coll.Kind(1+rng.IntN(int(coll.KindExscan))), rng.IntN(n)))
								continue
							}
							g := graphs[0]
							if rng.IntN(8) == 0 {
								g = graphs[1]
							}
							all = append(all, m.neighbors(g))
						}
						opt.Seed, opt.Hosts, opt.SharedBytes = seed, hosts, cfg.SharedBytes
						require.NoError(t, series(all, opt), "%d ranks, hosts %s %v, seed %d", n, layout, hosts, seed)
					}
				}
			}
		})
	}
}

// TestHostNeighborsAfterBcast: a rank that is not a neighbour may still read the data buffer of a
// Bcast while its root and the root's neighbours make several exchanges.
func TestHostNeighborsAfterBcast(t *testing.T) {
	const n = 3
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		hosts := make([]int, n)
		cfg := coll.DefaultConfig()
		cfg.SharedBytes = 4 << 10
		m := &maker{rng: rng, cfg: cfg, n: n, op: sum64(), max: 800, fixed: true}
		g := newGraph(n, hosts, [][2]int{{0, 1}, {1, 0}})
		all := []*scenario{m.make(coll.KindBcast, 0)}
		for _, length := range []int{8, 8, 8, 800} {
			m := *m
			m.max = length
			all = append(all, m.neighbors(g))
		}
		opt := colltest.Options{Network: colltest.Scheduled, Seed: seed, Hosts: hosts, SharedBytes: cfg.SharedBytes}
		require.NoError(t, series(all, opt), "seed %d", seed)
	}
}

// pair returns a world of two ranks in shared memory and a graph with an edge in each direction.
func pair(opt colltest.Options) (*colltest.World, *graph) {
	opt.Hosts, opt.SharedBytes = []int{0, 0}, 4<<10
	return colltest.New(2, opt), newGraph(2, opt.Hosts, [][2]int{{0, 1}, {1, 0}})
}

// TestHostNeighborsMismatch checks that ranks that make different calls get ErrMismatch: of two
// exchanges, of an exchange and another collective, and of exchanges with different signatures.
func TestHostNeighborsMismatch(t *testing.T) {
	buf := func() []byte { return make([]byte, 64) }
	of := func(kind coll.Kind, sig uint16) func(l *colltest.Link, g *graph) error {
		return func(l *colltest.Link, g *graph) error {
			l.SetSig(sig)
			return exchange(l, g, coll.NeighborCall{Kind: kind, Same: kind == neighborAllgather, Send: buf(), Recv: buf()}, false)
		}
	}
	barrier := func(l *colltest.Link, _ *graph) error { return coll.Barrier(l, nil) }
	for name, calls := range map[string][2]func(l *colltest.Link, g *graph) error{
		"kinds":      {of(neighborAllgather, 1), of(neighborAlltoall, 1)},
		"signatures": {of(neighborAlltoall, 1), of(neighborAlltoall, 2)},
		"barrier":    {of(neighborAlltoall, 1), barrier},
	} {
		w, g := pair(colltest.Options{})
		errs := errors.Join(w.Run(func(l *colltest.Link) error { return calls[l.Rank()](l, g) })...)
		require.ErrorIs(t, errs, colltest.ErrMismatch, name)
		require.NotErrorIs(t, errs, colltest.ErrDeadlock, name)
	}
}

// TestHostNeighborsMiscount checks that a receiver detects that a neighbour has sent a block of
// another length, also if one of the two takes the block for a message.
func TestHostNeighborsMiscount(t *testing.T) {
	lengths := []int{0, 1, 8, 53, 54, 55, 100, 960, 5000}
	for _, have := range lengths {
		for _, want := range lengths {
			for _, kind := range []coll.Kind{neighborAllgather, neighborAlltoall} {
				w, g := pair(colltest.Options{})
				errs := errors.Join(w.Run(func(l *colltest.Link) error {
					send, recv := make([]byte, have), make([]byte, want)
					if l.Rank() == 1 {
						send, recv = make([]byte, want), make([]byte, want)
					}
					return exchange(l, g, coll.NeighborCall{Kind: kind, Same: kind == neighborAllgather, Send: send, Recv: recv}, true)
				})...)
				if have == want {
					require.NoError(t, errs)
					continue
				}
				require.ErrorIs(t, errs, colltest.ErrMiscount, "%d and %d bytes", have, want)
				require.NotErrorIs(t, errs, colltest.ErrDeadlock, "%d and %d bytes", have, want)
			}
		}
	}
	// A block for the rank itself.
	w := colltest.New(1, colltest.Options{Hosts: []int{0}, SharedBytes: 4 << 10})
	g := newGraph(1, []int{0}, [][2]int{{0, 0}})
	errs := w.Run(func(l *colltest.Link) error {
		return exchange(l, g, coll.NeighborCall{Kind: neighborAlltoall, Send: make([]byte, 8), Recv: make([]byte, 9)}, false)
	})
	require.ErrorIs(t, errs[0], colltest.ErrMiscount)
}

// TestHostNeighborsFailures has one call of one rank to its Link fail in each run: the first, the
// second, and so on. That rank must return the error, and the ranks must not deadlock.
func TestHostNeighborsFailures(t *testing.T) {
	for _, hosts := range [][]int{{0, 0}, {0, 0, 0, 0, 0}, {0, 0, 0, 1, 1}} {
		n := len(hosts)
		for rank := range n {
			for fail := 1; fail < 60; fail++ {
				rng := rand.New(rand.NewPCG(uint64(fail), 3))
				m := &maker{rng: rng, cfg: hostConfig(rng, coll.Auto), n: n, max: 2000, op: sum64()}
				g := newGraph(n, hosts, randomEdges(rng, n, 3*n))
				all := []*scenario{m.neighbors(g), m.neighbors(g), m.neighbors(g), m.neighbors(g), m.neighbors(g)}
				w := colltest.New(n, colltest.Options{
					Network: colltest.Scheduled, FailRank: rank, FailCall: fail, Seed: uint64(fail), Hosts: hosts, SharedBytes: m.cfg.SharedBytes,
				})
				errs := w.Run(func(l *colltest.Link) error {
					for _, s := range all {
						if err := s.call[l.Rank()](l); err != nil {
							return err
						}
					}
					return nil
				})
				if w.Link(rank).Calls() < fail {
					require.NoError(t, errors.Join(errs...))
					continue
				}
				require.ErrorIs(t, errs[rank], colltest.ErrInjected, "hosts %v, rank %d, call %d", hosts, rank, fail)
				require.NotErrorIs(t, errors.Join(errs...), colltest.ErrDeadlock, "hosts %v, rank %d, call %d", hosts, rank, fail)
			}
		}
	}
}

// TestHostNeighborsDoNotAllocate checks that no rank allocates in an exchange in shared memory in
// steady state.
func TestHostNeighborsDoNotAllocate(t *testing.T) {
	const n, runs = 3, 20
	hosts := make([]int, n)
	w := colltest.New(n, colltest.Options{Hosts: hosts, SharedBytes: 4 << 10})
	g := newGraph(n, hosts, [][2]int{{0, 1}, {1, 2}, {2, 0}, {1, 0}, {2, 1}, {0, 2}, {0, 0}})
	var allocs float64
	errs := w.Run(func(l *colltest.Link) error {
		h, _ := l.Host()
		var calls []*coll.NeighborCall
		for _, size := range []int{8, 200} {
			for _, kind := range []coll.Kind{neighborAllgather, neighborAlltoall} {
				c := &coll.NeighborCall{Edges: g.of(l), Kind: kind, Same: kind == neighborAllgather, Recv: make([]byte, size*len(g.sources[l.Rank()]))}
				if c.Send = make([]byte, size*len(g.dests[l.Rank()])); c.Same {
					c.Send = c.Send[:size]
				}
				calls = append(calls, c)
			}
		}
		var failed error
		once := func() {
			for _, c := range calls {
				err := h.StartNeighbors(l, c)
				if err == nil {
					err = h.FinishNeighbors(c)
				}
				if err != nil && failed == nil {
					failed = err
				}
				if h.TakePendingWake() {
					l.Wake()
				}
				l.Reset()
			}
		}
		for range 5 { // warm up all ranks before rank 0 counts
			once()
		}
		if failed == nil && l.Rank() == 0 {
			allocs = testing.AllocsPerRun(runs, once)
		} else {
			for range runs + 1 {
				once()
			}
		}
		return failed
	})
	require.NoError(t, errors.Join(errs...))
	assert.Zero(t, allocs)
}
