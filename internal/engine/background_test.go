package engine

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// compute computes, without calls of the engine, until over is true or testTimeout has passed.
func compute(over *atomic.Bool) {
	start := time.Now()
	for !over.Load() && time.Since(start) < testTimeout {
		work := 1.0
		for range 1000 {
			work = work*1.01 + 1
		}
		runtime.KeepAlive(work)
	}
}

// TestTransfersGoOnWhileTheProgramComputes: rank 0 starts a receive, a send and a task, and
// computes after each, without calls of the engine. Rank 1 needs rank 0's side of these transfers.
// Its calls return while rank 0 computes, because the background goroutine of rank 0 polls.
func TestTransfersGoOnWhileTheProgramComputes(t *testing.T) {
	const size = 4 << 20
	// Two processors for each of the two ranks, as gorun gives them.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for name, provider := range map[string]transport.Provider{
		"inproc":           inproc.NewFabric(),
		"inproc, by polls": inproc.NewFabric(inproc.WithRMADelay(3), inproc.WithMaxRMASize(1<<16)),
		"inproc, no reads": inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(1<<15)),
		"tcp":              tcp.New(),
		"shm":              shm.New(),
	} {
		t.Run(name, func(t *testing.T) {
			cs := world(openJob(t, 2, provider, nil))
			var received, sent, exchanged atomic.Bool
			ranks(t, cs, func(c *Context, rank int) error {
				if rank == 1 {
					if err := c.Send(background, pattern(size, 1), Env{Peer: 0, Tag: 1}); err != nil {
						return err
					}
					received.Store(true)
					buf := make([]byte, size)
					if _, err := c.Recv(background, buf, Env{Peer: 0, Tag: 2}); err != nil {
						return err
					}
					sent.Store(true)
					if err := check(buf, pattern(size, 2)); err != nil {
						return err
					}
					err := exchange(c, rank)
					exchanged.Store(true)
					return err
				}
				buf := make([]byte, size)
				r := c.Irecv(buf, Env{Peer: 1, Tag: 1})
				compute(&received)
				if _, err := r.Wait(background); err != nil {
					return err
				}
				if err := check(buf, pattern(size, 1)); err != nil {
					return err
				}
				r = c.Isend(pattern(size, 2), Env{Peer: 1, Tag: 2})
				compute(&sent)
				if _, err := r.Wait(background); err != nil {
					return err
				}
				r = c.e.Go(func() error { return exchange(c, rank) })
				compute(&exchanged)
				_, err := r.Wait(background)
				return err
			})
			for _, c := range cs {
				require.Eventually(t, func() bool { // the engine may still have to send the last answers
					c.e.mu.Lock()
					defer c.e.mu.Unlock()
					return c.e.active == 0 && c.e.large == 0 && c.e.moving == 0 && c.e.tasks == 0
				}, testTimeout, time.Millisecond)
			}
		})
	}
}

// TestBurstLeavesWhileTheProgramComputes: rank 0 sends many small messages, and then computes. The
// tcp transport keeps some of the messages, to send several at once. They must reach rank 1 before
// rank 0 calls the engine again: with and without asynchronous progress, and also while another
// goroutine of rank 0 sleeps on the transport.
func TestBurstLeavesWhileTheProgramComputes(t *testing.T) {
	const count = 200
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	for name, test := range map[string]struct {
		async   string
		sleeper bool
	}{
		"async":             {async: "true"},
		"no async":          {async: "false"},
		"async, sleeper":    {async: "true", sleeper: true},
		"no async, sleeper": {async: "false", sleeper: true},
	} {
		t.Run(name, func(t *testing.T) {
			cs := world(openJob(t, 2, tcp.New(), map[string]string{"engine.async_progress": test.async}))
			var received, slept atomic.Bool
			ranks(t, cs, func(c *Context, rank int) error {
				if rank == 1 {
					if err := c.Send(background, nil, Env{Peer: 0, Tag: 1}); err != nil {
						return err
					}
					for i := range count {
						buf := make([]byte, 8)
						if _, err := c.Recv(background, buf, Env{Peer: 0, Tag: 2}); err != nil {
							return err
						}
						if err := check(buf, pattern(8, i)); err != nil {
							return err
						}
					}
					received.Store(true)
					return c.Send(background, nil, Env{Peer: 0, Tag: 3})
				}
				if _, err := c.Recv(background, nil, Env{Peer: 1, Tag: 1}); err != nil {
					return err
				}
				last := make(chan error, 1)
				receiveLast := func() {
					_, err := c.Recv(background, nil, Env{Peer: 1, Tag: 3})
					last <- err
				}
				if test.sleeper {
					go receiveLast() // ends when the last message of rank 1 arrives
					for start := time.Now(); !slept.Load() && time.Since(start) < testTimeout; {
						c.e.mu.Lock()
						slept.Store(c.e.asleep)
						c.e.mu.Unlock()
						time.Sleep(time.Millisecond)
					}
				}
				for i := range count {
					if i%2 == 0 {
						if err := c.Send(background, pattern(8, i), Env{Peer: 1, Tag: 2}); err != nil {
							return err
						}
						continue
					}
					if r := c.Isend(pattern(8, i), Env{Peer: 1, Tag: 2}); !r.Done() {
						return errors.New("the send of a small message is not complete at once")
					}
				}
				compute(&received)
				if !received.Load() {
					return errors.New("messages did not leave before the end of the computation")
				}
				if !test.sleeper {
					receiveLast()
				}
				return <-last
			})
			require.Equal(t, test.sleeper, slept.Load())
			require.Zero(t, cs[0].e.unsent)
		})
	}
}

// exchange does what a collective does: ten steps, each of which needs messages of both ranks.
func exchange(c *Context, rank int) error {
	for i := range 10 {
		buf := make([]byte, 100_000)
		r := c.Irecv(buf, Env{Peer: 1 - rank, Tag: 3, Attended: true})
		if err := c.Send(background, pattern(len(buf), i), Env{Peer: 1 - rank, Tag: 3}); err != nil {
			return err
		}
		if _, err := r.Wait(background); err != nil {
			return err
		}
		if err := check(buf, pattern(len(buf), i)); err != nil {
			return err
		}
		runtime.Gosched()
	}
	return nil
}
