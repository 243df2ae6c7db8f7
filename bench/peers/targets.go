package main

import (
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/bench/contest"
)

// benchmark is a benchmark that weft and the peers run, with the targets for weft.
type benchmark struct {
	name   string         // name in ./bench and in the C program
	what   string         // name in the table
	metric contest.Metric // the figure that is compared
	of     contest.Basis  // what the targets apply to
	// ranks holds the numbers of ranks to run with, among those of the flag -ranks. If ranks is
	// empty, the benchmark runs with the number of the flag -start.
	ranks  []int
	counts string // the unit of sizes; empty: bytes
	goals  []goal // sizes and targets
	pair   []goal // replace the goals of the same sizes if there are two ranks

	// threads is set if the ranks of the MPI program have several threads.
	threads bool

	// sides returns the sides of the benchmark. If sides is nil, built.loops returns them.
	sides func(b *built, ranks int) (ours contest.Side, peers []contest.Side)
}

// goal is a size with the target for it.
type goal struct {
	size   int     // in bytes or in the unit benchmark.counts; 0 bytes: the benchmark has no sizes
	target float64 // bound for the value that benchmark.of names; 0: there is no target
}

var (
	percent = contest.Metric{Key: "overlap_percent", Scale: 1, Unit: "%", More: true}
	seconds = contest.Metric{Scale: 1, Unit: "s"}
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

var (
	pair = []int{2}
	all  = []int{2, 4, 8}
)

// The goals of collectives. small is for two ranks.
var (
	collective = []goal{{8, 0.8}, {4 * kib, 0.8}, {64 * kib, 0.8}, {mib, 0.8}}
	exchange   = []goal{{8, 0.8}, {4 * kib, 0.8}, {64 * kib, 0.9}, {mib, 0.9}} // alltoall and allgather
	small      = []goal{{8, 0.9}}
)

// level returns goals for several sizes. The target is to be as good as the better peer.
func level(sizes ...int) []goal {
	var goals []goal
	for _, size := range sizes {
		goals = append(goals, goal{size, 1})
	}
	return goals
}

// benchmarks are the benchmarks in the table, in its order.
var benchmarks = []*benchmark{
	{name: "latency", what: "latency, one way", metric: contest.Micros, ranks: pair, goals: []goal{{8, 0.9}, {4 * kib, 0.8}, {64 * kib, 0.7}, {mib, 0.7}}},
	{name: "cacheline", what: "latency ÷ a cache line's", metric: contest.Micros, ranks: pair, goals: []goal{{8, 2}}, sides: (*built).cacheline},
	{name: "bw", what: "bandwidth", metric: contest.Bandwidth, ranks: pair, goals: []goal{{8 * kib, 1.2}, {64 * kib, 1.2}, {mib, 1.5}}},
	{name: "bibw", what: "bandwidth, both ways", metric: contest.Bandwidth, ranks: pair, goals: []goal{{8 * kib, 0}, {64 * kib, 0}, {mib, 0}}},
	{name: "vector", what: "1 MiB in blocks, one way", metric: contest.Micros, ranks: pair, counts: "B per block", goals: []goal{{64, 0.8}, {512, 0.8}, {4096, 0.8}}},
	{name: "face", what: "face of a cube, one way", metric: contest.Micros, ranks: pair, counts: "elements per edge", goals: []goal{{64, 0.8}, {128, 0.8}, {256, 0.8}}},
	{name: "mr", what: "message rate", metric: contest.Rate, ranks: pair, goals: []goal{{8, 1.1}}},
	{name: "barrier", what: "barrier", metric: contest.Micros, ranks: all, goals: []goal{{0, 0.8}}},
	{name: "bcast", what: "bcast", metric: contest.Micros, ranks: all, goals: []goal{{8, 0.9}, {4 * kib, 0.8}, {64 * kib, 0.8}, {mib, 0.8}}},
	{name: "reduce", what: "reduce", metric: contest.Micros, ranks: all, goals: collective, pair: small},
	{name: "allreduce", what: "allreduce", metric: contest.Micros, ranks: all, goals: collective, pair: small},
	{name: "alltoall", what: "alltoall", metric: contest.Micros, ranks: all, goals: exchange, pair: small},
	{name: "allgather", what: "allgather", metric: contest.Micros, ranks: all, goals: exchange},
	{name: "neighbor_alltoall", what: "alltoall of neighbours in a grid", metric: contest.Micros, ranks: []int{2, 4}, goals: []goal{{8, 0.8}, {4 * kib, 0.8}, {64 * kib, 0.8}}},
	{name: "file_write", what: "collective write of an array in blocks", metric: contest.Bandwidth, ranks: []int{4}, counts: "MiB", goals: []goal{{256, 1}}},
	{name: "file_read", what: "collective read of an array in blocks", metric: contest.Bandwidth, ranks: []int{4}, counts: "MiB", goals: []goal{{256, 1}}},
	{name: "put_latency", what: "put and flush", metric: contest.Micros, ranks: pair, goals: []goal{{8, 1}}},
	{name: "get_latency", what: "get and flush", metric: contest.Micros, ranks: pair, goals: []goal{{8, 1}}},
	{name: "threads", what: "message rate of pairs of goroutines or threads", metric: contest.Rate, ranks: pair, counts: "goroutines", threads: true,
		goals: []goal{{2, 2}, {4, 2}, {16, 2}, {64, 2}}},
	{name: "waiters", what: "latency beside goroutines or threads blocked in Recv", metric: contest.Micros, ranks: pair, counts: "goroutines", threads: true, goals: level(0, 1, 100)},
	{name: "compute", what: "Sendrecv of 8 KiB after computation", metric: contest.Micros, ranks: pair, counts: "µs", goals: level(10, 100, 1000, 10_000)},
	{name: "jacobi", what: "communication of Jacobi's method", metric: contest.Micros, ranks: pair, counts: "rows", goals: level(64, 256, 1024)},
	{name: "cg", what: "communication of conjugate gradients", metric: contest.Micros, ranks: pair, counts: "rows", goals: level(64, 256, 1024)},
	{name: "iallreduce-overlap", what: "overlap of Iallreduce", metric: percent, of: contest.OfFigure, ranks: pair, goals: []goal{{64 * kib, 80}, {mib, 80}}},
	{name: "start", what: "start to end of hello", metric: seconds, goals: []goal{{0, 0.5}}, sides: (*built).hello},
}

// names returns the names of the benchmarks.
func names() []string {
	var list []string
	for _, b := range benchmarks {
		list = append(list, b.name)
	}
	return list
}

// sizeText returns a size with its unit as text. counts is the unit; "": bytes. For 0 bytes
// sizeText returns "–".
func sizeText(size int, counts string) string {
	switch {
	case counts != "":
		return fmt.Sprintf("%d %s", size, counts)
	case size == 0:
		return string(contest.Open)
	}
	return contest.BytesText(size)
}

// at returns the goals of the benchmark for a number of ranks and for these sizes in bytes. If
// sizes is empty, the benchmark has no sizes, or its field sides is set, at returns all goals. If
// the unit of the benchmark's sizes is not bytes, at returns the first goals, at most as many as
// there are sizes.
func (b *benchmark) at(ranks int, sizes []int) []goal {
	known := slices.Clone(b.goals)
	for i, g := range known {
		at := slices.IndexFunc(b.pair, func(p goal) bool { return p.size == g.size })
		if ranks == 2 && at >= 0 {
			known[i] = b.pair[at]
		}
	}
	switch {
	case len(sizes) == 0 || b.sides != nil || b.counts == "" && known[0].size == 0:
		return known
	case b.counts != "":
		return known[:min(len(known), len(sizes))]
	}
	var goals []goal
	for _, size := range sizes {
		g := goal{size: size}
		if at := slices.IndexFunc(known, func(k goal) bool { return k.size == size }); at >= 0 {
			g = known[at]
		}
		goals = append(goals, g)
	}
	return goals
}

// lines returns the lines of the result table: one per goal, in the order of goals.
func (b *benchmark) lines(goals []goal) []contest.Line {
	var lines []contest.Line
	for _, g := range goals {
		lines = append(lines, contest.Line{What: b.what, Unit: b.metric.Unit, Target: g.target, More: b.metric.More, Of: b.of})
	}
	return lines
}
