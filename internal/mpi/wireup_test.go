package mpi_test

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// partial is a provider that divides the ranks into groups, and leads only to ranks of the caller's
// own group.
type partial struct {
	transport.Provider
	name  string
	group func(transport.Addr) int
	full  bool              // the address vectors hold the addresses of all ranks from the start
	alive atomic.Int32      // number of open domains
	got   *transport.Config // Open stores its configuration here; may be nil
}

type partialDomain struct {
	transport.Domain
	p    *partial
	self transport.Addr
	size int
}

type partialQueue struct {
	transport.CompletionQueue
	d *partialDomain
}

type partialVector struct {
	transport.AddressVector
	d *partialDomain
}

func (p *partial) Name() string { return p.name }

func (p *partial) Open(cfg transport.Config) (transport.Domain, error) {
	p.alive.Add(1)
	if p.got != nil {
		*p.got = cfg
	}
	d, err := p.Provider.Open(cfg)
	return &partialDomain{d, p, cfg.Self, cfg.Size}, err
}

func (d *partialDomain) Attr() transport.Attr {
	a := d.Domain.Attr()
	a.Provider = d.p.name
	a.Caps &^= transport.CapSharedMemory
	return a
}

func (d *partialDomain) OpenAV() (transport.AddressVector, error) {
	av, err := d.Domain.OpenAV()
	if err == nil && d.p.full {
		_, err = av.InsertSym("process", 1, "0", d.size)
	}
	return &partialVector{av, d}, err
}

func (d *partialDomain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	return d.Domain.OpenEndpoint(av.(*partialVector).AddressVector, cq.(*partialQueue).CompletionQueue)
}

func (d *partialDomain) OpenCQ() (transport.CompletionQueue, error) {
	cq, err := d.Domain.OpenCQ()
	return &partialQueue{cq, d}, err
}

// Read reads completions and drops those that concern ranks of other groups.
func (q *partialQueue) Read(c []transport.Completion) (int, error) {
	n, err := q.CompletionQueue.Read(c)
	kept := 0
	for _, x := range c[:n] {
		if x.Kind == transport.OpDone || q.d.p.group(x.Peer) == q.d.p.group(q.d.self) {
			c[kept] = x
			kept++
		}
	}
	return kept, err
}

func (d *partialDomain) Close() error {
	d.p.alive.Add(-1)
	return d.Domain.Close()
}

func (v *partialVector) Reaches(a transport.Addr) bool {
	return v.d.p.group(a) == v.d.p.group(v.d.self)
}

// TestPartialTransports: a rank uses, for each peer, the first transport that leads to it. The rank
// closes a transport that leads to no peer, and does not open transports after the last one that it
// needs.
func TestPartialTransports(t *testing.T) {
	const n = 5
	for name, c := range map[string]struct {
		group  func(transport.Addr) int
		first  int // number of ranks on which the first transport is open
		second int // number of ranks on which the second transport is open
	}{
		"two groups": {func(a transport.Addr) int { return int(a) % 2 }, n, n},
		"one alone":  {func(a transport.Addr) int { return int(a) / (n - 1) }, n - 1, n},
		"all alone":  {func(a transport.Addr) int { return int(a) }, 0, n},
		"one group":  {func(transport.Addr) int { return 0 }, n, 0},
	} {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, full %v", name, full), func(t *testing.T) {
				all := func(transport.Addr) int { return 0 }
				first := &partial{Provider: inproc.NewFabric(), name: "first", group: c.group, full: full}
				second := &partial{Provider: tcp.New(), name: "second", group: all}
				third := &partial{Provider: inproc.NewFabric(), name: "third", group: all}
				ranks(t, n, func(w *comm.Comm) error {
					if err := exercise(w, w, count(n, 0)); err != nil {
						return err
					}
					for r := range n {
						want := "second"
						switch {
						case r == w.Rank():
							want = "self"
						case c.group(transport.Addr(r)) == c.group(transport.Addr(w.Rank())):
							want = "first"
						}
						if err := same("transport", []string{w.Transport(r)}, []string{want}); err != nil {
							return err
						}
					}
					alive := []int32{first.alive.Load(), second.alive.Load(), third.alive.Load()}
					return same("domains", alive, []int32{int32(c.first), int32(c.second), 0})
				}, commtest.WithProviders(first, second, third))
				require.Zero(t, first.alive.Load()+second.alive.Load())
			})
		}
	}
}

func TestUnreachableRank(t *testing.T) {
	alone := func(a transport.Addr) int { return int(a) }
	p := &partial{Provider: inproc.NewFabric(), name: "first", group: alone, full: true}
	w := &bootstrap.World{Rank: 1, Size: 3, HostOf: make([]int, 3), JobID: "job", Launcher: "test"}
	_, err := mpi.Init(t.Context(), mpi.Setup{World: w, Providers: []transport.Provider{p}})
	require.ErrorContains(t, err, "rank 0 is not reached by first")
	require.Zero(t, p.alive.Load())
}

// TestMemoryOfTheWorld: Init closes the launcher's memory file after it has opened the transports.
// The configuration of a transport lists only the ranks of this host as ranks that share the file.
func TestMemoryOfTheWorld(t *testing.T) {
	for _, size := range []int{1, 3} {
		f, err := bootstrap.MemoryFile("job")
		require.NoError(t, err)
		var got transport.Config
		p := &partial{Provider: inproc.NewFabric(), name: "first", group: func(transport.Addr) int { return 0 }, full: true, got: &got}
		w := &bootstrap.World{Rank: 0, Size: size, HostOf: []int{0, 1, 0}[:size], JobID: "job", Launcher: "test", Memory: f}
		var e *engine.Engine
		_, err = mpi.Init(t.Context(), mpi.Setup{World: w, Providers: []transport.Provider{p},
			Engine: func(x *engine.Engine) { e = x }})
		require.NoError(t, err)
		require.Nil(t, w.Memory)
		require.ErrorIs(t, f.Close(), os.ErrClosed)
		if size > 1 {
			require.Same(t, f, got.Memory)
			require.Equal(t, []transport.Addr{0, 2}, got.Locals)
			require.False(t, got.OneHost)
		}
		e.Kill()
	}
}
