package mpi_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
)

// TestFence has each rank put its own stripe into every part, and then get all parts. The value of
// an element encodes its writer and the round. The part of rank r has r·n elements for each rank,
// so the part of rank 0 is empty.
func TestFence(t *testing.T) {
	overFabrics(t, fabricCounts, func(c *comm.Comm) error {
		for _, n := range []int{0, 1, 77, 3000} {
			err := withWindow(c, c.Rank()*n*c.Size(), func(w *comm.Win[int64]) error {
				for round := range 3 {
					if err := fenceRound(c, w, n, round); err != nil {
						return fmt.Errorf("%d elements, round %d: %w", n, round, err)
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// stripe returns the elements that origin puts into the part of target.
func stripe(origin, target, n, round int) []int64 {
	b := make([]int64, n*target)
	for i := range b {
		b[i] = int64(((round*64+origin)*64+target)*1_000_000 + i)
	}
	return b
}

func fenceRound(c *comm.Comm, w *comm.Win[int64], n, round int) error {
	rank, size := c.Rank(), c.Size()
	if err := w.Fence(); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(uint64(rank), uint64(round)))
	for _, target := range rng.Perm(size) {
		s := stripe(rank, target, n, round)
		for at := 0; at < len(s); { // put the stripe by several calls of random lengths
			l := min(1+rng.IntN(n), len(s)-at)
			if err := w.Put(s[at:at+l], target, len(s)*rank+at); err != nil {
				return err
			}
			at += l
		}
	}
	if err := w.Fence(); err != nil {
		return err
	}
	for origin := range size {
		s := stripe(origin, rank, n, round)
		if err := same("put", w.Local()[len(s)*origin:][:len(s)], s); err != nil {
			return fmt.Errorf("from rank %d: %w", origin, err)
		}
	}
	got := make([][]int64, size)
	for target := range size {
		got[target] = make([]int64, w.Len(target))
		if err := w.Get(got[target], target, 0); err != nil {
			return err
		}
	}
	if err := w.Fence(); err != nil {
		return err
	}
	for target := range size {
		var want []int64
		for origin := range size {
			want = append(want, stripe(origin, target, n, round)...)
		}
		if err := same("got", got[target], want); err != nil {
			return fmt.Errorf("from rank %d: %w", target, err)
		}
	}
	return nil
}

// TestComputingTarget: rank 0 computes and makes no calls, while the other ranks run every
// operation on its part.
func TestComputingTarget(t *testing.T) {
	for _, fab := range fabrics {
		if fab.name == "no async" {
			continue // this fabric has no background progress
		}
		t.Run(fab.name, func(t *testing.T) {
			const n = 3
			var through atomic.Int64
			var x uint64 = 1
			ranks(t, n, func(c *comm.Comm) error {
				return withWindow(c, 40_000, func(w *comm.Win[uint64]) error {
					if c.Rank() == 0 {
						for through.Load() < n-1 {
							for range 1000 {
								x = x*6364136223846793005 + 1
							}
						}
						return first(w.Lock(0, comm.LockShared), same("counter", w.Local()[:1], []uint64{2 * (n - 1) * 10}), w.Unlock(0))
					}
					err := visit(w, c.Rank())
					through.Add(1)
					return err
				})
			}, append([]commtest.Option{commtest.WithProviders(fab.open())}, fab.opts...)...)
			if x == 0 {
				t.Log("never")
			}
		})
	}
}

// visit runs every operation on rank 0's part of the window, for the calling rank.
func visit(w *comm.Win[uint64], rank int) error {
	const l = 15_000
	own, got := make([]uint64, l), make([]uint64, l)
	for i := range own {
		own[i] = uint64(rank*l + i)
	}
	one := []uint64{1}
	for range 10 {
		if err := first(w.Lock(0, comm.LockExclusive),
			w.Put(own, 0, 1+(rank-1)*l), w.Flush(0), w.Get(got, 0, 1+(rank-1)*l),
			w.Accumulate(one, 0, 0, comm.Sum), w.Unlock(0), same("got", got, own)); err != nil {
			return err
		}
		clear(got)
		if err := first(w.Lock(0, comm.LockShared), w.Get(got, 0, 1+(rank-1)*l)); err != nil {
			return err
		}
		if _, err := w.FetchOp(1, 0, 0, comm.Sum); err != nil {
			return err
		}
		if err := first(w.Unlock(0), same("got again", got, own)); err != nil {
			return err
		}
	}
	return nil
}

// TestExclusiveLocks: while a rank holds the exclusive lock of a part, no other rank reads or
// changes the part.
func TestExclusiveLocks(t *testing.T) {
	const rounds = 30
	overFabrics(t, fabricCounts, func(c *comm.Comm) error {
		return withWindow(c, 8, func(w *comm.Win[int]) error {
			buf := make([]int, 8)
			for i := range rounds {
				target := (c.Rank() + i) % c.Size()
				if err := first(w.Lock(target, comm.LockExclusive), w.Get(buf, target, 0), w.FlushLocal(target)); err != nil {
					return err
				}
				if slices.Min(buf) != slices.Max(buf) {
					return fmt.Errorf("torn: %v", buf)
				}
				for j := range buf {
					buf[j]++
				}
				if err := first(w.Put(buf[:3], target, 0), w.Put(buf[3:], target, 3), w.Unlock(target)); err != nil {
					return err
				}
			}
			if err := c.Barrier(); err != nil {
				return err
			}
			sum := make([]int, 1)
			err := first(w.Lock(c.Rank(), comm.LockShared), comm.Allreduce(c, w.Local()[:1], sum, comm.Sum), w.Unlock(c.Rank()))
			return first(err, same("sum", sum, []int{rounds * c.Size()}))
		})
	})
}

// TestCounter: goroutines of all ranks draw numbers with FetchOp. Each number is drawn once.
func TestCounter(t *testing.T) {
	const each, goroutines = 60, 3
	overFabrics(t, fabricCounts, func(c *comm.Comm) error {
		return withWindow(c, 1, func(w *comm.Win[int32]) error {
			if err := w.LockAll(); err != nil {
				return err
			}
			var mu sync.Mutex
			var wg sync.WaitGroup
			var drawn []int32
			var failed error
			for range goroutines {
				wg.Go(func() {
					for range each {
						x, err := w.FetchOp(1, c.Size()-1, 0, comm.Sum)
						mu.Lock()
						drawn = append(drawn, x)
						failed = first(failed, err)
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			all := make([]int32, len(drawn)*c.Size())
			if err := first(failed, w.UnlockAll(), comm.Allgather(c, drawn, all)); err != nil {
				return err
			}
			slices.Sort(all)
			for i, x := range all {
				if int(x) != i {
					return fmt.Errorf("%d was drawn in place of %d", x, i)
				}
			}
			return nil
		})
	})
}

// TestSpinLock: each rank increments a number on the last rank, by Get and Put. A spin lock on rank
// 0, by CompareSwap and FetchOp, makes the ranks do so one at a time.
func TestSpinLock(t *testing.T) {
	const rounds = 20
	overFabrics(t, fabricCounts, func(c *comm.Comm) error {
		return withWindow(c, 2, func(w *comm.Win[uint32]) error {
			if err := w.LockAll(); err != nil {
				return err
			}
			one := make([]uint32, 1)
			for range rounds {
				for {
					was, err := w.CompareSwap(0, uint32(c.Rank()+1), 0, 0)
					if err != nil {
						return err
					}
					if was == 0 {
						break
					}
				}
				home := c.Size() - 1
				if err := first(w.Get(one, home, 1), w.Flush(home)); err != nil {
					return err
				}
				one[0]++
				if err := first(w.Put(one, home, 1), w.Flush(home)); err != nil {
					return err
				}
				was, err := w.FetchOp(0, 0, 0, comm.Replace)
				if err != nil || was != uint32(c.Rank()+1) {
					return fmt.Errorf("the lock was %d's: %w", was, err)
				}
			}
			if err := first(w.UnlockAll(), w.Fence(), w.Get(one, c.Size()-1, 1), w.Fence()); err != nil {
				return err
			}
			return same("number", one, []uint32{rounds * uint32(c.Size())})
		})
	})
}

// TestPost: each rank synchronizes only with its neighbors, and puts only into their parts.
func TestPost(t *testing.T) {
	overFabrics(t, fabricCounts, func(c *comm.Comm) error {
		next, prev := (c.Rank()+1)%c.Size(), (c.Rank()+c.Size()-1)%c.Size()
		sides := []int{next}
		if prev != next {
			sides = append(sides, prev)
		}
		return withWindow(c, 2000, func(w *comm.Win[int]) error {
			for round := range 10 {
				if err := first(w.Post(sides), w.Start(sides),
					w.Put(count(1000, c.Rank()+round), next, 0), w.Put(count(1000, c.Rank()-round), prev, 1000),
					w.Complete()); err != nil {
					return err
				}
				var err error
				if round%2 == 0 {
					err = w.Wait()
				}
				for done := round%2 == 0; !done && err == nil; {
					done, err = w.Test()
				}
				if err := first(err, same("from prev", w.Local()[:1000], count(1000, prev+round)),
					same("from next", w.Local()[1000:], count(1000, next-round))); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// TestWindowRequests waits for each operation by its request.
func TestWindowRequests(t *testing.T) {
	overFabrics(t, []int{1, 3}, func(c *comm.Comm) error {
		return withWindow(c, 1000, func(w *comm.Win[int]) error {
			next := (c.Rank() + 1) % c.Size()
			if err := w.LockAll(); err != nil {
				return err
			}
			got, old := make([]int, 500), make([]int, 10)
			rs := []comm.Request{w.RPut(count(500, 1), next, 0), w.RPut(nil, comm.ProcNull, -1)}
			if err := first(comm.WaitAll(rs), w.Flush(next), wait(w.RGet(got, next, 0)), same("RGet", got, count(500, 1))); err != nil {
				return err
			}
			if err := first(wait(w.RAccumulate(count(10, 0), next, 5, comm.Max)),
				wait(w.RGetAccumulate(count(10, 1), old, next, 5, comm.Sum)), same("old", old, count(10, 6))); err != nil {
				return err
			}
			ones, before := slices.Repeat([]int{1}, 200), make([]int, 200)
			rs = rs[:0]
			for i := range before {
				rs = append(rs, w.RFetchOp(&ones[i], &before[i], next, 999, comm.Sum))
			}
			rs = append(rs, w.RPut(count(5, 1), next, 0), w.RGet(got[:5], next, 0), w.RGet(nil, comm.ProcNull, 0), comm.Isend(c, got, comm.ProcNull, 0))
			for range rs { // WaitAny returns each request once, also those that were complete at once
				if i, _, err := comm.WaitAny(rs); err != nil || i < 0 {
					return fmt.Errorf("WaitAny: %d, %w", i, err)
				}
			}
			slices.Sort(before)
			var was [2]int
			rs = append(rs[:0], w.RCompareSwap(200, 7, &was[0], next, 999), w.RCompareSwap(200, 8, &was[1], next, 999))
			return first(comm.WaitAll(rs), same("counted", before, count(200, 0)), same("swapped", was[:], []int{200, 7}), w.UnlockAll())
		})
	})
}

// TestWindowsOfSplit uses windows of two halves of the world at the same time, and several windows
// of one communicator.
func TestWindowsOfSplit(t *testing.T) {
	overFabrics(t, []int{2, 3, 7}, func(world *comm.Comm) error {
		half, err := world.Split(world.Rank()%2, -world.Rank())
		if err != nil {
			return err
		}
		err = withWindow(half, 3, func(w *comm.Win[int]) error {
			return withWindow(half, 3, func(v *comm.Win[int]) error {
				if w.Comm() != half {
					return fmt.Errorf("the window is of %v", w.Comm())
				}
				next := (half.Rank() + 1) % half.Size()
				prev := (half.Rank() + half.Size() - 1) % half.Size()
				to, err := half.Group().Translate([]int{prev}, world.Group())
				if err != nil {
					return err
				}
				of := to[0]
				return first(w.Fence(), v.Fence(),
					w.Put(count(3, world.Rank()), next, 0), v.Put(count(3, -world.Rank()), next, 0),
					w.Fence(), v.Fence(),
					same("w", w.Local(), count(3, of)), same("v", v.Local(), count(3, -of)))
			})
		})
		return first(err, half.Free())
	})
}
