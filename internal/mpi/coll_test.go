package mpi_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/transport/tcp"
)

// affine is the function x ↦ A·x + B modulo 2^32. Composition of such functions is associative and
// does not commute.
type affine struct{ A, B uint32 }

func (f affine) then(g affine) affine { return affine{g.A * f.A, g.A*f.B + g.B} }

// subject is a reduction operation over an element type, with elements for the ranks, and a naive
// implementation of the operation that computes the expected results.
type subject[T comparable] struct {
	op      comm.OpFor[T]
	element func(rank, i int) T    // returns element i of what a rank contributes
	combine func(lower, upper T) T // the naive implementation, for the operands of a lower and a higher rank
}

var (
	sums = subject[int32]{comm.Sum[int32],
		func(r, i int) int32 { return int32(r*1000 + i) },
		func(a, b int32) int32 { return a + b }}
	maxima = subject[celsius]{comm.Max[celsius],
		func(r, i int) celsius { return celsius((r*7919+i*31)%101) / 2 },
		func(a, b celsius) celsius { return max(a, b) }}
	bits = subject[byte]{comm.Bxor[byte],
		func(r, i int) byte { return byte(r*31 + i*7) },
		func(a, b byte) byte { return a ^ b }}
	places = subject[comm.Loc[float64]]{comm.MinLoc[float64],
		func(r, i int) comm.Loc[float64] {
			return comm.Loc[float64]{Value: float64((r*13 + i) % 5), Index: r}
		},
		func(a, b comm.Loc[float64]) comm.Loc[float64] {
			if b.Value < a.Value || b.Value == a.Value && b.Index < a.Index {
				return b
			}
			return a
		}}
	maps = subject[affine]{
		comm.OpFunc(false, func(inout, in []affine) {
			for i := range inout {
				inout[i] = in[i].then(inout[i])
			}
		}),
		func(r, i int) affine { return affine{uint32(2*r + 2*i + 3), uint32(r + i*i)} },
		affine.then}
)

// block returns n elements that the rank contributes, from the element with the index at on.
func (s subject[T]) block(rank, at, n int) []T {
	b := make([]T, n)
	for i := range b {
		b[i] = s.element(rank, at+i)
	}
	return b
}

// fold returns the elements at to at+n-1 of the ranks lo to hi-1, combined in rank order.
func (s subject[T]) fold(lo, hi, at, n int) []T {
	acc := s.block(lo, at, n)
	for r := lo + 1; r < hi; r++ {
		for i, v := range s.block(r, at, n) {
			acc[i] = s.combine(acc[i], v)
		}
	}
	return acc
}

// trial holds the parameters of one round, in which all collectives run on a communicator.
type trial[T comparable] struct {
	subject[T]
	c       *comm.Comm
	rng     *rand.Rand // the same on all ranks
	n, root int
	counts  []int // by rank: number of elements of the rank's part, chosen at random
	// By rank: displacement of the rank's part, in elements. The parts lie in a random order, with
	// gaps.
	displs []int
	extent int // number of elements of all parts and gaps together
}

func (s subject[T]) trial(c *comm.Comm, rng *rand.Rand, n int) *trial[T] {
	t := &trial[T]{subject: s, c: c, rng: rng, n: n, root: rng.IntN(c.Size())}
	t.counts, t.displs = make([]int, c.Size()), make([]int, c.Size())
	for _, r := range rng.Perm(c.Size()) {
		t.counts[r] = rng.IntN(n + 1)
		t.displs[r] = t.extent + rng.IntN(3)
		t.extent = t.displs[r] + t.counts[r]
	}
	t.extent += rng.IntN(3)
	return t
}

// all runs every collective once. It chooses at random whether the call blocks, and whether the
// call is in place.
func (t *trial[T]) all() error {
	for _, f := range []struct {
		name string
		run  func(nonblocking, inPlace bool) error
	}{
		{"Barrier", t.barrier}, {"Bcast", t.bcast}, {"Reduce", t.reduce}, {"Allreduce", t.allreduce},
		{"Scan", t.scan}, {"Exscan", t.exscan}, {"ReduceScatterBlock", t.reduceScatterBlock}, {"ReduceScatter", t.reduceScatter},
		{"Gather", t.gather}, {"Gatherv", t.gatherv}, {"Scatter", t.scatter}, {"Scatterv", t.scatterv},
		{"Allgather", t.allgather}, {"Allgatherv", t.allgatherv}, {"Alltoall", t.alltoall}, {"Alltoallv", t.alltoallv},
	} {
		nonblocking, inPlace := t.rng.IntN(2) == 0, t.rng.IntN(2) == 0
		if err := f.run(nonblocking, inPlace); err != nil {
			return fmt.Errorf("%s of %T, %d elements, root %d, nonblocking %v, in place %v: %w", f.name, *new(T), t.n, t.root, nonblocking, inPlace, err)
		}
	}
	return nil
}

func wait(r comm.Request) error {
	_, err := r.Wait()
	return err
}

// TestCollectives runs all collectives with each algorithm that package coll has for them, and with
// the automatic choice of the algorithm. It compares the results with naive ones.
func TestCollectives(t *testing.T) {
	algorithms := append([]coll.Info{{Name: coll.Auto}}, coll.Algorithms()...)
	for _, a := range algorithms {
		key := a.Family.Key()
		counts := rankCounts
		if raceEnabled {
			counts = []int{2, 5, 8} // the race detector takes twenty times as long
		}
		for _, n := range counts {
			t.Run(fmt.Sprintf("%s=%s/ranks=%d", key, a.Name, n), func(t *testing.T) {
				seed := rand.Uint64()
				ranks(t, n, func(c *comm.Comm) error {
					if err := rounds(c, seed); err != nil {
						return fmt.Errorf("seed %d: %w", seed, err)
					}
					return nil
				}, commtest.WithParam(key, a.Name))
			})
		}
	}
}

// rounds runs all collectives for several types and random lengths. Equal seeds give equal lengths.
func rounds(c *comm.Comm, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 0))
	lengths := []int{0, 1, 2, 3, 8, 33, 100, 1000, 3001}
	for range withRace(3, 1) {
		n := lengths[rng.IntN(len(lengths))]
		if err := first(
			sums.trial(c, rng, n).all(), maxima.trial(c, rng, n).all(), bits.trial(c, rng, n).all(),
			places.trial(c, rng, n).all(), maps.trial(c, rng, n).all(),
		); err != nil {
			return err
		}
	}
	return nil
}

// TestOverTCP runs all collectives, and messages of all sizes, over tcp.
func TestOverTCP(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			ranks(t, n, func(c *comm.Comm) error {
				for _, size := range sizes {
					next, prev := (c.Rank()+1)%n, (c.Rank()+n-1)%n
					got := make([]int, size)
					if _, err := comm.Sendrecv(c, count(size, c.Rank()), next, 0, got, prev, 0); err != nil {
						return err
					}
					if err := same("ring", got, count(size, prev)); err != nil {
						return err
					}
				}
				return rounds(c, 5)
			}, commtest.WithProviders(tcp.New()))
		})
	}
}

// TestLargeCollectives runs all collectives with data so large that they use the algorithms and
// protocols for large data.
func TestLargeCollectives(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5} {
		t.Run(fmt.Sprintf("ranks=%d", n), func(t *testing.T) {
			ranks(t, n, func(c *comm.Comm) error {
				rng := rand.New(rand.NewPCG(1, 2))
				return first(sums.trial(c, rng, 150001).all(), maps.trial(c, rng, 70000).all())
			})
		})
	}
}

// TestEmptyInPlace checks that two empty slices count as the same slice in calls in place, although
// their addresses may differ.
func TestEmptyInPlace(t *testing.T) {
	eachCount(t, func(c *comm.Comm) error {
		none := make([]int, c.Size())
		var nothing []struct{}
		return first(
			comm.Alltoallv[int](c, nil, nil, nil, nil, none, nil),
			wait(comm.Ialltoallv(c, make([]int, 0, 3), nil, nil, make([]int, 0, 3), none, none)),
			comm.Alltoallv(c, nothing, nil, nil, nothing, count(c.Size(), 0)[:c.Size()], nil),
			comm.Alltoall[int](c, nil, nil),
			comm.Allgatherv[int](c, nil, nil, none, nil),
			comm.Gatherv[int](c, nil, nil, none, nil, 0),
			comm.ReduceScatter[int](c, nil, nil, none, comm.Sum),
		)
	})
}

// TestLargeScratchIsGivenBack checks that a communicator does not keep the scratch memory of a
// large collective.
func TestLargeScratchIsGivenBack(t *testing.T) {
	const size = 64 << 20
	heap := func() uint64 {
		for range 3 { // a sync.Pool keeps an unused value for two cycles of the garbage collector
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	commtest.Run(t, 2, func(c *comm.Comm) error {
		before := heap()
		if err := c.Barrier(); err != nil {
			return err
		}
		err := comm.Scan(c, make([]byte, size), make([]byte, size), comm.Sum)
		if err := first(err, c.Barrier()); err != nil {
			return err
		}
		if after := heap(); after > before+size/2 {
			return fmt.Errorf("%d MiB are in use, and were %d before", after>>20, before>>20)
		}
		return c.Barrier()
	}, commtest.WithParam("coll.shared_memory", "0"))
}
