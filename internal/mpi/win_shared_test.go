package mpi_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/shm"
)

// sharedFabrics are the fabrics whose ranks map each other's memory.
var sharedFabrics = map[string]func() transport.Provider{
	"inproc": func() transport.Provider { return inproc.NewFabric() },
	"shm":    shm.New,
}

func overShared(t *testing.T, n int, f func(c *comm.Comm) error) {
	t.Helper()
	for name, open := range sharedFabrics {
		t.Run(name, func(t *testing.T) { ranks(t, n, f, commtest.WithProviders(open())) })
	}
}

// TestShared: each rank stores into its part, and all ranks load all parts.
func TestShared(t *testing.T) {
	overShared(t, 4, func(c *comm.Comm) error {
		return withWindow(c, 100*c.Rank(), func(w *comm.Win[int]) error {
			for round := range 5 {
				copy(w.Local(), count(100*c.Rank(), 1000*c.Rank()+round))
				if err := c.Barrier(); err != nil {
					return err
				}
				for r := range c.Size() {
					part, ok := w.Shared(r)
					if !ok {
						return fmt.Errorf("rank %d's part is not shared", r)
					}
					if err := same("part", part, count(100*r, 1000*r+round)); err != nil {
						return err
					}
				}
				// All ranks must have loaded the parts before the next round stores into them.
				if err := c.Barrier(); err != nil {
					return err
				}
			}
			next := (c.Rank() + 1) % c.Size()
			part, _ := w.Shared(next)
			for i := range part {
				part[i] = -i
			}
			if err := w.Fence(); err != nil {
				return err
			}
			for i, x := range w.Local() {
				if x != -i {
					return fmt.Errorf("element %d is %d", i, x)
				}
			}
			for _, r := range []int{-1, comm.ProcNull, c.Size()} {
				if part, ok := w.Shared(r); part != nil || ok {
					return fmt.Errorf("rank %d has a part", r)
				}
			}
			return nil
		})
	})
}

// TestSharedParts: Shared returns a rank's own part, and those parts of other ranks that can be
// mapped.
func TestSharedParts(t *testing.T) {
	shares := func(w *comm.Win[int], want bool) error {
		for r := range w.Comm().Size() {
			if _, ok := w.Shared(r); ok != (want || r == w.Comm().Rank()) {
				return fmt.Errorf("rank %d: %v", r, ok)
			}
		}
		return nil
	}
	for _, fab := range fabrics {
		t.Run(fab.name, func(t *testing.T) {
			ranks(t, 3, func(c *comm.Comm) error {
				err := withWindow(c, 5, func(w *comm.Win[int]) error { return shares(w, fab.name == "inproc" || fab.name == "own shm") })
				if err != nil {
					return err
				}
				mem, free, err := comm.Alloc[int](c, 1000)
				if err != nil {
					return err
				}
				defer free()
				for i, buf := range [][]int{make([]int, 5), mem[7:19]} {
					w, err := comm.WinOf(c, buf)
					if err != nil {
						return err
					}
					next := (c.Rank() + 1) % c.Size()
					if err := first(shares(w, i == 1 && fab.name == "own shm"), w.Fence(), w.Put(count(5, c.Rank()), next, 0), w.Fence(),
						same("put", buf[:5], count(5, (c.Rank()+2)%3))); err != nil {
						return err
					}
					if err := w.Free(); err != nil {
						return err
					}
					if _, ok := w.Shared(c.Rank()); ok {
						return errors.New("a freed window has parts")
					}
				}
				return nil
			}, append([]commtest.Option{commtest.WithProviders(fab.open())}, fab.opts...)...)
		})
	}
	var none *comm.Win[int]
	if _, ok := none.Shared(0); ok {
		t.Error("nil has parts")
	}
}

// TestFlagsInSharedMemory passes a token around the ranks: an element that the ranks read and write
// with sync/atomic. A second element holds data that the token orders.
func TestFlagsInSharedMemory(t *testing.T) {
	const rounds = 20
	overShared(t, 3, func(c *comm.Comm) error {
		return withWindow(c, 2, func(w *comm.Win[int64]) error {
			own := w.Local()
			next, _ := w.Shared((c.Rank() + 1) % c.Size())
			for round := range int64(rounds) {
				want := round
				if c.Rank() > 0 {
					want++
				}
				for atomic.LoadInt64(&own[0]) < want {
					if err := w.Sync(); err != nil {
						return err
					}
				}
				if own[1] != int64(c.Size())*want-int64((c.Size()-c.Rank())%c.Size()) {
					return fmt.Errorf("round %d: %d", round, own[1])
				}
				next[1] = own[1] + 1
				switch round % 3 {
				case 0:
					atomic.StoreInt64(&next[0], round+1)
				case 1: // in this case the rank passes the token by Put, which stores the element
					if err := first(w.Lock((c.Rank()+1)%c.Size(), comm.LockShared), w.Put([]int64{round + 1}, (c.Rank()+1)%c.Size(), 0),
						w.Unlock((c.Rank()+1)%c.Size())); err != nil {
						return err
					}
				default: // in this case the rank passes the token by Accumulate
					if err := first(w.LockAll(), w.Accumulate([]int64{1}, (c.Rank()+1)%c.Size(), 0, comm.Sum), w.UnlockAll()); err != nil {
						return err
					}
				}
			}
			return nil
		})
	})
}

// TestSharedUnderLocks: each rank loads and stores the elements of parts under exclusive locks,
// which order these accesses.
func TestSharedUnderLocks(t *testing.T) {
	overShared(t, 3, func(c *comm.Comm) error {
		return withWindow(c, 10, func(w *comm.Win[int]) error {
			for i := range 60 {
				target := (c.Rank() + i) % c.Size()
				part, _ := w.Shared(target)
				if err := w.Lock(target, comm.LockExclusive); err != nil {
					return err
				}
				if slices.Min(part) != slices.Max(part) {
					return fmt.Errorf("torn: %v", part)
				}
				for j := range part {
					part[j]++
				}
				if err := w.Unlock(target); err != nil {
					return err
				}
			}
			if err := w.Fence(); err != nil {
				return err
			}
			return same("own", w.Local(), slices.Repeat([]int{60}, 10))
		})
	})
}

// BenchmarkSharedWindow measures calls on a part that the calling rank has mapped. The target makes
// no calls.
func BenchmarkSharedWindow(b *testing.B) {
	buf := make([]int64, 1)
	for _, x := range []struct {
		name string
		call func(w *comm.Win[int64]) error
	}{
		{"Put", func(w *comm.Win[int64]) error { return w.Put(buf, 1, 0) }},
		{"Put and Flush", func(w *comm.Win[int64]) error {
			if err := w.Put(buf, 1, 0); err != nil {
				return err
			}
			return w.Flush(1)
		}},
		{"Get and Flush", func(w *comm.Win[int64]) error {
			if err := w.Get(buf, 1, 0); err != nil {
				return err
			}
			return w.Flush(1)
		}},
		{"FetchOp", func(w *comm.Win[int64]) error {
			_, err := w.FetchOp(1, 1, 0, comm.Sum)
			return err
		}},
		{"CompareSwap", func(w *comm.Win[int64]) error {
			_, err := w.CompareSwap(1, 1, 1, 0)
			return err
		}},
		{"Accumulate", func(w *comm.Win[int64]) error { return w.Accumulate(buf, 1, 0, comm.Max) }},
		{"Unlock and Lock", func(w *comm.Win[int64]) error {
			if err := w.Unlock(1); err != nil {
				return err
			}
			return w.Lock(1, comm.LockExclusive)
		}},
	} {
		b.Run(x.name, func(b *testing.B) {
			commtest.Run(b, 2, func(c *comm.Comm) error {
				return withWindow(c, 16, func(w *comm.Win[int64]) error {
					if c.Rank() != 0 {
						return nil
					}
					if err := w.Lock(1, comm.LockExclusive); err != nil {
						return err
					}
					b.ReportAllocs()
					for b.Loop() {
						if err := x.call(w); err != nil {
							return err
						}
					}
					return w.Unlock(1)
				})
			}, commtest.WithProviders(inproc.NewFabric()))
		})
	}
}

// TestFetchesOfWords compares the results of FetchOp, for elements of several sizes, with the
// expected ones.
func TestFetchesOfWords(t *testing.T) {
	overFabrics(t, []int{1, 2}, func(c *comm.Comm) error {
		return first(
			wordTrial(c, integerOps[int32](), func(i int) int32 { return int32(3 - i*i) }),
			wordTrial(c, integerOps[uint32](), func(i int) uint32 { return uint32(3 - i*i) }),
			wordTrial(c, integerOps[int64](), func(i int) int64 { return int64(3 - i*i*1_000_000_007) }),
			wordTrial(c, integerOps[uint64](), func(i int) uint64 { return uint64(3 - i*i*1_000_000_007) }),
			wordTrial(c, integerOps[flags](), func(i int) flags { return flags(i) }),
			wordTrial(c, integerOps[int8](), func(i int) int8 { return int8(3 - i) }),
			wordTrial(c, realOps[float32](), func(i int) float32 { return float32(i) - 2.5 }),
			wordTrial(c, realOps[float64](), func(i int) float64 { return 1 / (float64(i) - 2.5) }),
			wordTrial(c, numberOps[complex64](), func(i int) complex64 { return complex(float32(i), -2) }),
			wordTrial(c, numberOps[wave](), func(i int) wave { return wave(complex(float64(i), -2)) }),
			wordTrial(c, boolOps(), func(i int) truth { return i%3 == 0 }),
			wordTrial(c, locOps[float32](), func(i int) comm.Loc[float32] { return comm.Loc[float32]{Value: float32(i % 4), Index: -i} }),
			wordTrial(c, []accOp[[2]int32]{{"Replace", comm.Replace[[2]int32], func(_, b [2]int32) [2]int32 { return b }}},
				func(i int) [2]int32 { return [2]int32{int32(i), int32(-i)} }),
		)
	})
}

func wordTrial[T comparable](c *comm.Comm, ops []accOp[T], value func(i int) T) error {
	return withWindow(c, 3, func(w *comm.Win[T]) error {
		if err := w.LockAll(); err != nil {
			return err
		}
		if c.Rank() == 0 {
			var want T
			target := c.Size() - 1
			for i := range 6 {
				for _, o := range ops {
					x := value(i)
					got, err := w.FetchOp(x, target, 1, o.op)
					if err := first(err, same(o.name, []T{got}, []T{want})); err != nil {
						return fmt.Errorf("%T: %w", x, err)
					}
					want = o.do(want, x)
				}
				x := value(i + 1)
				if err := w.Accumulate([]T{x}, target, 1, comm.Replace[T]); err != nil {
					return err
				}
				want = x
			}
			if err := w.Flush(target); err != nil {
				return err
			}
		}
		if err := first(w.UnlockAll(), w.Fence()); err != nil {
			return err
		}
		var zero T
		return same("neighbours", []T{w.Local()[0], w.Local()[2]}, []T{zero, zero})
	})
}
