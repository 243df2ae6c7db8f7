//go:build linux

package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/bench/contest"
)

// TestCompare runs the comparisons within one host over tcp, too briefly for meaningful figures. Each
// must print its row of the table.
func TestCompare(t *testing.T) {
	var out, progress bytes.Buffer
	code := run(t.Context(), &out, &progress, []string{"-only", "latency,bandwidth,rate,idle", "-rounds", "1", "-time", "20ms", "-block", "100ms"})
	require.Zero(t, code, progress.String())
	require.NotContains(t, out.String(), " fails")
	require.NotRegexp(t, "(?m)^Not installed.*(gcc|mpi)", out.String(), "make test installs what is missing")
	for _, row := range []string{
		`(?m)^\| tcp latency, 8 B, one way \| µs \| \*\*.*C, spinning \*\*.* \| ≤ 1\.25 \| (yes|no) \|$`,
		`(?m)^\| tcp bandwidth, 1 MiB \| GB/s \| \*\*.*Open MPI \*\*.* \| ≥ 2 \| (yes|no) \|$`,
		`(?m)^\| tcp message rate, 8 B \| M/s \| \*\*.*Open MPI \*\*.* \| ≥ 5 \| (yes|no) \|$`,
		`(?m)^\| CPU time of a rank blocked in Recv for 100ms \| ms \| \*\*.*\|  \| – \| ≤ 50 \| (yes|no) \|$`,
	} {
		require.Regexp(t, row, out.String())
	}
}

// TestHosts runs all comparisons between hosts, too briefly for meaningful figures. Each must print its
// row of the table.
func TestHosts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can make hosts of namespaces")
	}
	var out, progress bytes.Buffer
	code := run(t.Context(), &out, &progress, []string{"-only", "hosts", "-rounds", "1", "-time", "20ms"})
	require.Zero(t, code, progress.String())
	require.NotContains(t, out.String(), " fails", progress.String())
	for _, row := range []string{
		`(?m)^\| tcp between two hosts, 8 B, one way \| µs \| \*\*.*Open MPI \*\*.* \| – \| – \|$`,
		`(?m)^\| tcp between two hosts, message rate, 8 B \| M/s \| \*\*.*Open MPI \*\*.* \| ≥ 5 \| (yes|no) \|$`,
		`(?m)^\| tcp between two hosts, 1 MiB, one way \| µs \| \*\*.*Open MPI \*\*.* \| ≤ 0\.9 \| (yes|no) \|$`,
		`(?m)^\| tcp between two hosts, bcast, 1 MiB \| µs \| \*\*.*Open MPI \*\*.* \| ≤ 0\.9 \| (yes|no) \|$`,
	} {
		require.Regexp(t, row, out.String())
	}
}

func TestWants(t *testing.T) {
	s, err := parse(nil, io.Discard)
	require.NoError(t, err)
	require.True(t, s.wants("hosts"))
	s, err = parse([]string{"-only", "rate,hosts"}, io.Discard)
	require.NoError(t, err)
	require.True(t, s.wants("hosts"))
	require.False(t, s.wants("latency"))
}

func TestRow(t *testing.T) {
	figures := func(name string, xs ...float64) contest.Figures { return contest.Figures{Name: name, Rounds: xs} }
	line := contest.Line{What: "x", Unit: "µs", Target: 1}
	good, bad := figures("good", 2, 1, 3), figures("bad")
	for _, test := range []struct {
		sides []contest.Figures
		of    contest.Basis
		want  string
	}{
		{[]contest.Figures{figures("weft", 4, 1, 2), bad, good}, contest.OfRatio, "| x | µs | **2** (1–4) | bad fails; good **2** (1–3) | 1.00 | ≤ 1 | yes |"},
		{[]contest.Figures{figures("weft", 4), good}, contest.OfDifference, "| x | µs | **4** (4–4) | good **2** (1–3) | 2.00 (+2.00 µs) | ≤ +1 µs | no |"},
		{[]contest.Figures{figures("weft", 4), bad}, contest.OfRatio, "| x | µs | **4** (4–4) | bad fails | – | – | – |"},
		{[]contest.Figures{figures("weft", 4)}, contest.OfFigure, "| x | µs | **4** (4–4) |  | – | ≤ 1 | no |"},
	} {
		line.Of = test.of
		require.Equal(t, test.want, row(&contest.Result{Line: line, Sides: test.sides}))
	}
}

func TestBadUsage(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"more"}, {"-only", "speed"}, {"-sizes", "0"}, {"-sizes", "8,x"}, {"-fast"}} {
		var errs strings.Builder
		require.Equal(t, 2, run(t.Context(), io.Discard, &errs, args))
		require.Contains(t, errs.String(), "compare: ")
	}
}
