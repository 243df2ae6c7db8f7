package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/bench/contest"
)

// bounded returns a context that ends after 100 s, so that a run that hangs ends.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// table returns the cells of the table in a Markdown text, by line, without the line of heads.
func table(text string) [][]string {
	var rows [][]string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "| ") {
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) > 0 {
		rows = rows[1:]
	}
	return rows
}

// number reports whether a cell of a table holds a number.
func number(cell string) bool {
	_, err := strconv.ParseFloat(strings.Trim(cell, "*"), 64)
	return err == nil
}

// TestQuick runs all benchmarks of two ranks, too briefly for meaningful figures. It checks the table,
// the page, the picture and the JSON file that the run writes.
func TestQuick(t *testing.T) {
	dir := t.TempDir()
	page, data, svg := filepath.Join(dir, "page.md"), filepath.Join(dir, "data.json"), filepath.Join(dir, "picture.svg")
	require.NoError(t, os.WriteFile(page, []byte("before\n"+begin+"old\n"+end+"after\n"), 0o600))
	var out, errs bytes.Buffer
	code := run(bounded(t), &out, &errs, []string{"-quick", "-ranks", "2", "-write", page, "-json", data, "-svg", svg})
	require.Zero(t, code, errs.String())
	require.NotContains(t, out.String(), "Not installed", "make test installs what is missing")

	count := map[string]int{}
	for _, row := range table(out.String()) {
		require.Len(t, row, 10)
		what, _, _ := strings.Cut(row[0], ", C: ")
		count[what]++
		columns := row[4:7]
		if what == "latency ÷ a cache line's" {
			require.Regexp(t, `, C: \d`, row[0])
			columns = row[4:5]
		}
		for _, cell := range columns {
			require.True(t, number(cell), "%q\n%s", row, errs.String())
		}
		if strings.HasPrefix(what, "overlap") {
			require.Equal(t, "–", row[7], row)
		} else {
			require.True(t, number(row[7]), row)
		}
		require.Equal(t, row[8] == "–", row[9] == "–", row)
		require.Contains(t, []string{"yes", "no", "–"}, row[9])
	}
	for _, b := range benchmarks {
		want := 0
		if len(b.ranks) == 0 || slices.Contains(b.ranks, 2) {
			want = len(b.at(2, []int{8, 4096}))
		}
		require.Equal(t, want, count[b.what], b.what)
	}

	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(text), "before\n"+begin), string(text))
	require.True(t, strings.HasSuffix(string(text), end+"after\n"), string(text))
	require.NotContains(t, string(text), "old")
	require.Contains(t, string(text), "](picture.svg)")
	require.Equal(t, table(out.String()), table(string(text)))
	picture, err := os.ReadFile(svg)
	require.NoError(t, err)
	for _, want := range []string{"<svg", ">allgather<", ">put_latency, 2<", ">threads, 4 goroutines<", ">compute, 100 µs<", ">cg, 256 rows<", ">MPICH<"} {
		require.Contains(t, string(picture), want)
	}

	var again bytes.Buffer
	require.Zero(t, run(bounded(t), &again, &errs, []string{"-from", data}), errs.String())
	require.Equal(t, table(out.String()), table(again.String()))
	require.Equal(t, 1, run(bounded(t), io.Discard, &errs, []string{"-from", page}), "no JSON")
}

// TestQuickWithMoreRanksThanCores runs two benchmarks with four ranks, which is more than most test
// machines have cores. All sides must give figures.
func TestQuickWithMoreRanksThanCores(t *testing.T) {
	var out, errs bytes.Buffer
	code := run(bounded(t), &out, &errs, []string{"-quick", "-ranks", "4", "-only", "barrier,allreduce"})
	require.Zero(t, code, errs.String())
	rows := table(out.String())
	require.Len(t, rows, 3, out.String())
	for _, row := range rows {
		require.Equal(t, "4", row[1])
		for _, cell := range row[4:8] {
			require.True(t, number(cell), "%q\n%s", row, errs.String())
		}
		require.Equal(t, "≤ 0.8", row[8])
	}
}

// TestPeerThatHangs runs a benchmark of each MPI library for longer than its time limit. The run ends
// with an error, and no rank is left.
func TestPeerThatHangs(t *testing.T) {
	b, err := build(bounded(t), &settings{time: time.Second})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	for _, m := range libraries {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		program := b.Path("bench." + m.name)
		require.NotEmpty(t, program, "make test installs what is missing")
		command := append([]string{m.launcher}, m.flags(4)...)
		out, err := b.output(ctx, 1, append(command, program, "barrier", "0", "1000")...)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotContains(t, out, "median_us")
		links, err := filepath.Glob("/proc/[0-9]*/exe")
		require.NoError(t, err)
		for _, link := range links {
			if exe, err := os.Readlink(link); err == nil {
				require.NotEqual(t, program, exe, link)
			}
		}
	}
}

// TestPeerThatRefuses runs a benchmark that the C program does not have. The side must return the error
// of the C program.
func TestPeerThatRefuses(t *testing.T) {
	b, err := build(bounded(t), &settings{time: 10 * time.Millisecond})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	_, peers := b.loops(&benchmark{name: "no-such-loop", metric: contest.Micros}, 2, []int{8})
	for _, p := range peers {
		xs, err := p.Measure(bounded(t))
		require.ErrorContains(t, err, "no-such-loop 8 0.01: exit status", p.Name)
		require.Empty(t, xs)
	}
}

func TestMarkdown(t *testing.T) {
	row := func(b *benchmark, ranks, size int, sides ...contest.Figures) entry {
		var e entry
		for _, g := range b.at(ranks, nil) {
			if g.size == size {
				e = entry{Bench: b.name, Ranks: ranks, Size: size, Counts: b.counts, Result: contest.Result{Line: b.lines([]goal{g})[0], Sides: sides}}
			}
		}
		return e
	}
	figures := func(name string, xs ...float64) contest.Figures { return contest.Figures{Name: name, Rounds: xs} }
	by := map[string]*benchmark{}
	for _, b := range benchmarks {
		by[b.name] = b
	}
	r := &report{Rounds: 3, Time: "1s", Notes: []string{"A note."}, Rows: []entry{
		row(by["latency"], 2, 4096, figures("weft", 3, 1, 2), figures("Open MPI", 4), figures("MPICH", 8)),
		row(by["barrier"], 8, 0, figures("weft", 9), figures("Open MPI", 10), figures("MPICH")),
		row(by["bw"], 2, mib, figures("weft", 18), figures("Open MPI", 12), figures("MPICH", 10)),
		row(by["bibw"], 2, mib, figures("weft", 18), figures("Open MPI", 12), figures("MPICH", 10)),
		row(by["cacheline"], 2, 8, figures("weft", 0.25), figures("C", 0.125)),
		row(by["alltoall"], 2, 8, figures("weft", 17), figures("Open MPI", 20), figures("MPICH", 21)),
		row(by["alltoall"], 4, 8, figures("weft", 17), figures("Open MPI", 20), figures("MPICH", 21)),
		row(by["threads"], 2, 64, figures("weft", 4), figures("Open MPI", 1), figures("MPICH", 2)),
		row(by["waiters"], 2, 0, figures("weft", 4), figures("Open MPI", 2), figures("MPICH")),
		row(by["iallreduce-overlap"], 2, mib, figures("weft", 85), figures("Open MPI", 0), figures("MPICH", 5)),
		row(by["start"], 64, 0, figures("weft"), figures("Open MPI", 2), figures("MPICH", 3)),
	}}
	text := r.markdown("")
	for _, want := range []string{
		"Medians of 3 rounds of 1s per size", "\nA note.\n", "**6 of 10 targets are met.**",
		"| latency, one way | 2 | 4 KiB | µs | **2** | 4 | 8 | 0.50 | ≤ 0.8 | yes |",
		"| barrier | 8 | – | µs | **9** | 10 | – | 0.90 | ≤ 0.8 | no |",
		"| bandwidth | 2 | 1 MiB | GB/s | **18** | 12 | 10 | 1.50 | ≥ 1.5 | yes |",
		"| bandwidth, both ways | 2 | 1 MiB | GB/s | **18** | 12 | 10 | 1.50 | – | – |",
		"| latency ÷ a cache line's, C: 0.125 | 2 | 8 B | µs | **0.25** | – | – | 2.00 | ≤ 2 | yes |",
		"| alltoall | 2 | 8 B | µs | **17** | 20 | 21 | 0.85 | ≤ 0.9 | yes |",
		"| alltoall | 4 | 8 B | µs | **17** | 20 | 21 | 0.85 | ≤ 0.8 | no |",
		"| message rate of pairs of goroutines or threads | 2 | 64 goroutines | M/s | **4** | 1 | 2 | 2.00 | ≥ 2 | yes |",
		"| latency beside goroutines or threads blocked in Recv | 2 | 0 goroutines | µs | **4** | 2 | – | 2.00 | ≤ 1 | no |",
		"| overlap of Iallreduce | 2 | 1 MiB | % | **85** | 0 | 5 | – | ≥ 80 % | yes |",
		"| start to end of hello | 64 | – | s | **–** | 2 | 3 | – | ≤ 0.5 | no |",
	} {
		require.Contains(t, text, want)
	}
	require.EqualError(t, r.failure(), "start of 0 bytes, 64 ranks: weft fails")

	var titles []string
	for _, p := range r.picture().Panels {
		titles = append(titles, p.Title)
	}
	require.Equal(t, []string{"latency, one way", "bandwidth", "alltoall", "many goroutines", "others", "overlap of Iallreduce"}, titles)
	require.Equal(t, [][2]float64{{4096, 2}}, r.picture().Panels[0].Series[0].Points, "twice as fast")
	require.Equal(t, [][2]float64{{mib, 1.5}}, r.picture().Panels[1].Series[0].Points)
}

func TestInsertNeedsMarkers(t *testing.T) {
	for _, page := range []string{"", begin, end + begin} {
		file := filepath.Join(t.TempDir(), "page.md")
		require.NoError(t, os.WriteFile(file, []byte(page), 0o600))
		require.ErrorContains(t, insert(file, "x"), "lacks the lines")
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, page, string(text))
	}
}

// TestPageHasMarkers checks that docs/performance.md has the markers between which the table goes.
func TestPageHasMarkers(t *testing.T) {
	page, err := os.ReadFile("../../docs/performance.md")
	require.NoError(t, err)
	require.Regexp(t, "(?s)"+regexp.QuoteMeta("\n"+begin)+".*"+regexp.QuoteMeta(end), string(page))
}

func TestBadUsage(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"-time", "0s"}, {"-start", "0"}, {"more"}, {"-only", "speed"}, {"-ranks", "3"}, {"-ranks", "2,x"}, {"-fast"}} {
		var errs strings.Builder
		require.Equal(t, 2, run(t.Context(), io.Discard, &errs, args), args)
		require.Contains(t, errs.String(), "peers: ")
	}
	var help strings.Builder
	require.Zero(t, run(t.Context(), io.Discard, &help, []string{"-h"}))
	require.Contains(t, help.String(), "-rounds")
}
