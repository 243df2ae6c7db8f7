package engine

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// downRecorder is a Service that records the error that Down gets.
type downRecorder struct {
	idle
	err error
}

func (g *downRecorder) Down(_ int, err error) { g.err = err }

// peerWaits has functions that wait for the last rank of a group: by blocking calls, or by loops of
// nonblocking ones. Each returns the error that ends the wait.
var peerWaits = map[string]func(c *Context, last int) error{
	"recv": func(c *Context, last int) error {
		_, err := c.Recv(background, nil, Env{Peer: last, Tag: 1})
		return err
	},
	"recv from any": func(c *Context, _ int) error {
		_, err := c.Recv(background, nil, Env{Peer: AnySource, Tag: 1})
		return err
	},
	"test": func(c *Context, last int) error {
		r := c.Irecv(nil, Env{Peer: last, Tag: 1})
		for {
			if _, done, err := r.Test(); done {
				return err
			}
			runtime.Gosched()
		}
	},
	"probe": func(c *Context, last int) error {
		_, err := c.Probe(background, Env{Peer: last, Tag: 1})
		return err
	},
	"mprobe of any": func(c *Context, _ int) error {
		_, _, err := c.Mprobe(background, Env{Peer: AnySource, Tag: AnyTag})
		return err
	},
	"iprobe of any": func(c *Context, _ int) error {
		for {
			if _, _, err := c.Iprobe(Env{Peer: AnySource, Tag: AnyTag}); err != nil {
				return err
			}
			runtime.Gosched()
		}
	},
	"improbe of one after the other": func(c *Context, last int) error {
		for r := 0; ; r = (r + 1) % (last + 1) {
			if _, _, _, err := c.Improbe(Env{Peer: r, Tag: AnyTag}); err != nil {
				return err
			}
			runtime.Gosched()
		}
	},
	"port": func(c *Context, _ int) error {
		var g downRecorder
		p, err := c.OpenPort(only(&g))
		if err != nil {
			return err
		}
		p.Lock()
		defer p.Unlock()
		for g.err == nil {
			if err := p.Await(background); err != nil {
				return err
			}
		}
		return g.err
	},
}

// TestQueryPeersFindsFailedPeers: rank 0 waits for a rank that has died, and no rank has a
// connection to it. QueryPeers connects with the dead rank, so the wait ends with ErrProcFailed.
func TestQueryPeersFindsFailedPeers(t *testing.T) {
	for name, call := range peerWaits {
		for _, n := range []int{2, membersAtOnce + 3} {
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				engines := openJob(t, n, tcp.New(), nil)
				c := world(engines)[0]
				engines[n-1].Kill()
				ended := make(chan error, 1)
				go func() { ended <- call(c, n-1) }() // ends when the call returns
				deadline := time.After(testTimeout)
				for {
					engines[0].QueryPeers()
					select {
					case err := <-ended:
						require.ErrorIs(t, err, ErrProcFailed)
						return
					case <-deadline:
						t.Fatal("the call does not end")
					case <-time.After(time.Millisecond):
					}
				}
			})
		}
	}
}

// connectRecorder is an inproc fabric whose Connect fails, and that records for each rank the peers
// with which it has called Connect.
type connectRecorder struct {
	*inproc.Fabric
	connected map[transport.Addr][]transport.Addr
}

type recorderDomain struct {
	transport.Domain
	f    *connectRecorder
	self transport.Addr
}

type recorderEndpoint struct {
	transport.Endpoint
	transport.RMAEndpoint
	d recorderDomain
}

func (f *connectRecorder) Open(cfg transport.Config) (transport.Domain, error) {
	d, err := f.Fabric.Open(cfg)
	return recorderDomain{d, f, cfg.Self}, err
}

func (d recorderDomain) Attr() transport.Attr {
	a := d.Domain.Attr()
	a.Caps |= transport.CapConnect
	return a
}

func (d recorderDomain) OpenEndpoint(av transport.AddressVector, cq transport.CompletionQueue) (transport.Endpoint, error) {
	ep, err := d.Domain.OpenEndpoint(av, cq)
	if err != nil {
		return nil, err
	}
	return recorderEndpoint{ep, ep.(transport.RMAEndpoint), d}, nil
}

func (e recorderEndpoint) Connect(peer transport.Addr) error {
	e.d.f.connected[e.d.self] = append(e.d.f.connected[e.d.self], peer)
	return errors.New("test")
}

// TestWhichPeersQueryPeersConnects: QueryPeers connects with a peer only if a call that names the
// peer was already waiting at the last QueryPeers. For a wait for any source it connects with at
// most membersAtOnce members at a time, and in the end with all.
func TestWhichPeersQueryPeersConnects(t *testing.T) {
	const n = 3 * membersAtOnce
	f := &connectRecorder{inproc.NewFabric(), map[transport.Addr][]transport.Addr{}}
	engines := openJob(t, n, f, nil)
	c := world(engines)[0]
	e := engines[0]
	calls := func() []transport.Addr {
		f.connected[0] = nil
		e.QueryPeers()
		return f.connected[0]
	}
	require.Empty(t, calls())
	require.Empty(t, calls())

	r := c.Irecv(nil, Env{Peer: 5, Tag: 1})
	require.Empty(t, calls(), "the receive has just begun")
	require.Equal(t, []transport.Addr{5}, calls())
	require.NoError(t, r.Cancel())
	require.Empty(t, calls())
	_, err := r.Wait(background)
	require.NoError(t, err)
	again := c.Irecv(nil, Env{Peer: 6, Tag: 1}) // uses the slot of r, but counts as a new wait
	require.Empty(t, calls())
	require.Equal(t, []transport.Addr{6}, calls())
	require.NoError(t, again.Cancel())

	var all []transport.Addr
	anyone := c.Irecv(nil, Env{Peer: AnySource, Tag: 1})
	require.Empty(t, calls())
	for range n / membersAtOnce {
		some := calls()
		require.LessOrEqual(t, len(some), membersAtOnce)
		all = append(all, some...)
	}
	slices.Sort(all)
	require.Len(t, slices.Compact(all), n-1)
	require.NoError(t, anyone.Cancel())

	for range 3 {
		_, _, err = c.Iprobe(Env{Peer: AnySource, Tag: 1, NoQuery: true})
		require.NoError(t, err)
		require.Empty(t, calls())
	}
}
