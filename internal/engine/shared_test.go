package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// share runs on each of size ranks. It allocates n bytes of shared memory on its rank, and maps the
// memory of the other ranks. rows[r] holds the words in the memory of rank r; other ranks store to
// them.
func share(c *Context, rank, n, size int) (rows [][]word, err error) {
	mem, mr, err := c.AllocShared(n)
	if err != nil {
		return nil, err
	}
	rows = make([][]word, size)
	rows[rank] = words(mem)
	var key [8]byte
	for i := range key {
		key[i] = byte(mr.Key() >> (8 * i))
	}
	for peer := range size {
		if peer != rank {
			if err := c.Send(background, key[:], Env{Peer: peer}); err != nil {
				return nil, err
			}
		}
	}
	for peer := range size {
		if peer == rank {
			continue
		}
		if _, err := c.Recv(background, key[:], Env{Peer: peer}); err != nil {
			return nil, err
		}
		var k uint64
		for i := range key {
			k |= uint64(key[i]) << (8 * i)
		}
		theirs, err := c.MapShared(peer, k)
		if err != nil {
			return nil, err
		}
		rows[peer] = words(theirs)
	}
	return rows, nil
}

// TestWakeEndsAwait: three ranks pass a number around by stores to words in shared memory. Several
// goroutines of each rank do this, each with words of its own, while messages go around too. At
// times they pause for so long that all ranks sleep. Every store ends the Await of the next rank.
func TestWakeEndsAwait(t *testing.T) {
	fabrics := map[string]struct {
		set       map[string]string
		providers []transport.Provider
	}{
		"one rail":    {nil, []transport.Provider{inproc.NewFabric()}},
		"two rails":   {nil, []transport.Provider{inproc.NewFabric(), tcp.New()}},
		"never polls": {map[string]string{"engine.poll": "0s"}, []transport.Provider{inproc.NewFabric()}},
		"no async":    {map[string]string{"engine.async_progress": "false"}, []transport.Provider{inproc.NewFabric()}},
	}
	for name, f := range fabrics {
		t.Run(name, func(t *testing.T) {
			const n, lanes, rounds = 3, 3, 300
			// With two providers, rank n uses the second one, and shares no memory.
			far := func(i, j int) uint8 { return uint8(max(i, j) / n) }
			cs := world(openRouted(t, n+len(f.providers)-1, f.set, far, f.providers...))[:n]
			ranks(t, cs, func(c *Context, rank int) error {
				rows, err := share(c, rank, 4096, n)
				if err != nil {
					return err
				}
				next, last := (rank+1)%n, (rank+n-1)%n
				errs := make(chan error, lanes+1)
				for lane := range lanes {
					go func() { // ends after its rounds; the receives from errs wait for it
						for i := uint64(1); i <= rounds; i++ {
							if rank == 0 && i > 1 || rank != 0 {
								least := i
								if rank == 0 {
									least--
								}
								if err := c.Await(background, last, &rows[rank][lane].Uint64, least); err != nil {
									errs <- err
									return
								}
							}
							if i%100 == 0 {
								time.Sleep(5 * time.Millisecond)
							}
							rows[next][lane].Store(i)
							if i%2 == 0 {
								c.WakeAll([]int{0, 1, 2})
							} else {
								c.Wake(next)
							}
						}
						errs <- nil
					}()
				}
				go func() { // ends after its rounds; the receives from errs wait for it
					var err error
					for i := range rounds {
						b := []byte{0}
						r := c.Irecv(b, Env{Peer: last, Tag: 1})
						err = errors.Join(err, c.Send(background, []byte{byte(i)}, Env{Peer: next, Tag: 1}))
						_, rerr := r.Wait(background)
						if err = errors.Join(err, rerr); err == nil && b[0] != byte(i) {
							err = fmt.Errorf("message %d is %d", i, b[0])
						}
					}
					errs <- err
				}()
				for range lanes + 1 {
					err = errors.Join(err, <-errs)
				}
				return err
			})
			for _, c := range cs {
				require.Empty(t, c.e.wordWaiters)
			}
		})
	}
}

// TestWakeAllLooksOnce: while no rank sleeps, WakeAll calls Asleep once, and wakes no rank. If a
// rank sleeps, WakeAll calls Notify for each of the other ranks.
func TestWakeAllLooksOnce(t *testing.T) {
	c := world(openJob(t, 5, inproc.NewFabric(), nil))[1]
	s := &sleepRecorder{SharedMemoryDomain: c.e.rails[0].shared}
	c.e.rails[0].shared = s
	all := []int{0, 1, 2, 3, 4}
	c.WakeAll(all)
	require.Equal(t, 1, s.looks)
	require.Empty(t, s.woken)
	s.some = true
	c.WakeAll(all)
	require.Equal(t, []transport.Addr{0, 2, 3, 4}, s.woken)
	s.some = false
	require.Zero(t, testing.AllocsPerRun(100, func() { c.WakeAll(all) }))
}

// sleepRecorder returns its field some from Asleep, counts the calls of Asleep, and records the
// ranks of the calls of Notify.
type sleepRecorder struct {
	transport.SharedMemoryDomain
	some  bool
	looks int
	woken []transport.Addr
}

func (s *sleepRecorder) Asleep() bool {
	s.looks++
	return s.some
}

func (s *sleepRecorder) Notify(a transport.Addr) { s.woken = append(s.woken, a) }

// TestMessagesMoveWhileAWordIsAwaited: one goroutine of each rank waits for a word, and another one
// exchanges large messages with the other rank. The messages arrive. Then the second goroutine
// stores the word, and Await returns.
func TestMessagesMoveWhileAWordIsAwaited(t *testing.T) {
	cs := world(openJob(t, 2, inproc.NewFabric(), nil))
	ranks(t, cs, func(c *Context, rank int) error {
		var mine atomic.Uint64
		var wg sync.WaitGroup
		var err error
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for i := range 20 {
				if rank == 0 {
					err = errors.Join(err, c.Send(background, pattern(len(buf), i), Env{Peer: 1}))
				} else {
					_, rerr := c.Recv(background, buf, Env{Peer: 0})
					err = errors.Join(err, rerr, check(buf, pattern(len(buf), i)))
				}
			}
			mine.Store(1)
			c.Wake(rank)
		})
		werr := c.Await(background, 1-rank, &mine, 1)
		wg.Wait()
		return errors.Join(err, werr)
	})
}

func TestAwaitEndsWithItsContextAndTakesWhatIsThere(t *testing.T) {
	cs := world(openJob(t, 2, inproc.NewFabric(), nil))
	runWithTimeout(t, func() {
		var word atomic.Uint64
		ctx, cancel := context.WithTimeout(background, 30*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, cs[0].Await(ctx, 1, &word, 1), context.DeadlineExceeded)
		word.Store(7)
		require.NoError(t, cs[0].Await(ctx, 1, &word, 7), "a word that has reached its value takes precedence over the context")
		word.Store(1)
		require.NoError(t, cs[0].Await(ctx, 1, &word, ^uint64(0)), "words wrap around")
		require.Empty(t, cs[0].e.wordWaiters)
	})
}

func TestAwaitDoesNotAllocate(t *testing.T) {
	engines := openJob(t, 2, inproc.NewFabric(), map[string]string{"engine.async_progress": "false"})
	cs := world(engines)
	const rounds = 200
	var there, back word
	ranks(t, cs, func(c *Context, rank int) error {
		if rank == 1 {
			for i := uint64(1); i <= rounds+1; i++ {
				if err := c.Await(background, 0, &there.Uint64, i); err != nil {
					return err
				}
				back.Store(i)
				c.Wake(0)
			}
			return nil
		}
		var i uint64
		var err error
		require.Zero(t, testing.AllocsPerRun(rounds, func() {
			i++
			there.Store(i)
			c.Wake(1)
			err = errors.Join(err, c.Await(background, 1, &back.Uint64, i))
		}))
		return err
	})
}
