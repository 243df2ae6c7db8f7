package main

import "github.com/weft-hpc/weft/bench/contest"

// A benchmark with what it must reach against the better peer of the same run.
type benchmark struct {
	name   string // of ./bench, and of the C program
	what   string // for people
	figure figure
	of     contest.Basis
	ranks  []int // of which those are measured that -ranks has; empty: -start says
	goals  []goal

	// sides measure the benchmark; nil: the loops of ./bench and bench/peers/mpi.
	sides func(b *built, ranks int) (ours contest.Side, peers []contest.Side)
}

// goal is a size with its target; 0: there is none.
type goal struct {
	size   int // bytes; 0: there are no sizes
	target float64
}

// figure is what of a benchmark counts.
type figure struct {
	key   string // of the JSON objects
	scale float64
	unit  string
	more  bool // is better
}

var (
	micros    = figure{"median_us", 1, "µs", false}
	bandwidth = figure{"bytes_per_s", 1e-9, "GB/s", true}
	rate      = figure{"messages_per_s", 1e-6, "M/s", true}
	percent   = figure{"overlap_percent", 1, "%", true}
	seconds   = figure{"", 1, "s", false}
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

var (
	pair = []int{2}
	all  = []int{2, 4, 8}
)

// collective is what all of them must reach.
var collective = []goal{{8, 0.8}, {4 * kib, 0.8}, {64 * kib, 0.8}, {mib, 0.8}}

// benchmarks are the lines of the table.
var benchmarks = []*benchmark{
	{name: "latency", what: "latency, one way", figure: micros, ranks: pair, goals: []goal{{8, 0.8}, {4 * kib, 0.8}, {64 * kib, 0.7}, {mib, 0.7}}},
	{name: "cacheline", what: "latency ÷ a cache line's", figure: micros, ranks: pair, goals: []goal{{8, 2}}, sides: (*built).cacheline},
	{name: "bw", what: "bandwidth", figure: bandwidth, ranks: pair, goals: []goal{{8 * kib, 1.3}, {64 * kib, 1.3}, {mib, 1.5}}},
	{name: "bibw", what: "bandwidth, both ways", figure: bandwidth, ranks: pair, goals: []goal{{8 * kib, 0}, {64 * kib, 0}, {mib, 0}}},
	{name: "mr", what: "message rate", figure: rate, ranks: pair, goals: []goal{{8, 1.2}}},
	{name: "barrier", what: "barrier", figure: micros, ranks: all, goals: []goal{{0, 0.8}}},
	{name: "bcast", what: "bcast", figure: micros, ranks: all, goals: collective},
	{name: "reduce", what: "reduce", figure: micros, ranks: all, goals: collective},
	{name: "allreduce", what: "allreduce", figure: micros, ranks: all, goals: collective},
	{name: "alltoall", what: "alltoall", figure: micros, ranks: all, goals: collective},
	{name: "allgather", what: "allgather", figure: micros, ranks: all, goals: collective},
	{name: "put_latency", what: "put and flush", figure: micros, ranks: pair, goals: []goal{{8, 1}}},
	{name: "get_latency", what: "get and flush", figure: micros, ranks: pair, goals: []goal{{8, 1}}},
	{name: "iallreduce-overlap", what: "overlap of Iallreduce", figure: percent, of: contest.OfFigure, ranks: pair, goals: []goal{{64 * kib, 80}, {mib, 80}}},
	{name: "start", what: "start to end of hello", figure: seconds, goals: []goal{{0, 0.5}}, sides: (*built).hello},
}

// names are those of the benchmarks.
func names() []string {
	var list []string
	for _, b := range benchmarks {
		list = append(list, b.name)
	}
	return list
}

// at are the goals for these sizes; all if there are none or the benchmark has
// none itself.
func (b *benchmark) at(sizes []int) []goal {
	if len(sizes) == 0 || b.sides != nil || b.goals[0].size == 0 {
		return b.goals
	}
	var goals []goal
	for _, size := range sizes {
		g := goal{size: size}
		for _, known := range b.goals {
			if known.size == size {
				g = known
			}
		}
		goals = append(goals, g)
	}
	return goals
}

// lines are those of a contest.
func (b *benchmark) lines(goals []goal) []contest.Line {
	var lines []contest.Line
	for _, g := range goals {
		lines = append(lines, contest.Line{What: b.what, Unit: b.figure.unit, Target: g.target, More: b.figure.more, Of: b.of})
	}
	return lines
}
