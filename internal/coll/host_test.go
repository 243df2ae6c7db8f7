package coll_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/coll/colltest"
	"github.com/weft-hpc/weft/internal/kernel"
)

// layouts returns ways to place n ranks on hosts, by name. Each way holds, by rank, the number of
// the rank's host.
func layouts(rng *rand.Rand, n int) map[string][]int {
	l := map[string][]int{"one": make([]int, n), "two": make([]int, n), "cyclic": make([]int, n), "random": make([]int, n)}
	for r := range n {
		l["two"][r] = min(1, r/max(1, n/2+n%2-rng.IntN(2)))
		l["cyclic"][r] = r % 2
		l["random"][r] = rng.IntN(3)
	}
	return l
}

// series runs scenarios one after the other in one world, without synchronization between them.
func series(all []*scenario, opt colltest.Options) error {
	w := colltest.New(all[0].n, opt)
	errs := w.Run(func(l *colltest.Link) error {
		for i, s := range all {
			if err := s.call[l.Rank()](l); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
			l.Reset()
		}
		return nil
	})
	for r, err := range errs {
		if err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
	}
	for i, s := range all {
		if err := s.check(); err != nil {
			return fmt.Errorf("call %d: %w", i, err)
		}
	}
	return nil
}

// hostConfig returns a Config that forces the named algorithm in every family that has it, with
// small random sizes of segments and arenas, and random thresholds.
func hostConfig(rng *rand.Rand, name string) *coll.Config {
	c := randomConfig(rng, coll.FamilyBarrier, coll.Auto)
	for _, f := range coll.Families() {
		if err := c.Force(f, name); err != nil && name != "hierarchical" {
			panic(err)
		}
	}
	c.SharedBytes = 256 << rng.IntN(6)
	c.SharedRanks = 2 + rng.IntN(20)
	c.SharedSliceBytes = 1 + rng.IntN(500)
	c.SharedRootBytes = rng.IntN(500)
	if rng.IntN(2) == 0 {
		c.SharedSliceBytes, c.SharedRootBytes = 1<<20, 1<<20
	}
	return c
}

// TestHosts runs series of random calls of all kinds in worlds in which the ranks of each host share
// memory, and checks the results.
func TestHosts(t *testing.T) {
	rounds := uint64(8)
	if testing.Short() {
		rounds = 3
	}
	for _, name := range []string{"shared", "hierarchical", coll.Auto} {
		for where, opt := range networks {
			t.Run(name+"/"+where, func(t *testing.T) {
				t.Parallel()
				for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 13, 18} {
					for seed := range rounds {
						rng := rand.New(rand.NewPCG(seed, uint64(n)))
						for layout, hosts := range layouts(rng, n) {
							m := &maker{rng: rng, cfg: hostConfig(rng, name), n: n}
							var all []*scenario
							var kinds []coll.Kind
							for range 20 {
								// A new maker per call, because the call reads it when it runs.
								m := &maker{rng: rng, cfg: m.cfg, n: n}
								m.op = []coll.Op{sum64(), affine, matrix}[rng.IntN(3)]
								m.max = []int{40, 400, 4000}[rng.IntN(3)]
								k := coll.Kind(1 + rng.IntN(int(coll.KindExscan)))
								kinds = append(kinds, k)
								all = append(all, m.make(k, rng.IntN(n)))
							}
							opt.Seed, opt.Hosts, opt.SharedBytes = seed, hosts, m.cfg.SharedBytes
							require.NoError(t, series(all, opt), "%d ranks, hosts %s %v, seed %d, %v", n, layout, hosts, seed, kinds)
						}
					}
				}
			})
		}
	}
}

// TestHostSeries runs many calls of one kind in series, and checks the results. In some kinds of
// call a rank waits for no other rank, so it may be several calls ahead of the others.
func TestHostSeries(t *testing.T) {
	for k := coll.KindBarrier; k <= coll.KindExscan; k++ {
		t.Run(k.String(), func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{2, 3, 8} {
				for _, size := range []int{8, 48, 56, 64, 200, 3000} {
					rng := rand.New(rand.NewPCG(uint64(n), uint64(size)))
					m := &maker{rng: rng, cfg: hostConfig(rng, "shared"), n: n, max: size, op: affine, fixed: true}
					m.cfg.SharedBytes = 1 << 10
					var all []*scenario
					for range 40 {
						all = append(all, m.make(k, 1))
					}
					require.NoError(t, series(all, colltest.Options{Hosts: make([]int, n), SharedBytes: m.cfg.SharedBytes}), "%d ranks, %d bytes", n, size)
				}
			}
		})
	}
}

// TestHostSameBits checks that all ranks of an allreduce in shared memory get the same bits, in every
// run, although the sum of the numbers depends on the order.
func TestHostSameBits(t *testing.T) {
	k, _ := kernel.For(kernel.Sum, kernel.Float64)
	op := coll.Op{Size: 8, Commutes: true, Reduce2: k.Reduce2, Reduce3: k.Reduce3}
	for _, n := range []int{2, 3, 5, 8} {
		for _, length := range []int{1, 7, 100, 3000} {
			var seen []byte
			for run := range 4 {
				cfg := coll.DefaultConfig()
				cfg.SharedSliceBytes = 1000
				w := colltest.New(n, colltest.Options{Network: colltest.Scheduled, Seed: uint64(run), Hosts: make([]int, n), SharedBytes: 4 << 10})
				results := make([][]byte, n)
				require.NoError(t, errors.Join(w.Run(func(l *colltest.Link) error {
					rng := rand.New(rand.NewPCG(uint64(l.Rank()), 7))
					results[l.Rank()] = make([]byte, 8*length)
					return coll.Allreduce(l, cfg, floats(rng, length), results[l.Rank()], op)
				})...))
				if seen == nil {
					seen = results[0]
				}
				for r := range results {
					require.True(t, bytes.Equal(seen, results[r]), "rank %d of %d", r, n)
				}
			}
		}
	}
}

// TestHostMismatch checks that ranks that make different calls get an error or are found by
// FindMismatch, and that none of them waits forever.
func TestHostMismatch(t *testing.T) {
	cfg := coll.DefaultConfig()
	buf := func() []byte { return make([]byte, 64) }
	calls := map[string]func(l coll.Link) error{
		"barrier":   func(l coll.Link) error { return coll.Barrier(l, cfg) },
		"bcast 0":   func(l coll.Link) error { return coll.Bcast(l, cfg, buf(), 0) },
		"bcast 1":   func(l coll.Link) error { return coll.Bcast(l, cfg, buf(), 1) },
		"allreduce": func(l coll.Link) error { return coll.Allreduce(l, cfg, buf(), buf(), sum64()) },
		"allgather": func(l coll.Link) error { return coll.Allgather(l, cfg, buf(), make([]byte, 64*l.Size())) },
	}
	for one, first := range calls {
		for other, second := range calls {
			if one == other {
				continue
			}
			w := colltest.New(2, colltest.Options{Hosts: []int{0, 0}, SharedBytes: 4 << 10})
			errs := w.Run(func(l *colltest.Link) error {
				for _, c := range []func(l coll.Link) error{first, second}[l.Rank():][:1] {
					l.SetSig(uint16(l.Rank()))
					if err := c(l); err != nil {
						return err
					}
				}
				l.SetSig(9)
				return coll.Barrier(l, cfg) // a rank that waited for no other continues
			})
			all := errors.Join(errs...)
			if all == nil {
				h, _ := w.Link(1).Host()
				rank, differs := h.FindMismatch()
				require.True(t, differs, "%s and %s", one, other)
				require.Zero(t, rank)
				continue
			}
			require.ErrorIs(t, all, colltest.ErrMismatch, "%s and %s", one, other)
			require.NotErrorIs(t, all, colltest.ErrDeadlock, "%s and %s", one, other)
		}
	}
}

// TestHostMiscount checks that a reader detects that the writer has sent a block of another length,
// in calls in which only these two ranks know the length.
func TestHostMiscount(t *testing.T) {
	for name, call := range map[string]func(l coll.Link, n int) error{
		"gatherv": func(l coll.Link, n int) error {
			if l.Rank() == 1 {
				return coll.Gatherv(l, nil, make([]byte, n), nil, nil, nil, 0)
			}
			return coll.Gatherv(l, nil, make([]byte, 8), make([]byte, 16), []int{8, 8}, []int{0, 8}, 0)
		},
		"scatterv": func(l coll.Link, n int) error {
			if l.Rank() == 1 {
				return coll.Scatterv(l, nil, nil, nil, nil, make([]byte, n), 0)
			}
			return coll.Scatterv(l, nil, make([]byte, 16), []int{8, 8}, []int{0, 8}, make([]byte, 8), 0)
		},
		"alltoallv": func(l coll.Link, n int) error {
			counts := []int{8, 8}
			if l.Rank() == 1 {
				counts = []int{n, 8}
			}
			buf := make([]byte, counts[0]+8)
			return coll.Alltoallv(l, nil, buf, counts, []int{0, counts[0]}, make([]byte, len(buf)), counts, []int{0, counts[0]})
		},
	} {
		for _, n := range []int{0, 1, 9, 5000} {
			w := colltest.New(2, colltest.Options{Hosts: []int{0, 0}, SharedBytes: 4 << 10})
			errs := errors.Join(w.Run(func(l *colltest.Link) error {
				if err := call(l, n); err != nil {
					return err
				}
				return coll.Barrier(l, nil)
			})...)
			require.ErrorIs(t, errs, colltest.ErrMiscount, "%s, %d bytes", name, n)
			require.NotErrorIs(t, errs, colltest.ErrDeadlock, "%s, %d bytes", name, n)
		}
	}
}

// TestHostFailures has one call of one rank to its Link fail in each run of a collective in shared
// memory: the first call, the second, and so on up to the 39th. That rank must return the error,
// and the ranks must not deadlock.
func TestHostFailures(t *testing.T) {
	for _, name := range []string{"shared", "hierarchical"} {
		for k := coll.KindBarrier; k <= coll.KindExscan; k++ {
			for _, n := range []int{2, 5} {
				hosts := make([]int, n)
				if name == "hierarchical" {
					hosts[n-1] = 1
				}
				for rank := range n {
					for fail := 1; fail < 40; fail++ {
						rng := rand.New(rand.NewPCG(uint64(fail), 3))
						m := &maker{rng: rng, cfg: hostConfig(rng, name), n: n, max: 2000, op: sum64()}
						s := m.make(k, n/2)
						w := colltest.New(n, colltest.Options{
							Network: colltest.Scheduled, FailRank: rank, FailCall: fail, Seed: uint64(fail), Hosts: hosts, SharedBytes: m.cfg.SharedBytes,
						})
						errs := w.Run(func(l *colltest.Link) error { return s.call[l.Rank()](l) })
						if w.Link(rank).Calls() < fail {
							require.NoError(t, errors.Join(errs...))
							break
						}
						require.ErrorIs(t, errs[rank], colltest.ErrInjected, "%v %s, rank %d of %d, call %d", k, name, rank, n, fail)
						require.NotErrorIs(t, errors.Join(errs...), colltest.ErrDeadlock, "%v %s, rank %d of %d, call %d", k, name, rank, n, fail)
					}
				}
			}
		}
	}
}

// TestHostsDoNotAllocate checks that no rank allocates in a call in steady state.
func TestHostsDoNotAllocate(t *testing.T) {
	const runs = 20
	for _, name := range []string{"shared", "hierarchical"} {
		for _, n := range []int{2, 5} {
			hosts := make([]int, n)
			cfg := coll.DefaultConfig()
			cfg.SegmentBytes = 64
			for _, f := range coll.Families() {
				if err := cfg.Force(f, name); err != nil {
					require.Equal(t, "hierarchical", name)
				}
			}
			if name == "hierarchical" {
				hosts[n-1] = 1
			}
			w := colltest.New(n, colltest.Options{Hosts: hosts, SharedBytes: 512})
			var allocs float64
			errs := w.Run(func(l *colltest.Link) error {
				send, recv := make([]byte, 8*400), make([]byte, 8*400)
				counts, displs := make([]int, n), make([]int, n)
				for r := range n {
					counts[r], displs[r] = 16, 16*r
				}
				var failed error
				once := func() {
					for k := coll.KindBarrier; k <= coll.KindExscan; k++ {
						if err := callOnce(l, k, cfg, sum64(), send, recv, counts, displs); err != nil && failed == nil {
							failed = err
						}
						l.Reset()
					}
				}
				for range 5 { // warm up all ranks before rank 0 counts
					once()
				}
				if failed == nil && l.Rank() == 0 {
					allocs = testing.AllocsPerRun(runs, once)
				} else {
					for range runs + 1 {
						once()
					}
				}
				return failed
			})
			require.NoError(t, errors.Join(errs...), name)
			assert.Zero(t, allocs, "%s, %d ranks", name, n)
		}
	}
}
