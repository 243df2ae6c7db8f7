package coll_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/coll/colltest"
	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/internal/params"
)

// arrivals records which ranks have called Barrier.
type arrivals struct{ here []atomic.Bool }

func newArrivals(n int) *arrivals { return &arrivals{make([]atomic.Bool, n)} }
func (a *arrivals) add(rank int)  { a.here[rank].Store(true) }
func (a *arrivals) all() error {
	for r := range a.here {
		if !a.here[r].Load() {
			return fmt.Errorf("left the barrier before rank %d arrived", r)
		}
	}
	return nil
}

// kinds lists the calls of each family.
var kinds = map[coll.Family][]coll.Kind{
	coll.FamilyBarrier:       {coll.KindBarrier},
	coll.FamilyBcast:         {coll.KindBcast},
	coll.FamilyReduce:        {coll.KindReduce},
	coll.FamilyAllreduce:     {coll.KindAllreduce},
	coll.FamilyGather:        {coll.KindGather, coll.KindGatherv},
	coll.FamilyScatter:       {coll.KindScatter, coll.KindScatterv},
	coll.FamilyAllgather:     {coll.KindAllgather, coll.KindAllgatherv},
	coll.FamilyAlltoall:      {coll.KindAlltoall, coll.KindAlltoallv},
	coll.FamilyReduceScatter: {coll.KindReduceScatterBlock, coll.KindReduceScatter},
	coll.FamilyScan:          {coll.KindScan, coll.KindExscan},
}

// networks are the kinds of network in which every algorithm must work.
var networks = map[string]colltest.Options{
	"rendezvous":           {},
	"rendezvous, delayed":  {Network: colltest.Delayed},
	"rendezvous, schedule": {Network: colltest.Scheduled},
	"eager, delayed":       {Eager: true, Network: colltest.Delayed},
	"eager, schedule":      {Eager: true, Network: colltest.Scheduled},
}

var ranks = []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 16}

func sum64() coll.Op { return sumOf(kernel.Int64) }

func sumOf(t kernel.Type) coll.Op {
	k, _ := kernel.For(kernel.Sum, t)
	return coll.Op{Size: k.Size, Commutes: true, Reduce2: k.Reduce2, Reduce3: k.Reduce3}
}

// randomConfig returns a Config that forces the named algorithm of family f, with small random
// values of Radix, Window and SegmentBytes.
func randomConfig(rng *rand.Rand, f coll.Family, name string) *coll.Config {
	c := coll.DefaultConfig()
	if err := c.Force(f, name); err != nil {
		panic(err)
	}
	c.Radix = 2 + rng.IntN(4)
	c.Window = 1 + rng.IntN(4)
	c.SegmentBytes = 1 << rng.IntN(14)
	return c
}

// try runs one random call of kind k on n ranks, with the named algorithm of family f forced, and
// checks the result against that of a naive computation. No block has more than about maxBytes bytes.
func try(k coll.Kind, f coll.Family, name string, n, root, maxBytes int, seed uint64, opt colltest.Options) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	m := &maker{rng: rng, cfg: randomConfig(rng, f, name), n: n, max: maxBytes}
	m.op = []coll.Op{sum64(), affine, matrix}[rng.IntN(3)]
	opt.Seed = seed
	return m.make(k, root).run(opt)
}

func TestAlgorithmsAgainstOracle(t *testing.T) {
	rounds := 3
	if testing.Short() {
		rounds = 2
	}
	for _, f := range coll.Families() {
		names := []string{coll.Auto}
		for _, a := range coll.Algorithms() {
			if a.Family == f {
				names = append(names, a.Name)
			}
		}
		for _, name := range names {
			for _, k := range kinds[f] {
				t.Run(k.String()+"/"+name, func(t *testing.T) {
					t.Parallel()
					for where, opt := range networks {
						for _, n := range ranks {
							for round := range rounds {
								seed := uint64(round*1000 + n)
								maxBytes := []int{1 << 10, 100 << 10, 8 << 10}[round%3] / max(1, n/4)
								err := try(k, f, name, n, round*7%n, maxBytes, seed, opt)
								require.NoError(t, err, "%d ranks, seed %d, %s", n, seed, where)
							}
						}
					}
				})
			}
		}
	}
}

// sendOnly is a Link of a rank that must not receive.
type sendOnly struct{ coll.Link }

var errReceives = errors.New("the rank receives")

func (sendOnly) Recv([]byte, int) error                  { return errReceives }
func (sendOnly) Sendrecv([]byte, int, []byte, int) error { return errReceives }
func (sendOnly) Irecv([]byte, int) coll.Ticket           { panic(errReceives) }

// TestBcastLeavesTheRootsBuffer checks that no message algorithm receives into the root's buffer.
// Other operations may read that buffer during the call, or it may be read-only memory.
func TestBcastLeavesTheRootsBuffer(t *testing.T) {
	for _, a := range coll.Algorithms() {
		if a.Family != coll.FamilyBcast || a.Needs&(coll.NeedsSharedMemory|coll.NeedsHosts) != 0 {
			continue
		}
		for _, n := range []int{2, 3, 4, 8} {
			m := &maker{rng: rand.New(rand.NewPCG(1, 2)), cfg: coll.DefaultConfig(), n: n, max: 1 << 12, fixed: true, op: sum64()}
			require.NoError(t, m.cfg.Force(coll.FamilyBcast, a.Name))
			s := m.make(coll.KindBcast, 1)
			call := s.call[1]
			s.call[1] = func(l coll.Link) error { return call(sendOnly{l}) }
			require.NoError(t, s.run(colltest.Options{}), "%s, %d ranks", a.Name, n)
		}
	}
}

// TestCutOffs runs all calls with the default choice, at sizes around the thresholds that are
// numbers of bytes, and checks the results. These thresholds are 1/64 of the defaults, so that the
// sizes are small.
func TestCutOffs(t *testing.T) {
	cfg := coll.DefaultConfig()
	for _, cut := range []*int{
		&cfg.SegmentBytes, &cfg.BcastTreeBytes, &cfg.BcastScatterBytes, &cfg.BcastBlockBytes, &cfg.ReduceTreeBytes,
		&cfg.AllreduceDoublingBytes, &cfg.AllreduceRingBytes, &cfg.AllreduceBlockBytes, &cfg.GatherBinomialBytes,
		&cfg.AllgatherSmallBytes, &cfg.AlltoallBruckBytes, &cfg.AlltoallScatterBytes,
		&cfg.ReduceScatterTreeBytes, &cfg.ReduceScatterHalvingBytes,
	} {
		*cut /= 64
	}
	for _, n := range []int{2, 4, 9} {
		for _, size := range []int{8, 136, 264, 1032, 8 << 10, 16 << 10} {
			for k := coll.KindBarrier; k <= coll.KindExscan; k++ {
				rng := rand.New(rand.NewPCG(uint64(n), uint64(size)))
				m := &maker{rng: rng, cfg: cfg, n: n, max: size, fixed: true, op: []coll.Op{sum64(), affine}[n/2%2]}
				require.NoError(t, m.make(k, n-1).run(colltest.Options{}), "%v of %d bytes, %d ranks", k, size, n)
			}
		}
	}
}

// TestFloatsAreDeterministic sums numbers whose sum depends on the order, with random delays. Every
// run must yield the same bits. All ranks of an allreduce must have the same bits.
func TestFloatsAreDeterministic(t *testing.T) {
	sum := sumOf(kernel.Float64)
	for _, a := range coll.Algorithms() {
		for _, n := range []int{3, 4, 7} {
			var first [][]byte
			for round := range 5 {
				rng := rand.New(rand.NewPCG(7, 7))
				cfg := coll.DefaultConfig()
				require.NoError(t, cfg.Force(a.Family, a.Name))
				cfg.SegmentBytes = 256
				const elems = 210
				results := make([][]byte, n)
				w := colltest.New(n, colltest.Options{Network: colltest.Delayed, Seed: uint64(round), Eager: round%2 == 1})
				inputs := make([][]byte, n)
				for r := range inputs {
					inputs[r], results[r] = floats(rng, elems), make([]byte, 8*elems)
				}
				errs := w.Run(func(l *colltest.Link) error {
					send, recv := inputs[l.Rank()], results[l.Rank()]
					switch a.Family {
					case coll.FamilyReduce:
						return coll.Reduce(l, cfg, send, recv, sum, 1)
					case coll.FamilyAllreduce:
						return coll.Allreduce(l, cfg, send, recv, sum)
					case coll.FamilyReduceScatter:
						return coll.ReduceScatterBlock(l, cfg, send[:len(send)/n/8*8*n], recv[:len(send)/n/8*8], sum)
					case coll.FamilyScan:
						return coll.Scan(l, cfg, send, recv, sum)
					default:
						return nil // the family combines nothing
					}
				})
				require.NoError(t, errors.Join(errs...))
				if round == 0 {
					first = results
				}
				assert.Equal(t, first, results, "%s %s, %d ranks", a.Family, a.Name, n)
				if a.Family == coll.FamilyAllreduce {
					for r := range results {
						assert.Equal(t, results[0], results[r], "%s, rank %d of %d", a.Name, r, n)
					}
				}
			}
		}
	}
}

// TestFailureIsReturned has one call of one rank to its Link fail in each run: the first call, the
// second, and so on up to the 61st. That rank must return the error, and all other ranks must end.
func TestFailureIsReturned(t *testing.T) {
	for _, a := range coll.Algorithms() {
		for _, k := range kinds[a.Family] {
			for _, n := range []int{2, 4, 5} {
				for _, network := range []colltest.Network{colltest.Immediate, colltest.Scheduled} {
					for rank := range n {
						for fail := 1; ; fail++ {
							rng := rand.New(rand.NewPCG(uint64(fail), 3))
							m := &maker{rng: rng, cfg: randomConfig(rng, a.Family, a.Name), n: n, max: 2000, op: sum64()}
							m.cfg.SegmentBytes = 100
							s := m.make(k, n/2)
							w := colltest.New(n, colltest.Options{Network: network, FailRank: rank, FailCall: fail, Seed: uint64(fail)})
							errs := w.Run(func(l *colltest.Link) error { return s.call[l.Rank()](l) })
							if w.Link(rank).Calls() < fail {
								require.NoError(t, errors.Join(errs...))
								break
							}
							require.ErrorIs(t, errs[rank], colltest.ErrInjected, "%v %s, rank %d of %d, call %d", k, a.Name, rank, n, fail)
							for _, err := range errs {
								require.NotErrorIs(t, err, colltest.ErrDeadlock, "%v %s, rank %d of %d, call %d", k, a.Name, rank, n, fail)
								require.NotErrorIs(t, err, colltest.ErrLeft)
							}
							if fail > 60 {
								break
							}
						}
					}
				}
			}
		}
	}
}

// TestForcedAlgorithmThatCannot checks that a call that does not meet the needs of the forced
// algorithm uses another one.
func TestForcedAlgorithmThatCannot(t *testing.T) {
	for _, a := range coll.Algorithms() {
		if a.Needs == 0 {
			continue
		}
		for _, k := range kinds[a.Family] {
			for seed := range uint64(20) {
				rng := rand.New(rand.NewPCG(seed, 4))
				m := &maker{rng: rng, cfg: randomConfig(rng, a.Family, a.Name), n: 6, max: 4096, op: affine}
				require.NoError(t, m.make(k, 2).run(colltest.Options{}), "%v %s", k, a.Name)
			}
		}
	}
}

func TestParametersNameTheAlgorithms(t *testing.T) {
	for _, f := range coll.Families() {
		p, ok := params.Lookup(f.Key())
		require.True(t, ok, f.Key())
		want := []string{coll.Auto}
		for _, a := range coll.Algorithms() {
			if a.Family == f {
				want = append(want, a.Name)
			}
		}
		assert.Equal(t, want, p.Choices, f.Key())
		assert.Equal(t, coll.Auto, p.Default)
		for _, name := range want {
			var s params.Set
			require.NoError(t, s.Set(f.Key(), name, params.FromFlag))
			c, err := coll.ConfigFrom(&s)
			require.NoError(t, err)
			forced := coll.DefaultConfig()
			require.NoError(t, forced.Force(f, name))
			assert.Equal(t, forced, c)
		}
	}
	assert.Equal(t, 0, strings.Count(fmt.Sprint(coll.Families()), "unknown"))
	assert.Error(t, coll.DefaultConfig().Force(coll.FamilyBcast, "carrier pigeon"))
}
