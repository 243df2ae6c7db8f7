package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/bench/contest"
)

// built holds the compared programs and the facts that record has kept.
type built struct {
	*contest.Programs
	s     *settings
	cores map[int]map[string]int // number of cores that rank 0 may run on, by ranks and side
	over  []string               // transports that weft used
	most  float64                // largest number of objects that an operation of weft allocated
	where string                 // the benchmark with that number

	overlaps bool // overlap was measured
}

// build builds gorun, ./bench, hello, and the C programs with every installed compiler.
func build(ctx context.Context, s *settings) (*built, error) {
	p, err := contest.NewPrograms(ctx, "./bench", "./bench/peers/hello")
	if err != nil {
		return nil, err
	}
	err = p.C(ctx, "gcc", "cacheline", []string{"c/cacheline.c"})
	for _, m := range libraries {
		if p.Has(m.launcher) {
			err = errors.Join(err, p.MPI(ctx, m.name))
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return &built{Programs: p, s: s, cores: map[int]map[string]int{}}, nil
}

// library is an MPI library with the command that starts its ranks.
type library struct {
	name     string // its compiler is mpicc.NAME
	title    string
	launcher string
	flags    func(ranks int) []string
	threads  []string // more flags, for ranks with several threads
}

var libraries = []library{
	{"openmpi", "Open MPI", "mpirun.openmpi", func(ranks int) []string {
		flags := []string{"--allow-run-as-root"}
		if ranks > processorCores() {
			flags = append(flags, "--oversubscribe")
		}
		return append(flags, "-np", strconv.Itoa(ranks))
	}, []string{"--bind-to", "none"}}, // otherwise all threads of a rank share one core
	{"mpich", "MPICH", "mpiexec.mpich", func(ranks int) []string { return []string{"-n", strconv.Itoa(ranks)} }, nil},
}

// processorCores returns the number of cores as Open MPI counts slots: the hardware threads of a core
// count once.
func processorCores() int {
	files, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list") // the pattern is well-formed
	cores := map[string]bool{}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil {
			cores[string(text)] = true
		}
	}
	if len(cores) == 0 {
		return runtime.NumCPU()
	}
	return min(len(cores), runtime.NumCPU())
}

// tableContest is the contest of one benchmark with one number of ranks.
type tableContest struct {
	contest.Contest
	bench *benchmark
	ranks int
	sizes []int
}

// contests returns the contests that the settings select.
func (b *built) contests() []*tableContest {
	var all []*tableContest
	for _, bench := range benchmarks {
		if len(b.s.only) > 0 && !slices.Contains(b.s.only, bench.name) {
			continue
		}
		counts := slices.DeleteFunc(slices.Clone(b.s.ranks), func(n int) bool { return !slices.Contains(bench.ranks, n) })
		if len(bench.ranks) == 0 {
			counts = []int{b.s.start}
		}
		for _, ranks := range counts {
			goals := bench.at(ranks, b.s.sizes)
			c := &tableContest{bench: bench, ranks: ranks}
			for _, g := range goals {
				c.sizes = append(c.sizes, g.size)
			}
			c.Name, c.Lines = fmt.Sprintf("%s, %d ranks", bench.name, ranks), bench.lines(goals)
			if bench.sides != nil {
				c.Ours, c.Peers = bench.sides(b, ranks)
			} else {
				c.Ours, c.Peers = b.loops(bench, ranks, c.sizes)
			}
			all = append(all, c)
		}
	}
	return all
}

// loops returns the sides of a benchmark that ./bench and the C programs have.
func (b *built) loops(bench *benchmark, ranks int, sizes []int) (ours contest.Side, peers []contest.Side) {
	var texts []string
	for _, size := range sizes {
		texts = append(texts, strconv.Itoa(size))
	}
	list := strings.Join(texts, ",")
	peers = b.peers(func(m library, launch []string) func(context.Context) ([]float64, error) {
		if bench.threads {
			launch = slices.Insert(launch, 1, m.threads...)
		}
		return b.objects(m.title, bench, ranks, len(sizes),
			append(launch, b.Path("bench."+m.name), bench.name, list, fmt.Sprint(b.s.time.Seconds()))...)
	}, ranks)
	return b.weft(bench, ranks, sizes, list), peers
}

// weft measures a benchmark of ./bench with gorun's defaults.
func (b *built) weft(bench *benchmark, ranks int, sizes []int, list string) contest.Side {
	command := []string{b.Path("gorun"), "-np", strconv.Itoa(ranks), b.Path("bench"), bench.name, "-time", b.s.time.String(), "-json"}
	if sizes[0] > 0 || bench.counts != "" {
		command = append(command, "-sizes", list)
	}
	return contest.Side{Name: "weft", Measure: b.objects("weft", bench, ranks, len(sizes), command...)}
}

// peers returns a side per library, which measures with the function that measure returns. The side
// of a library that is not installed fails.
func (b *built) peers(measure func(m library, launch []string) func(context.Context) ([]float64, error), ranks int) []contest.Side {
	var sides []contest.Side
	for _, m := range libraries {
		side := contest.Side{Name: m.title, Measure: func(context.Context) ([]float64, error) {
			return nil, errors.New("not installed")
		}}
		if b.Path("bench."+m.name) != "" {
			side.Measure = measure(m, append([]string{m.launcher}, m.flags(ranks)...))
		}
		sides = append(sides, side)
	}
	return sides
}

// objects returns a function that measures by a command that prints a JSON object per size. If the
// command fails, the objects that it printed before count.
func (b *built) objects(side string, bench *benchmark, ranks, sizes int, command ...string) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		out, failure := b.output(ctx, sizes, command...)
		objects, err := contest.Objects(out)
		for _, o := range objects {
			b.record(side, bench, ranks, o)
		}
		xs, keyErr := contest.Numbers(objects, bench.metric.Key, bench.metric.Scale)
		if failure != nil {
			return xs, failure // its output may end within an object
		}
		return xs, errors.Join(err, keyErr)
	}
}

// output runs a command that measures this number of sizes, within a time limit.
func (b *built) output(ctx context.Context, sizes int, command ...string) (string, error) {
	// With more ranks than cores a library may need a tenth of a second per operation, and it
	// does at least ten of them.
	limit := 30*time.Second + time.Duration(10*sizes)*b.s.time
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no result after %v", limit))
	defer cancel()
	return contest.Output(ctx, command[0], command[1:]...)
}

// hello measures a whole job of the hello program, from the launcher's start to its end.
func (b *built) hello(ranks int) (ours contest.Side, peers []contest.Side) {
	start := func(command ...string) func(context.Context) ([]float64, error) {
		return func(ctx context.Context) ([]float64, error) {
			begun := time.Now()
			out, err := b.output(ctx, 1, command...)
			took := time.Since(begun)
			if err != nil {
				return nil, err
			}
			if n := strings.Count(out, fmt.Sprintf(" of %d\n", ranks)); n != ranks {
				return nil, fmt.Errorf("%d of %d ranks said hello", n, ranks)
			}
			return []float64{took.Seconds()}, nil
		}
	}
	peers = b.peers(func(m library, launch []string) func(context.Context) ([]float64, error) {
		return start(append(launch, b.Path("hello."+m.name))...)
	}, ranks)
	return contest.Side{Name: "weft", Measure: start(b.Path("gorun"), "-np", strconv.Itoa(ranks), b.Path("hello"))}, peers
}

// cacheline compares the latency of 8 bytes with the physical limit: moving a cache line.
func (b *built) cacheline(ranks int) (ours contest.Side, peers []contest.Side) {
	limit := contest.Side{Name: "C", Measure: func(ctx context.Context) ([]float64, error) {
		if b.Path("cacheline") == "" {
			return nil, errors.New("not built")
		}
		out, err := b.output(ctx, 1, b.Path("cacheline"), fmt.Sprint(b.s.time.Seconds()))
		if err != nil {
			return nil, err
		}
		objects, err := contest.Objects(out)
		if err != nil {
			return nil, err
		}
		return contest.Numbers(objects, contest.Micros.Key, contest.Micros.Scale)
	}}
	return b.weft(&benchmark{name: "latency", metric: contest.Micros}, ranks, []int{8}, "8"), []contest.Side{limit}
}
