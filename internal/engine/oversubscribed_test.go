package engine

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// TestMoreRanksThanCores: up to eight times as many ranks as cores complete barriers, and pass
// messages around in a ring. Each step needs a rank that may not have a core. If ranks that wait
// kept their cores, each step would take a time slice of the kernel.
func TestMoreRanksThanCores(t *testing.T) {
	for name, f := range map[string]struct {
		provider transport.Provider
		set      map[string]string
	}{
		"inproc":            {inproc.NewFabric(), nil},
		"inproc, no yields": {inproc.NewFabric(), map[string]string{"engine.yield": "0s"}},
		"inproc, no spins":  {inproc.NewFabric(), map[string]string{"engine.spin": "never"}},
		"tcp":               {tcp.New(), nil},
		"shm":               {shm.New(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := min(8*runtime.NumCPU(), 32)
			cs := world(openJob(t, n, f.provider, f.set))
			ranks(t, cs, func(c *Context, rank int) error {
				for range 200 {
					if err := barrier(c, rank, n); err != nil {
						return err
					}
				}
				buf := pattern(64, rank)
				for range 3 * n {
					out := append([]byte{}, buf...)
					r := c.Irecv(buf, Env{Peer: (rank + n - 1) % n, Tag: 2, Attended: true})
					err := c.Send(background, out, Env{Peer: (rank + 1) % n, Tag: 2})
					_, rerr := r.Wait(background)
					if err = errors.Join(err, rerr); err != nil {
						return err
					}
				}
				return check(buf, pattern(64, rank)) // each rank's message has gone around three times
			})
		})
	}
}

// barrier is a dissemination barrier of n ranks. In its k-th round each rank sends a message to the
// rank 2^k after it, and receives one from the rank 2^k before it.
func barrier(c *Context, rank, n int) error {
	for step := 1; step < n; step *= 2 {
		if err := c.Send(background, nil, Env{Peer: (rank + step) % n, Tag: 1}); err != nil {
			return err
		}
		if _, err := c.Recv(background, nil, Env{Peer: (rank + n - step) % n, Tag: 1}); err != nil {
			return err
		}
	}
	return nil
}

// TestPolicyFollowsCores: newWaitPolicy derives from the numbers of ranks and cores, and from
// engine.spin, how long a leader and the background goroutine poll.
func TestPolicyFollowsCores(t *testing.T) {
	set := func(k, v string) *params.Set {
		p := &params.Set{}
		require.NoError(t, p.Set(k, v, params.FromFlag))
		return p
	}
	auto := set("engine.spin", "auto")
	require.Positive(t, newWaitPolicy(auto, 2, 2).poll)
	require.Zero(t, newWaitPolicy(auto, 2, 2).backgroundPoll)
	require.Zero(t, newWaitPolicy(auto, 3, 2).poll)
	require.Zero(t, newWaitPolicy(auto, runtime.NumCPU()+1, 0).poll)
	if runtime.NumCPU() > 1 {
		require.Positive(t, newWaitPolicy(auto, 2, 4).backgroundPoll)
	}
	always, never := newWaitPolicy(set("engine.spin", "always"), 9, 2), newWaitPolicy(set("engine.spin", "never"), 1, 2)
	require.Positive(t, always.poll)
	require.Positive(t, always.backgroundPoll)
	require.Zero(t, never.poll)
	require.Zero(t, newWaitPolicy(set("engine.poll", "0s"), 1, 2).poll)
}
