package mpi_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/transport/shm"
)

// TestReusedArena makes communicators that use the same arena one after the other, and runs some
// collectives on each. One rank is late in each collective. If another rank took a word that an
// earlier communicator has left in the arena for one of the new communicator, it would leave the
// collective before the late rank arrives, or get old data.
func TestReusedArena(t *testing.T) {
	for _, of := range [][]int{{0, 0}, {0, 0, 0}, {0, 0, 1, 1, 1}, nil} {
		over, n := newHosts(of...).providers(), len(of)
		if of == nil {
			over, n = commtest.WithProviders(shm.New()), 4
		}
		var arrived atomic.Int64
		seed := rand.Uint64()
		ranks(t, n, func(world *comm.Comm) error {
			rng := rand.New(rand.NewPCG(seed, 0)) // the same on all ranks
			var calls int64
			for round := range 60 {
				d, err := world.Dup()
				if err != nil {
					return err
				}
				// In some rounds there are more calls than an arena has arrival lines (see
				// coll.Host), which calls use in turn.
				for call := range rng.IntN(20) {
					late, length := rng.IntN(n), []int{1, 6, 100, 5000}[rng.IntN(4)]
					if pause := time.Duration(rng.IntN(2)) * 50 * time.Microsecond; d.Rank() == late {
						time.Sleep(pause)
						arrived.Add(1)
					}
					buf, sum := count(length, d.Rank()*1000+round*7+call), make([]int, length)
					switch rng.IntN(3) {
					case 0:
						err = d.Barrier()
					case 1:
						err = first(comm.Bcast(d, buf, late), same("bcast", buf, count(length, late*1000+round*7+call)), d.Barrier())
					case 2:
						want := make([]int, length)
						for i := range want {
							want[i] = n*(i+round*7+call) + 1000*n*(n-1)/2
						}
						err = first(comm.Allreduce(d, buf, sum, comm.Sum), same("sum", sum, want))
					}
					if err != nil {
						return fmt.Errorf("seed %d, round %d, call %d: %w", seed, round, call, err)
					}
					if calls++; arrived.Load() < calls {
						return fmt.Errorf("seed %d, round %d, call %d: a rank left before the last one arrived", seed, round, call)
					}
				}
				if err := d.Free(); err != nil {
					return err
				}
				if mpi.Idle((*mpi.Comm)(world)) > 1 {
					return fmt.Errorf("round %d: %d arenas are idle", round, mpi.Idle((*mpi.Comm)(world)))
				}
			}
			return nil
		}, over)
	}
}

// TestArenaThatARankHasNot checks that all ranks release an arena if one rank does not have it any
// more, and then make a new one.
func TestArenaThatARankHasNot(t *testing.T) {
	h := newHosts(0, 0, 0)
	ranks(t, 3, func(world *comm.Comm) error {
		for round := range 9 {
			d, err := world.Dup()
			if err != nil {
				return err
			}
			sum := []int{0}
			if err := first(comm.Allreduce(d, []int{d.Rank() + round}, sum, comm.Sum), same("sum", sum, []int{3 + 3*round}), d.Free()); err != nil {
				return err
			}
			if world.Rank() == round%4 {
				mpi.LoseArenas((*mpi.Comm)(world))
			}
		}
		return world.Barrier()
	}, h.providers())
	require.LessOrEqual(t, h.live.Load(), int64(2*3))
}

// TestDupInGoroutines calls Dup and Free in several goroutines at the same time, on communicators
// of the same processes.
func TestDupInGoroutines(t *testing.T) {
	const goroutines, rounds = 4, 30
	for _, of := range [][]int{{0, 0, 0}, nil} {
		over, n := newHosts(of...).providers(), 3
		if of == nil {
			over = commtest.WithProviders(shm.New())
		}
		ranks(t, n, func(world *comm.Comm) error {
			var parents [goroutines]*comm.Comm
			for i := range parents {
				var err error
				if parents[i], err = world.Dup(); err != nil {
					return err
				}
			}
			var errs [goroutines]error
			var all sync.WaitGroup
			for i, c := range parents {
				all.Go(func() {
					for round := range rounds {
						d, err := c.Dup()
						if err != nil {
							errs[i] = err
							return
						}
						sum := make([]int, 300)
						want := make([]int, len(sum))
						for k := range want {
							want[k] = n*(k+i+round) + 100*n*(n-1)/2
						}
						if errs[i] = first(comm.Allreduce(d, count(len(sum), i+round+100*d.Rank()), sum, comm.Sum),
							same("sum", sum, want), d.Free()); errs[i] != nil {
							return
						}
					}
				})
			}
			all.Wait()
			for i, c := range parents {
				if err := first(errs[i], c.Free()); err != nil {
					return fmt.Errorf("goroutine %d: %w", i, err)
				}
			}
			if n := mpi.Idle((*mpi.Comm)(world)); n > mpi.PoolSize {
				return fmt.Errorf("%d arenas are idle", n)
			}
			return nil
		}, over)
	}
}

// TestFreeBesideCollectives frees communicators while nonblocking collectives of this rank still
// use the arena. It checks that the collectives have correct results, although the next
// communicator uses the same arena.
func TestFreeBesideCollectives(t *testing.T) {
	for _, of := range [][]int{{0, 0, 0}, nil} {
		over := newHosts(of...).providers()
		if of == nil {
			over = commtest.WithProviders(shm.New())
		}
		ranks(t, 3, func(world *comm.Comm) error {
			for round := range 50 {
				d, err := world.Dup()
				if err != nil {
					return err
				}
				var open []comm.Request
				var sums [3][2000]int
				for i := range sums {
					open = append(open, comm.Iallreduce(d, count(len(sums[i]), round+i), sums[i][:], comm.Sum))
				}
				if err := first(d.Free(), comm.WaitAll(open)); err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
				for i := range sums {
					want := count(len(sums[i]), round+i)
					for k := range want {
						want[k] *= 3
					}
					if err := same("sum", sums[i][:], want); err != nil {
						return fmt.Errorf("round %d: %w", round, err)
					}
				}
			}
			return nil
		}, over)
	}
}

// TestRevokedArenaIsNotReused checks that the arena of a revoked communicator does not get into the
// pool: another rank may still use it.
func TestRevokedArenaIsNotReused(t *testing.T) {
	ranks(t, 3, func(world *comm.Comm) error {
		for round := range 5 {
			d, err := world.Dup()
			if err != nil {
				return err
			}
			if err := d.Barrier(); err != nil {
				return err
			}
			if d.Rank() == round%3 {
				if err := d.Revoke(); err != nil {
					return err
				}
			} else if err := d.Barrier(); !isErr(err, comm.ErrRevoked) {
				return fmt.Errorf("Barrier: %w", err)
			}
			s, err := d.Shrink()
			if err != nil {
				return err
			}
			sum := []int{0}
			if err := first(d.Free(), comm.Allreduce(s, []int{round}, sum, comm.Sum), same("sum", sum, []int{3 * round}), s.Free()); err != nil {
				return err
			}
			if n := mpi.Idle((*mpi.Comm)(world)); n > 1 {
				return fmt.Errorf("%d arenas are idle", n)
			}
		}
		return nil
	}, newHosts(0, 0, 0).providers())
}

// BenchmarkDupFree measures Dup, one Barrier and Free. In one case, many messages have arrived
// before they were received, before the measurement begins.
func BenchmarkDupFree(b *testing.B) {
	for _, lying := range []int{0, 50_000} {
		b.Run(fmt.Sprintf("unexpected=%d", lying), func(b *testing.B) {
			commtest.Run(b, 2, func(c *comm.Comm) error {
				open := make([]comm.Request, lying)
				for i := range open { // messages of the rank to itself, which the next loop receives
					open[i] = comm.Isend(c, []byte{1}, c.Rank(), 1)
				}
				for range open {
					if _, err := comm.Recv(c, []byte{0}, c.Rank(), 1); err != nil {
						return err
					}
				}
				if err := comm.WaitAll(open); err != nil {
					return err
				}
				if c.Rank() == 0 {
					b.ResetTimer()
				}
				for range b.N {
					d, err := c.Dup()
					if err != nil {
						return err
					}
					if err := first(d.Barrier(), d.Free()); err != nil {
						return err
					}
				}
				return nil
			}, commtest.WithProviders(shm.New()))
		})
	}
}
