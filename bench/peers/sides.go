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

// built is the programs that are compared, and what was noticed of them.
type built struct {
	*contest.Programs
	s     *settings
	cores map[int]map[string]int // that rank 0 may run on: by ranks and side
	over  []string               // weft's transports
	most  float64                // objects allocated per operation of weft's
	where string                 // that was

	overlaps bool // were measured
}

// build builds gorun, ./bench, hello, and the C programs with every compiler
// there is.
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

// library is an MPI library and how it starts ranks.
type library struct {
	name     string // of its compiler: mpicc.NAME
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
	}, []string{"--bind-to", "none"}}, // or all threads of a rank take turns on one core
	{"mpich", "MPICH", "mpiexec.mpich", func(ranks int) []string { return []string{"-n", strconv.Itoa(ranks)} }, nil},
}

// processorCores is the number of cores as Open MPI counts its slots: threads of
// a core are one.
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

// held is a contest of one benchmark and number of ranks.
type held struct {
	contest.Contest
	bench *benchmark
	ranks int
	sizes []int
}

// contests are those that the settings ask for.
func (b *built) contests() []*held {
	var all []*held
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
			c := &held{bench: bench, ranks: ranks}
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

// loops are the same benchmark of ./bench and of the C programs.
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

// weft is a benchmark of ours, run as a user would.
func (b *built) weft(bench *benchmark, ranks int, sizes []int, list string) contest.Side {
	command := []string{b.Path("gorun"), "-np", strconv.Itoa(ranks), b.Path("bench"), bench.name, "-time", b.s.time.String(), "-json"}
	if sizes[0] > 0 || bench.counts != "" {
		command = append(command, "-sizes", list)
	}
	return contest.Side{Name: "weft", Measure: b.objects("weft", bench, ranks, len(sizes), command...)}
}

// peers are the libraries, each with what it measures by; one that is not
// installed fails.
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

// objects measures by a command that prints an object per size. What it prints
// before it fails counts.
func (b *built) objects(side string, bench *benchmark, ranks, sizes int, command ...string) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		out, failure := b.output(ctx, sizes, command...)
		objects, err := contest.Objects(out)
		for _, o := range objects {
			b.notice(side, bench, ranks, o)
		}
		xs, keyErr := contest.Numbers(objects, bench.figure.key, bench.figure.scale)
		if failure != nil {
			return xs, failure // what it printed may end anywhere
		}
		return xs, errors.Join(err, keyErr)
	}
}

// output runs a command that measures a number of sizes within a limit.
func (b *built) output(ctx context.Context, sizes int, command ...string) (string, error) {
	// A library that does not get on with more ranks than cores may take a
	// tenth of a second for an operation, of which there are ten at least.
	limit := 30*time.Second + time.Duration(10*sizes)*b.s.time
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it has not ended after %v", limit))
	defer cancel()
	return contest.Output(ctx, command[0], command[1:]...)
}

// hello is a whole job of hellos, from the launcher's start to its end.
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

// cacheline compares the latency of 8 bytes with the physical limit.
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
		return contest.Numbers(objects, micros.key, micros.scale)
	}}
	return b.weft(&benchmark{name: "latency", figure: micros}, ranks, []int{8}, "8"), []contest.Side{limit}
}
