package coll

import (
	"fmt"
	"math"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
)

// Config holds the parameters that choose algorithms and that divide messages into segments. It
// must be the same on all ranks of a job; otherwise ranks would run different algorithms. The
// default thresholds come from the literature and from measurements on two cores; adjust them with
// the benchmarks in bench/.
//
// The caller must not change a Config while calls use it.
type Config struct {
	forced [families]forced

	Radix        int // of k-nomial trees; at least 2
	KnomialRanks int // bcast and reduce by binomial or k-nomial tree: k-nomial from this many ranks on
	// Bcast by chain or tree, allreduce by ring: most bytes of a segment, rounded up to whole
	// elements; at least 1.
	SegmentBytes int
	// Linear and scattered algorithms: most ranks with which transfers are pending at once; at least
	// 1.
	Window int

	BcastTreeBytes int // bcast of more than two ranks: binomial or k-nomial tree up to this size
	// Bcast of more than two ranks, from this size on: scatter and allgather by ring if every rank's
	// part has at least BcastBlockBytes, else by recursive doubling if the number of ranks is a power
	// of two. Below this size, and in the remaining case: pipelined binary tree.
	BcastScatterBytes int
	BcastBlockBytes   int // see BcastScatterBytes

	// Reduce of more than two ranks: binomial or k-nomial tree up to this size, Rabenseifner or
	// pairwise above.
	ReduceTreeBytes int

	AllreduceDoublingBytes int // allreduce: recursive doubling up to this size
	// Allreduce by an operation that commutes: ring from this size on, if every rank's part has at
	// least AllreduceBlockBytes.
	AllreduceRingBytes  int
	AllreduceBlockBytes int // see AllreduceRingBytes

	GatherBinomialBytes int // gather, scatter of equal blocks: binomial up to this block size, linear above

	AllgatherSmallBytes int // allgather of more than two ranks: ring above this total
	AllgatherLinearSize int // allgatherv up to AllgatherSmallBytes: linear up to this many ranks, ring above

	// Alltoall of equal blocks: Bruck up to this block size, from AlltoallBruckRanks ranks on.
	AlltoallBruckBytes int
	AlltoallBruckRanks int // see AlltoallBruckBytes
	// Alltoall of equal blocks, unless by Bruck: scattered up to this block size, pairwise above.
	AlltoallScatterBytes int

	ReduceScatterTreeBytes    int // reduce_scatter, not commutative: reduce + scatter up to this total
	ReduceScatterHalvingBytes int // reduce_scatter, commutative: recursive halving up to this total

	// Approximate size of a rank's arena of a communicator (see [ArenaBytes]); 0: no arenas.
	SharedBytes int
	// All ranks on one host, and more ranks than this: only barrier (by dissemination) and bcast use
	// shared memory.
	SharedRanks int
	// Two ranks on one host, and bcast, reduce, gather, scatter, allgather or alltoall: shared memory
	// up to this size of the vector or of a block.
	SharedPairBytes int
	// More than two ranks on one host, gather and scatter: shared memory up to this block size.
	SharedBlockBytes int
	// More than two ranks on one host, alltoall: shared memory if a rank sends at most this many bytes
	// in all.
	SharedPairsBytes int
	// More than two ranks, allreduce in shared memory: from this size on each rank combines one slice;
	// 0 counts as 1.
	SharedSliceBytes int
	// More than two ranks, reduce in shared memory: above this size each rank combines one slice; up
	// to this size the root combines all.
	SharedRootBytes int
	// Several hosts, and bcast, gather, scatter or allgather: hierarchical up to this many bytes in
	// all.
	HostsTotalBytes int
}

// forced is an algorithm of a family. All calls of the family that meet the algorithm's needs use
// it; see [Config.Force].
type forced struct {
	index uint8 // 1 + the algorithm's index in the family's table; 0: no algorithm is forced
	needs Needs // of the algorithm
}

// DefaultConfig returns the default choice of algorithms.
func DefaultConfig() *Config {
	c := defaultConfig
	return &c
}

var defaultConfig = Config{
	Radix:        4,
	KnomialRanks: 8,
	SegmentBytes: 64 << 10,
	Window:       32,

	BcastTreeBytes:    64 << 10,
	BcastScatterBytes: 512 << 10,
	BcastBlockBytes:   16 << 10,

	ReduceTreeBytes: 8 << 10,

	AllreduceDoublingBytes: 16 << 10,
	AllreduceRingBytes:     1 << 20,
	AllreduceBlockBytes:    32 << 10,

	GatherBinomialBytes: 2 << 10,

	AllgatherSmallBytes: 64 << 10,
	AllgatherLinearSize: 16,

	AlltoallBruckBytes:   256,
	AlltoallBruckRanks:   8,
	AlltoallScatterBytes: 32 << 10,

	ReduceScatterTreeBytes:    8 << 10,
	ReduceScatterHalvingBytes: 512 << 10,

	SharedBytes:      1 << 20,
	SharedRanks:      64,
	SharedPairBytes:  32 << 10,
	SharedBlockBytes: 512 << 10,
	SharedPairsBytes: 8 << 20,
	SharedSliceBytes: 16 << 10,
	SharedRootBytes:  512 << 10,
	HostsTotalBytes:  256 << 10,
}

// ConfigFrom returns the Config that the coll.* parameters describe. If a parameter names an
// unknown algorithm, ConfigFrom returns an error.
func ConfigFrom(s *params.Set) (*Config, error) {
	c := DefaultConfig()
	for _, f := range Families() {
		if err := c.Force(f, s.String(f.Key())); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Key(), err)
		}
	}
	c.SharedBytes = s.Int("coll.shared_memory")
	return c, nil
}

// OneHost adapts the choice among message algorithms to a job whose ranks all share memory. There
// Auto never chooses the pairwise alltoall: the receiver reads a message from the sender's memory,
// so there is no network link to congest.
func (c *Config) OneHost() { c.AlltoallScatterBytes = math.MaxInt }

// Force makes all calls of a family that meet the [Needs] of the named algorithm use it. The other
// calls use the automatic choice. All ranks decide alike, because the needs depend only on facts
// that all ranks know. The name [Auto] restores the automatic choice for all calls. If the family
// has no algorithm of that name, Force returns an error.
func (c *Config) Force(f Family, name string) error {
	if name == Auto {
		c.forced[f] = forced{}
		return nil
	}
	for i, a := range f.infos() {
		if a.Name == name {
			c.forced[f] = forced{uint8(i + 1), a.Needs}
			return nil
		}
	}
	return fmt.Errorf("unknown algorithm %q for %s: want one of %s, %s", name, f, Auto, strings.Join(f.names(), ", "))
}

func orDefault(c *Config) *Config {
	if c == nil {
		return &defaultConfig
	}
	return c
}
