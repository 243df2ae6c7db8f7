package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// contests are those whose peers are installed; one without any is left out.
func (b *built) contests(s *settings) []*contest {
	all := []*contest{
		{
			name: "latency", what: "tcp latency, 8 B, one way", unit: "µs", target: 1.25,
			ours:  b.bench(s, overTCP, "median_us", 1, "latency", "-sizes", "8"),
			peers: b.spinning(s),
		},
		{
			name: "bandwidth", what: "tcp bandwidth, 1 MiB", unit: "GB/s", target: 2, more: true,
			ours:  b.bench(s, overTCP, "bytes_per_s", 1e-9, "bw", "-sizes", "1m"),
			peers: b.openMPI(s),
		},
		{
			name: "start", what: fmt.Sprintf("start to end of %d ranks, hello", s.ranks), unit: "s", target: 0.5,
			ours:  start("gorun", s.ranks, b.path("gorun"), "-np", strconv.Itoa(s.ranks), b.path("hello")),
			peers: b.launchers(s),
		},
	}
	var held []*contest
	for _, c := range all {
		if len(c.peers) > 0 {
			held = append(held, c)
		}
	}
	held = append(held, &contest{
		name: "idle", what: fmt.Sprintf("CPU time of a rank blocked in Recv for %v", s.block), unit: "ms", target: 50,
		ours: b.bench(&settings{time: s.block}, overTCP, "cpu_us", 1e-3, "idle"),
	})
	held = append(held, b.messages(s)...)
	return append(held, b.onesided(s)...)
}

// overTCP is what makes gorun use tcp.
var overTCP = []string{"-transport", "tcp"}

// bench is a benchmark of ours on two ranks, of which one figure counts. over
// are gorun's flags for the transport.
func (b *built) bench(s *settings, over []string, key string, scale float64, args ...string) side {
	program := b.path("bench")
	if slices.Contains(over, "libfabric") {
		program = b.path("bench.libfabric")
	}
	command := slices.Concat([]string{"-np", "2"}, over, []string{program}, args)
	command = append(command, "-time", s.time.String(), "-json")
	return side{"weft", func(ctx context.Context) (float64, error) {
		out, err := output(ctx, b.path("gorun"), command...)
		if err != nil {
			return 0, err
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(out), &fields); err != nil {
			return 0, fmt.Errorf("parse %q: %w", out, err)
		}
		x, ok := fields[key].(float64)
		if !ok {
			return 0, fmt.Errorf("no number %q in %q", key, out)
		}
		return x * scale, nil
	}}
}

// spinning is the C program over one socket.
func (b *built) spinning(s *settings) []side {
	program := b.path("tcp_pingpong")
	if program == "" {
		return nil
	}
	// A round trip takes about 10 µs.
	iterations := strconv.Itoa(max(int(s.time/(10*time.Microsecond)), 1000))
	return []side{{"C, spinning", func(ctx context.Context) (float64, error) {
		out, err := output(ctx, program, "lat", "8", iterations)
		if err != nil {
			return 0, err
		}
		return field(out, "median_us")
	}}}
}

// openMPI is Open MPI's bandwidth over tcp.
func (b *built) openMPI(s *settings) []side {
	program := b.path("pingpong.openmpi")
	if program == "" || !b.has("mpirun.openmpi") {
		return nil
	}
	return []side{{"Open MPI", func(ctx context.Context) (float64, error) {
		out, err := output(ctx, "mpirun.openmpi", "--allow-run-as-root", "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
			"-np", "2", program, "bw", strconv.Itoa(1<<20), fmt.Sprint(s.time.Seconds()))
		if err != nil {
			return 0, err
		}
		x, err := field(out, "bytes_per_s")
		return x / 1e9, err
	}}}
}

// launchers are those of MPICH and Open MPI.
func (b *built) launchers(s *settings) []side {
	var sides []side
	n := strconv.Itoa(s.ranks)
	if program := b.path("hello.mpich"); program != "" && b.has("mpiexec.hydra") {
		sides = append(sides, start("mpiexec.hydra", s.ranks, "mpiexec.hydra", "-n", n, program))
	}
	if program := b.path("hello.openmpi"); program != "" && b.has("mpirun.openmpi") {
		sides = append(sides, start("mpirun", s.ranks, "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", n, program))
	}
	return sides
}

// start is the time of a whole job of hellos, from the launcher's start to its
// end.
func start(name string, ranks int, command ...string) side {
	return side{name, func(ctx context.Context) (float64, error) {
		begun := time.Now()
		out, err := output(ctx, command[0], command[1:]...)
		took := time.Since(begun)
		if err != nil {
			return 0, err
		}
		if n := strings.Count(out, fmt.Sprintf(" of %d\n", ranks)); n != ranks {
			return 0, fmt.Errorf("%d of %d ranks said hello", n, ranks)
		}
		return took.Seconds(), nil
	}}
}

// field finds the number that follows a name.
func field(out, name string) (float64, error) {
	words := strings.Fields(out)
	for i, word := range words {
		if word == name && i+1 < len(words) {
			return strconv.ParseFloat(words[i+1], 64)
		}
	}
	return 0, fmt.Errorf("no %s in %q", name, out)
}
