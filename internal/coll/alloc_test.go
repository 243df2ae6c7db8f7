package coll_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/coll/colltest"
)

func floats(rng *rand.Rand, n int) []byte {
	b := make([]byte, 8*n)
	for i := range n {
		binary.NativeEndian.PutUint64(b[8*i:], math.Float64bits((rng.Float64()-0.5)*math.Pow(10, float64(rng.IntN(20)))))
	}
	return b
}

// TestNoAllocation checks that no rank allocates in a call in steady state. How many messages are under way
// at the same time depends on the scheduler, and colltest allocates when there are more than ever before. So
// one of several measurements without an allocation is enough.
func TestNoAllocation(t *testing.T) {
	const runs, measurements = 20, 5
	for _, a := range coll.Algorithms() {
		for _, n := range []int{2, 5, 8} {
			cfg := coll.DefaultConfig()
			require.NoError(t, cfg.Force(a.Family, a.Name))
			cfg.SegmentBytes = 64
			op := sum64()
			w := colltest.New(n, colltest.Options{})
			allocs := math.Inf(1)
			errs := w.Run(func(l *colltest.Link) error {
				send, recv := make([]byte, 8*40), make([]byte, 8*40)
				counts, displs := make([]int, n), make([]int, n)
				for r := range n {
					counts[r], displs[r] = 16, 16*r
				}
				var failed error
				once := func() {
					for _, k := range kinds[a.Family] {
						if err := callOnce(l, k, cfg, op, send, recv, counts, displs); err != nil && failed == nil {
							failed = err
						}
						l.Reset()
					}
				}
				// Warm up all ranks before rank 0 counts.
				for range 5 {
					once()
				}
				for range measurements {
					if failed == nil && l.Rank() == 0 {
						allocs = min(allocs, testing.AllocsPerRun(runs, once))
						continue
					}
					for range runs + 1 {
						once()
					}
				}
				return failed
			})
			require.NoError(t, errors.Join(errs...), "%s %s", a.Family, a.Name)
			assert.Zero(t, allocs, "%s %s, %d ranks", a.Family, a.Name, n)
		}
	}
}

func callOnce(l coll.Link, k coll.Kind, cfg *coll.Config, op coll.Op, send, recv []byte, counts, displs []int) error {
	n := l.Size()
	switch k {
	case coll.KindBarrier:
		return coll.Barrier(l, cfg)
	case coll.KindBcast:
		return coll.Bcast(l, cfg, send, 1)
	case coll.KindReduce:
		return coll.Reduce(l, cfg, send, recv, op, 1)
	case coll.KindAllreduce:
		return coll.Allreduce(l, cfg, send, recv, op)
	case coll.KindGather:
		return coll.Gather(l, cfg, send[:16], recv[:16*n], 1)
	case coll.KindGatherv:
		return coll.Gatherv(l, cfg, send[:16], recv, counts, displs, 1)
	case coll.KindScatter:
		return coll.Scatter(l, cfg, send[:16*n], recv[:16], 1)
	case coll.KindScatterv:
		return coll.Scatterv(l, cfg, send, counts, displs, recv[:16], 1)
	case coll.KindAllgather:
		return coll.Allgather(l, cfg, send[:16], recv[:16*n])
	case coll.KindAllgatherv:
		return coll.Allgatherv(l, cfg, send[:16], recv, counts, displs)
	case coll.KindAlltoall:
		return coll.Alltoall(l, cfg, send[:16*n], recv[:16*n])
	case coll.KindAlltoallv:
		return coll.Alltoallv(l, cfg, send, counts, displs, recv, counts, displs)
	case coll.KindReduceScatterBlock:
		return coll.ReduceScatterBlock(l, cfg, send[:16*n], recv[:16], op)
	case coll.KindReduceScatter:
		return coll.ReduceScatter(l, cfg, send[:16*n], recv[:16], counts, op)
	case coll.KindScan:
		return coll.Scan(l, cfg, send, recv, op)
	case coll.KindExscan:
		return coll.Exscan(l, cfg, send, recv, op)
	}
	return errors.New("unknown call")
}

func TestSelectionDoesNotAllocate(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		_ = coll.Signature(coll.KindReduce, 3, 100, 8, 1)
	}))
}

func TestArguments(t *testing.T) {
	w := colltest.New(3, colltest.Options{})
	l := w.Link(0)
	buf := make([]byte, 24)
	op := sum64()
	for _, err := range []error{
		coll.Bcast(l, nil, buf, 3), coll.Bcast(l, nil, buf, -1), coll.Reduce(l, nil, buf, buf, op, 3),
		coll.Gather(l, nil, buf[:8], buf, 3), coll.Scatter(l, nil, buf, buf[:8], -1),
		coll.Gatherv(l, nil, buf, buf, nil, nil, 7), coll.Scatterv(l, nil, buf, nil, nil, buf, 7),
	} {
		assert.ErrorIs(t, err, coll.ErrRoot)
	}
	three, bad, over := []int{8, 8, 8}, []int{8, -8, 8}, []int{0, 8, math.MaxInt}
	for i, err := range []error{
		coll.Reduce(l, nil, buf[:23], buf[:23], op, 0), coll.Reduce(l, nil, buf, buf[:8], op, 0),
		coll.Allreduce(l, nil, buf, buf[:16], op), coll.Allreduce(l, nil, buf, buf, coll.Op{}),
		coll.Gather(l, nil, buf[:9], buf, 0), coll.Gather(l, nil, buf[:7], buf[:23], 0),
		coll.Scatter(l, nil, buf, buf[:9], 0), coll.Allgather(l, nil, buf[:9], buf),
		coll.Gatherv(l, nil, buf[:8], buf, three[:2], three, 0), coll.Gatherv(l, nil, buf[:8], buf, three, over, 0),
		coll.Gatherv(l, nil, buf[:8], buf, bad, three, 0), coll.Scatterv(l, nil, buf, three, bad, buf[:8], 0),
		coll.Allgatherv(l, nil, buf[:8], buf, three, over), coll.Alltoall(l, nil, buf, buf[:16]),
		coll.Alltoall(l, nil, buf[:23], buf[:23]), coll.Alltoallv(l, nil, make([]byte, 24), three, over, buf[:16], three, three),
		coll.ReduceScatterBlock(l, nil, buf, buf[:7], op), coll.ReduceScatter(l, nil, buf, buf[8:16], three[:2], op),
		coll.ReduceScatter(l, nil, buf, buf[8:16], bad, op), coll.ReduceScatter(l, nil, buf, buf[8:16], over, op),
		coll.ReduceScatter(l, nil, buf, buf[8:16], []int{8, 4, 12}, op), coll.Scan(l, nil, buf, buf[:8], op),
		coll.Exscan(l, nil, buf[:4], buf[:4], op),
	} {
		assert.ErrorIs(t, err, coll.ErrLength, "case %d", i)
	}
}

func TestSignature(t *testing.T) {
	seen := map[uint16]coll.Kind{}
	for k := coll.KindBarrier; k <= coll.KindExscan; k++ {
		s := coll.Signature(k, 1, 100, 8, 2)
		assert.NotZero(t, s)
		assert.NotContains(t, seen, s, "%v", k)
		seen[s] = k
	}
	sig := coll.Signature
	base := sig(coll.KindReduce, 1, 100, 8, 2)
	assert.Equal(t, base, sig(coll.KindReduce, 1, 100, 8, 2))
	assert.NotEqual(t, base, sig(coll.KindReduce, 2, 100, 8, 2))
	assert.NotEqual(t, base, sig(coll.KindReduce, 1, 101, 8, 2))
	assert.NotEqual(t, base, sig(coll.KindReduce, 1, 100, 4, 2))
	assert.NotEqual(t, base, sig(coll.KindReduce, 1, 100, 8, 3))
	assert.Equal(t, sig(coll.KindAllreduce, 1, 100, 8, 2), sig(coll.KindAllreduce, 2, 100, 8, 2))
	assert.Equal(t, sig(coll.KindGatherv, 1, 100, 8, 2), sig(coll.KindGatherv, 1, 7, 8, 0))
	assert.NotEqual(t, sig(coll.KindAllgatherv, 1, 100, 8, 2), sig(coll.KindAllgatherv, 1, 7, 8, 0))
	assert.NotZero(t, sig(-5, 0, 0, 0, 0))
	// Equal signatures of neighbouring counts must not be more frequent than by chance.
	hits := map[uint16]int{}
	for n := range 4096 {
		hits[sig(coll.KindBcast, 0, n, 8, 0)]++
	}
	assert.Greater(t, len(hits), 3800)
}
