package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/comm"
)

// result has the figures of one size. Times are in microseconds. Those from Min to Mean are times
// of an operation divided by [part.perOp].
type result struct {
	Bench      string  `json:"bench"` // name of the benchmark
	Size       int     `json:"size"`  // in bytes, or in the unit of benchmark.counts
	Ranks      int     `json:"ranks"`
	Transport  string  `json:"transport"`
	Min        float64 `json:"min_us"`
	Median     float64 `json:"median_us"`
	P99        float64 `json:"p99_us"`
	Max        float64 `json:"max_us"`
	Mean       float64 `json:"mean_us"`
	Bandwidth  float64 `json:"bytes_per_s"`
	Allocs     float64 `json:"allocs_per_op"`
	Iterations int     `json:"iterations"`

	Rate      float64  `json:"messages_per_s,omitempty"`
	Overlap   *float64 `json:"overlap_percent,omitempty"`
	Pure      float64  `json:"pure_us,omitempty"`     // mean time of an operation without the computation
	Compute   float64  `json:"compute_us,omitempty"`  // mean time of the computation in an operation
	Finalized float64  `json:"finalize_us,omitempty"` // time of Finalize on rank 0
	CPU       float64  `json:"cpu_us,omitempty"`      // CPU time of the rank that uses most

	Version string `json:"weft"`
	Go      string `json:"go"`
	Cores   int    `json:"cores"` // number of cores that rank 0 may use
}

// printer prints results on rank 0.
type printer struct {
	c   *comm.Comm
	o   *options
	any bool // a result was printed
}

func (p *printer) print(r *result) error {
	if p.c.Rank() != 0 {
		return nil
	}
	return p.write(os.Stdout, r)
}

func (p *printer) write(w io.Writer, r *result) error {
	r.Transport, r.Version, r.Go, r.Cores = transport(p.c), version(), runtime.Version(), runtime.NumCPU()
	first := !p.any
	p.any = true
	if p.o.json {
		return json.NewEncoder(w).Encode(r)
	}
	if p.o.check {
		_, err := fmt.Fprintf(w, "%s of %d %s over %d ranks: correct\n", r.Bench, r.Size, p.o.bench.sizeUnit(), r.Ranks)
		return err
	}
	extra, heads := r.extra()
	if first {
		fmt.Fprintf(w, "# weft %s: %s, %d ranks, transport %s, weft %s, %s, %d cores\n",
			r.Bench, p.o.bench.help, r.Ranks, r.Transport, r.Version, r.Go, r.Cores)
		fmt.Fprintf(w, "%-14s %12s %12s %12s %12s %10s%s\n", "# "+p.o.bench.sizeUnit(), "min us", "median us", "p99 us", "MB/s", "allocs", heads)
	}
	_, err := fmt.Fprintf(w, "%-14d %12.2f %12.2f %12.2f %12.2f %10.2f%s\n", r.Size, r.Min, r.Median, r.P99, r.Bandwidth/1e6, r.Allocs, extra)
	return err
}

// extra returns the columns of r's row that only some benchmarks have, and the heads of these columns.
func (r *result) extra() (columns, heads string) {
	add := func(head string, x float64) {
		heads += fmt.Sprintf(" %14s", head)
		columns += fmt.Sprintf(" %14.2f", x)
	}
	if r.Rate > 0 {
		add("messages/s", r.Rate)
	}
	if r.Overlap != nil {
		add("compute us", r.Compute)
		add("pure us", r.Pure)
		add("overlap %", *r.Overlap)
	}
	if r.Bench == initialize.name {
		add("finalize us", r.Finalized)
	}
	if r.Bench == idle.name {
		add("CPU us", r.CPU)
	}
	return columns, heads
}

// transport returns the names of the transports from this rank to the others, separated by commas. If
// the job has one rank, it returns the transport from the rank to itself. After Finalize it returns
// "unknown".
func transport(c *comm.Comm) string {
	switch c.Size() {
	case 0:
		return "unknown"
	case 1:
		return c.Transport(0)
	}
	var names []string
	for r := range c.Size() {
		if name := c.Transport(r); r != c.Rank() && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// version returns the version of the module, or the commit that the program was built from. If
// neither is known, it returns "unknown".
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = s.Value
		}
	}
	if v == "" || v == "(devel)" {
		return "unknown"
	}
	return v
}
