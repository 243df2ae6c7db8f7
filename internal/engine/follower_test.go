package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
	"github.com/weft-hpc/weft/transport/tcp"
)

// onProcessors runs f with one processor of the Go scheduler (GOMAXPROCS), with two and with four.
func onProcessors(t *testing.T, f func(t *testing.T)) {
	for _, n := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
			f(t)
		})
	}
}

// untilWaiting blocks until n goroutines of the program wait in the engine, parked or asleep on the
// transports, and none of them polls.
func untilWaiting(t *testing.T, e *Engine, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		waits := e.followers
		if e.sleeper != nil {
			waits++
		}
		return waits == n && e.leader == nil
	}, testTimeout, time.Millisecond)
}

// TestFollowerOfALeaderThatComputes: two goroutines of rank 0 wait for a message each, and one of
// them polls or sleeps for both. It gets its message first, returns, and computes without calls of
// the engine. The other goroutine still gets its message.
func TestFollowerOfALeaderThatComputes(t *testing.T) {
	onProcessors(t, func(t *testing.T) {
		for name, provider := range map[string]transport.Provider{"inproc": inproc.NewFabric(), "shm": shm.New(), "tcp": tcp.New()} {
			t.Run(name, func(t *testing.T) {
				cs := world(openJob(t, 2, provider, nil))
				var over atomic.Bool
				var wg sync.WaitGroup
				var followerErr error
				began := make(chan struct{})
				wg.Go(func() {
					close(began)
					if _, err := cs[0].Recv(background, nil, Env{Peer: 1, Tag: 1}); err == nil {
						compute(&over)
					}
				})
				<-began
				wg.Go(func() {
					defer over.Store(true)
					_, followerErr = cs[0].Recv(background, nil, Env{Peer: 1, Tag: 2})
				})
				untilWaiting(t, cs[0].e, 2)
				start := time.Now()
				require.NoError(t, cs[1].Send(background, nil, Env{Peer: 0, Tag: 1}))
				require.NoError(t, cs[1].Send(background, nil, Env{Peer: 0, Tag: 2}))
				wg.Wait()
				require.NoError(t, followerErr)
				require.Less(t, time.Since(start), testTimeout)
			})
		}
	})
}

// TestWaitersBesideAPingPong: a hundred goroutines of rank 0 wait for two messages each. They get
// the first one while the two ranks exchange other messages (a ping-pong), and the second one after
// the ping-pong has ended.
func TestWaitersBesideAPingPong(t *testing.T) {
	const waiters, trips = 100, 500
	onProcessors(t, func(t *testing.T) {
		cs := world(openJob(t, 2, inproc.NewFabric(), nil))
		ranks(t, cs, func(c *Context, rank int) error {
			var wg sync.WaitGroup
			errs := make([]error, waiters)
			if rank == 0 {
				for i := range waiters {
					wg.Go(func() {
						for range 2 {
							_, err := c.Recv(background, nil, Env{Peer: 1, Tag: 10 + i})
							errs[i] = errors.Join(errs[i], err)
						}
					})
				}
			}
			for i := range trips {
				if err := pingPong(c, rank, 1); err != nil {
					return err
				}
				if rank == 1 && i < waiters {
					if err := c.Send(background, nil, Env{Peer: 0, Tag: 10 + i}); err != nil {
						return err
					}
				}
			}
			if rank == 1 {
				// This is longer than ticksToPark ticks, after which a background goroutine without work parks.
				time.Sleep(30 * time.Millisecond)
				for i := range waiters {
					if err := c.Send(background, nil, Env{Peer: 0, Tag: 10 + i}); err != nil {
						return err
					}
				}
			}
			wg.Wait()
			return errors.Join(errs...)
		})
	})
}

func pingPong(c *Context, rank, tag int) error {
	env := Env{Peer: 1 - rank, Tag: tag}
	if rank == 0 {
		if err := c.Send(background, nil, env); err != nil {
			return err
		}
		_, err := c.Recv(background, nil, env)
		return err
	}
	if _, err := c.Recv(background, nil, env); err != nil {
		return err
	}
	return c.Send(background, nil, env)
}

// TestPairsOfGoroutines: 16 pairs of goroutines, one of each rank, exchange messages while the
// garbage collector runs all the time. Some goroutines are locked to their threads. Every message
// arrives.
func TestPairsOfGoroutines(t *testing.T) {
	const pairs, trips = 16, 100
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	onProcessors(t, func(t *testing.T) {
		for name, provider := range map[string]transport.Provider{"inproc": inproc.NewFabric(), "shm": shm.New(), "tcp": tcp.New()} {
			t.Run(name, func(t *testing.T) {
				cs := world(openJob(t, 2, provider, nil))
				ranks(t, cs, func(c *Context, rank int) error {
					var wg sync.WaitGroup
					errs := make([]error, pairs)
					for i := range pairs {
						wg.Go(func() {
							if i%5 == 0 {
								runtime.LockOSThread()
								defer runtime.UnlockOSThread()
							}
							for range trips {
								if errs[i] = pingPong(c, rank, i); errs[i] != nil {
									return
								}
								_ = make([]byte, 1<<10)
							}
						})
					}
					wg.Wait()
					return errors.Join(errs...)
				})
			})
		}
	})
}

// TestContextsEndAnywhere: the contexts of receives end at random times, while the goroutines of
// these receives poll, sleep, are parked or are on standby. A ping-pong of the same ranks
// continues.
func TestContextsEndAnywhere(t *testing.T) {
	const trips = 2000
	onProcessors(t, func(t *testing.T) {
		cs := world(openJob(t, 2, inproc.NewFabric(), nil))
		var over atomic.Bool
		var wg sync.WaitGroup
		for i := range 12 {
			c, rng := cs[i%2], rand.New(rand.NewPCG(uint64(i), 1))
			wg.Go(func() {
				if i%4 == 0 {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
				}
				for !over.Load() {
					ctx, cancel := context.WithTimeout(background, time.Duration(rng.IntN(400))*time.Microsecond)
					_, err := c.Recv(ctx, nil, Env{Peer: 1 - i%2, Tag: 100 + i})
					cancel()
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Recv returned %v", err)
						return
					}
				}
			})
		}
		ranks(t, cs, func(c *Context, rank int) error {
			for i := range trips {
				if i%200 == 0 {
					// Meanwhile the other goroutines sleep, or the background goroutine polls for them.
					time.Sleep(5 * time.Millisecond)
				}
				if err := pingPong(c, rank, 1); err != nil {
					return err
				}
			}
			return nil
		})
		over.Store(true)
		wg.Wait()
	})
}

// TestCloseWhileGoroutinesWait: goroutines poll, sleep, are parked or are on standby in the engine
// when Close is called. Close ends their calls, and returns.
func TestCloseWhileGoroutinesWait(t *testing.T) {
	onProcessors(t, func(t *testing.T) {
		for round := range 30 {
			cs := world(openJob(t, 2, inproc.NewFabric(), nil))
			var wg sync.WaitGroup
			for i := range 6 {
				c, rank := cs[i%2], i%2
				wg.Go(func() {
					for {
						if err := pingPong(c, rank, i/2); err != nil {
							return
						}
					}
				})
				wg.Go(func() { _, _ = c.Recv(background, nil, Env{Peer: 1 - rank, Tag: 100 + i}) })
				wg.Go(func() {
					ctx, cancel := context.WithCancel(background)
					defer cancel()
					_, _ = c.Probe(ctx, Env{Peer: 1 - rank, Tag: 200 + i})
				})
			}
			time.Sleep(time.Duration(round) * 100 * time.Microsecond)
			closed := make(chan struct{})
			go func() { // ends when Close returns
				defer close(closed)
				ctx, cancel := context.WithTimeout(background, time.Second)
				defer cancel()
				var both sync.WaitGroup
				for _, c := range cs {
					both.Go(func() { _ = c.e.Close(ctx) })
				}
				both.Wait()
				wg.Wait()
			}()
			select {
			case <-closed:
			case <-time.After(testTimeout):
				buf := make([]byte, 1<<20)
				t.Fatalf("Close hangs:\n%s", buf[:runtime.Stack(buf, true)])
			}
		}
	})
}
