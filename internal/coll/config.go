package coll

import (
	"fmt"
	"math"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
)

// Config says how algorithms are chosen and how they cut messages up. It must
// be the same on all ranks of a job, or they would run different patterns. The
// cut-offs are starting values from the literature and from measurements on
// two cores; the benchmarks in bench/ are there to correct them.
//
// A Config is not changed while calls use it.
type Config struct {
	forced [families]forced

	Radix        int // of k-nomial trees, at least 2
	KnomialRanks int // from so many ranks on, small messages go along k-nomial trees
	SegmentBytes int // what pipelines and rings move at a time, at least 1
	Window       int // transfers that linear and scattered patterns keep open, at least 1

	BcastTreeBytes    int // bcast: above, a pipelined tree instead of a binomial one
	BcastScatterBytes int // bcast: from here on, scatter + allgather
	BcastBlockBytes   int // bcast: the ring if every rank's part is at least this

	ReduceTreeBytes int // reduce: up to here a tree, above Rabenseifner or pairwise

	AllreduceDoublingBytes int // allreduce: up to here recursive doubling
	AllreduceRingBytes     int // allreduce: from here on the ring
	AllreduceBlockBytes    int // allreduce: the ring if every rank's part is at least this

	GatherBinomialBytes int // gather, scatter: binomial up to this many bytes per rank

	AllgatherSmallBytes int // allgather: up to this total recursive doubling, Bruck or linear
	AllgatherLinearSize int // allgatherv: linear up to so many ranks if the total is small

	AlltoallBruckBytes   int // alltoall: Bruck up to this many bytes per pair …
	AlltoallBruckRanks   int // … from so many ranks on
	AlltoallScatterBytes int // alltoall: scattered up to this many bytes per pair

	ReduceScatterTreeBytes    int // reduce_scatter, not commutative: reduce + scatter up to this total
	ReduceScatterHalvingBytes int // reduce_scatter, commutative: recursive halving up to this total

	SharedBytes      int // of shared memory per rank and communicator, about, of many ranks less; 0: none
	SharedRanks      int // up to so many ranks of a host everybody looks at everybody
	SharedPairBytes  int // two ranks of a host: copied through shared memory up to so many bytes; more go as a message
	SharedBlockBytes int // gather and scatter of more ranks: blocks up to so many bytes
	SharedPairsBytes int // alltoall of more ranks: up to so many bytes per rank in all
	SharedSliceBytes int // allreduce of more than two ranks: each combines a slice from so many bytes on, at least 1
	SharedRootBytes  int // reduce of more than two ranks: the root combines all by itself up to so many bytes
	HostsTotalBytes  int // several hosts: up to so many bytes in all are gathered by host; bcast: up to so many
}

// forced is an algorithm that a family was told to use.
type forced struct {
	index uint8 // + 1 in the family's table; 0: none
	needs Needs
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
	SharedPairBytes:  128 << 10,
	SharedBlockBytes: 512 << 10,
	SharedPairsBytes: 8 << 20,
	SharedSliceBytes: 16 << 10,
	SharedRootBytes:  512 << 10,
	HostsTotalBytes:  256 << 10,
}

// ConfigFrom reads the coll.* parameters. An algorithm that does not exist is
// an error.
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

// OneHost adapts the choice of what goes by messages to a job whose ranks all
// share memory. There a message is read from its sender's memory: no link gets
// more of them than it can carry, which is what turns in pairs are for.
func (c *Config) OneHost() { c.AlltoallScatterBytes = math.MaxInt }

// Force makes all calls of a family use one algorithm, by its name, or with
// "auto" the one that fits. Where the algorithm cannot do a call (its Needs),
// the call uses the one that fits, on all ranks alike, since what an algorithm
// needs is known to all of them.
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
	return fmt.Errorf("no algorithm %q for %s: there are %s, %s", name, f, Auto, strings.Join(f.names(), ", "))
}

// Forced is the name of the algorithm that a family was told to use, or "auto".
func (c *Config) Forced(f Family) string {
	if k := c.forced[f].index; k > 0 {
		return f.names()[k-1]
	}
	return Auto
}

func orDefault(c *Config) *Config {
	if c == nil {
		return &defaultConfig
	}
	return c
}
