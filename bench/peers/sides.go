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

// built holds the compared programs, and the facts that [built.record] has stored for
// [built.notes].
type built struct {
	*contest.Programs
	s *settings
	// cores[n][side] is the number of cores that rank 0 of that side may run on, with n ranks.
	cores map[int]map[string]int
	over  []string // transports that weft used
	most  float64  // largest number of objects per operation that weft allocated
	where string   // the benchmark with that number; "": most is 0

	overlaps bool // overlap was measured
}

// build builds gorun, ./bench, hello, and those C programs for which the compiler is installed, and
// for MPI programs also the launcher.
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
	name     string                   // the library's compiler is mpicc.NAME
	title    string                   // the library's name in the table
	launcher string                   // the command that starts ranks
	flags    func(ranks int) []string // flags of the launcher for a number of ranks
	threads  []string                 // further flags of the launcher if ranks have several threads
}

var libraries = []library{
	{"openmpi", "Open MPI", "mpirun.openmpi", func(ranks int) []string {
		flags := []string{"--allow-run-as-root"}
		if ranks > processorCores() {
			flags = append(flags, "--oversubscribe")
		}
		return append(flags, "-np", strconv.Itoa(ranks))
	}, []string{"--bind-to", "none"}}, // without these flags, all threads of a rank would share one core
	{"mpich", "MPICH", "mpiexec.mpich", func(ranks int) []string { return []string{"-n", strconv.Itoa(ranks)} }, nil},
}

// processorCores returns the number of processor cores, but at most the number of hardware threads
// that this process may use. Open MPI uses it as the number of slots. The hardware threads of one
// core count once.
func processorCores() int {
	// Glob returns no error, because the pattern is well-formed.
	files, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
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
	sizes []int // by line of the contest
}

// contests returns the contests for the benchmarks and numbers of ranks that the settings select.
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

// loops returns the sides of a benchmark that both ./bench and the C programs of bench/peers/mpi have.
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

// weft returns the side that runs a benchmark of ./bench with gorun's defaults. list has the sizes as an
// argument of -sizes.
func (b *built) weft(bench *benchmark, ranks int, sizes []int, list string) contest.Side {
	command := []string{b.Path("gorun"), "-np", strconv.Itoa(ranks), b.Path("bench"), bench.name, "-time", b.s.time.String(), "-json"}
	if sizes[0] > 0 || bench.counts != "" {
		command = append(command, "-sizes", list)
	}
	return contest.Side{Name: "weft", Measure: b.objects("weft", bench, ranks, len(sizes), command...)}
}

// peers returns a side for each MPI library. The function measure returns the field Measure of the
// side; launch is the beginning of the launcher's command line. If a library is not installed, its
// side fails.
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

// objects returns a function for Side.Measure. It runs a command that prints a JSON object per size, and
// returns the benchmark's metric from each object. If the command fails, the function also returns the
// figures of the objects that the command has printed before.
func (b *built) objects(side string, bench *benchmark, ranks, sizes int, command ...string) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		out, failure := b.output(ctx, sizes, command...)
		objects, err := contest.Objects(out)
		for _, o := range objects {
			b.record(side, bench, ranks, o)
		}
		xs, keyErr := contest.Numbers(objects, bench.metric.Key, bench.metric.Scale)
		if failure != nil {
			return xs, failure // and not err, because the output may end within an object
		}
		return xs, errors.Join(err, keyErr)
	}
}

// output runs a command that measures this number of sizes, and returns its output. If the command takes
// too long, output ends it and returns an error.
func (b *built) output(ctx context.Context, sizes int, command ...string) (string, error) {
	// With more ranks than cores a library may need a tenth of a second per operation, and the
	// benchmark does at least ten operations.
	limit := 30*time.Second + time.Duration(10*sizes)*b.s.time
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no result after %v", limit))
	defer cancel()
	return contest.Output(ctx, command[0], command[1:]...)
}

// hello returns the sides that time a whole job of the program hello, from the start of the launcher to
// its end.
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

// cacheline returns the sides that compare the latency of 8 bytes with the physical limit, which is the
// time in which a cache line moves between two cores.
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
