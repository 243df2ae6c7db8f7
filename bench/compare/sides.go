//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/bench/contest"
	"github.com/weft-hpc/weft/internal/testbed"
)

// built holds the compared programs and the hosts.
type built struct {
	*contest.Programs
	libfabric bool // libfabric is installed

	hosts   *testbed.Cluster // nil: no comparison needs hosts, or noHosts says why there are none
	noHosts error            // why the hosts could not be made; nil: no error
}

// Close removes the programs and the hosts.
func (b *built) Close() error { return errors.Join(testbed.Down(), b.Programs.Close()) }

// build builds gorun, the benchmarks, and the C programs whose compilers and libraries are installed. If
// a comparison needs hosts, build makes them. The caller must call Close.
func build(ctx context.Context, s *settings) (*built, error) {
	p, err := contest.NewPrograms(ctx, "./bench")
	if err != nil {
		return nil, err
	}
	b := &built{Programs: p}
	b.findLibfabric(ctx)
	steps := []func() error{
		func() error { return p.C(ctx, "gcc", "tcp_pingpong", []string{"c/tcp_pingpong.c"}) },
		func() error { return p.MPI(ctx, "openmpi") },
		func() error { return b.buildLibfabric(ctx) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	if s.wants("hosts") || s.wants("security") {
		b.openHosts()
	}
	return b, nil
}

// contests returns the contests, without those whose peers are not installed or whose hosts could
// not be made.
func (b *built) contests(s *settings) []*contest.Contest {
	all := []*contest.Contest{
		{
			Name:  "latency",
			Lines: []contest.Line{{What: "tcp latency, 8 B, one way", Unit: "µs", Target: 1.25}},
			Ours:  b.bench(s, overTCP, "median_us", 1, "latency", "-sizes", "8"),
			Peers: b.spinning(s),
		},
		{
			Name:  "bandwidth",
			Lines: []contest.Line{{What: "tcp bandwidth, 1 MiB", Unit: contest.Bandwidth.Unit, Target: 2, More: true}},
			Ours:  b.bench(s, overTCP, contest.Bandwidth.Key, contest.Bandwidth.Scale, "bw", "-sizes", "1m"),
			Peers: b.openMPI(s, contest.Bandwidth, "bw", "1048576"),
		},
		{
			Name:  "rate",
			Lines: []contest.Line{{What: "tcp message rate, 8 B", Unit: contest.Rate.Unit, Target: 5, More: true}},
			Ours:  b.bench(s, overTCP, contest.Rate.Key, contest.Rate.Scale, "mr", "-sizes", "8"),
			Peers: b.openMPI(s, contest.Rate, "mr", "8"),
		},
	}
	all = slices.DeleteFunc(all, func(c *contest.Contest) bool { return len(c.Peers) == 0 })
	all = append(all, &contest.Contest{
		Name:  "idle",
		Lines: []contest.Line{{What: fmt.Sprintf("CPU time of a rank blocked in Recv for %v", s.block), Unit: "ms", Target: 50, Of: contest.OfFigure}},
		Ours:  b.bench(&settings{time: s.block}, overTCP, "cpu_us", 1e-3, "idle", "-sizes", "1m"),
	})
	return slices.Concat(all, b.betweenHosts(s), b.bySecurity(s), b.messages(s), b.onesided(s))
}

// overTCP are the flags that make gorun use tcp.
var overTCP = []string{"-transport", "tcp"}

// bench returns a side that runs a benchmark of weft with two ranks, and measures one figure: the
// number at key in the JSON object, times scale. over are gorun's flags for the transport, args the
// arguments of bench.
func (b *built) bench(s *settings, over []string, key string, scale float64, args ...string) contest.Side {
	return contest.Side{Name: "weft", Measure: objects(key, scale, b.benchCommand(s, over, args...)...)}
}

func (b *built) benchCommand(s *settings, over []string, args ...string) []string {
	program := b.Path("bench")
	if slices.Contains(over, "libfabric") {
		program = b.Path("bench.libfabric")
	}
	command := slices.Concat([]string{b.Path("gorun"), "-np", "2"}, over, []string{program}, args)
	return append(command, "-time", s.time.String(), "-json")
}

// objects returns a function for Side.Measure. It runs a command that prints JSON objects, and returns
// the number at key in each object, times scale.
func objects(key string, scale float64, command ...string) func(context.Context) ([]float64, error) {
	return func(ctx context.Context) ([]float64, error) {
		out, err := contest.Output(ctx, command[0], command[1:]...)
		if err != nil {
			return nil, err
		}
		objects, err := contest.Objects(out)
		if err != nil {
			return nil, err
		}
		return contest.Numbers(objects, key, scale)
	}
}

// spinning returns a side that measures with the C program tcp_pingpong, whose processes poll one socket
// without a pause. If the program was not built, it returns none.
func (b *built) spinning(s *settings) []contest.Side {
	program := b.Path("tcp_pingpong")
	if program == "" {
		return nil
	}
	// A round trip takes about 10 µs, so this number of round trips takes about s.time.
	iterations := strconv.Itoa(max(int(s.time/(10*time.Microsecond)), 1000))
	return []contest.Side{{Name: "C, spinning", Measure: contest.Single(func(ctx context.Context) (float64, error) {
		out, err := contest.Output(ctx, program, "lat", "8", iterations)
		if err != nil {
			return 0, err
		}
		return field(out, "median_us")
	})}}
}

// openMPI returns a side that measures a benchmark with Open MPI over tcp with two ranks. If Open MPI is
// not installed, it returns none.
func (b *built) openMPI(s *settings, f contest.Metric, bench, size string) []contest.Side {
	if !b.hasOpenMPI() {
		return nil
	}
	return []contest.Side{{Name: "Open MPI", Measure: objects(f.Key, f.Scale, b.mpiCommand(s, nil, bench, size)...)}}
}

func (b *built) hasOpenMPI() bool {
	return b.Path("bench.openmpi") != "" && b.Has("mpirun.openmpi")
}

// mpiCommand returns the command line of a benchmark with Open MPI. flags are further flags of mpirun.
func (b *built) mpiCommand(s *settings, flags []string, bench, size string) []string {
	command := append([]string{"mpirun.openmpi", "--allow-run-as-root", "--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "-np", "2"}, flags...)
	return append(command, b.Path("bench.openmpi"), bench, size, fmt.Sprint(s.time.Seconds()))
}

// field returns the number that is the word after name in the output of a program.
func field(out, name string) (float64, error) {
	words := strings.Fields(out)
	for i, word := range words {
		if word == name && i+1 < len(words) {
			return strconv.ParseFloat(words[i+1], 64)
		}
	}
	return 0, fmt.Errorf("no %s in %q", name, out)
}
