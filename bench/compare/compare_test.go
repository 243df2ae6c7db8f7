package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCompare goes through all that needs no libfabric, too briefly for the
// figures to mean anything.
func TestCompare(t *testing.T) {
	var out, progress bytes.Buffer
	code := run(t.Context(), &out, &progress, []string{"-only", "latency,bandwidth,start,idle", "-rounds", "1", "-time", "20ms", "-ranks", "3", "-block", "100ms"})
	require.Zero(t, code, progress.String())
	require.NotContains(t, out.String(), " fails")
	require.NotRegexp(t, "(?m)^Not installed.*(gcc|mpi)", out.String(), "make test installs what is missing")
	for _, row := range []string{
		`(?m)^\| tcp latency, 8 B, one way \| µs \| \*\*.*C, spinning \*\*.* \| ≤ 1\.25 \| (yes|no) \|$`,
		`(?m)^\| tcp bandwidth, 1 MiB \| GB/s \| \*\*.*Open MPI \*\*.* \| ≥ 2 \| (yes|no) \|$`,
		`(?m)^\| start to end of 3 ranks, hello \| s \| \*\*.*mpiexec\.hydra \*\*.*; mpirun \*\*.* \| ≤ 0\.5 \| (yes|no) \|$`,
		`(?m)^\| CPU time of a rank blocked in Recv for 100ms \| ms \| \*\*.*\|  \| – \| ≤ 50 \| (yes|no) \|$`,
	} {
		require.Regexp(t, row, out.String())
	}
}

func TestHold(t *testing.T) {
	const rounds = 3
	figures := func(name string, xs ...float64) side {
		return side{name, func(context.Context) (float64, error) {
			x := xs[0]
			xs = xs[1:]
			return x, nil
		}}
	}
	var out strings.Builder
	c := contest{what: "time", unit: "s", target: 0.5, ours: figures("weft", 4, 1, 2), peers: []side{figures("a", 9, 9, 1), figures("b", 3, 4, 5)}}
	met, err := c.hold(t.Context(), &out, io.Discard, rounds)
	require.NoError(t, err)
	require.True(t, met)
	require.Equal(t, "| time | s | **2** (1–4) | a **9** (1–9); b **4** (3–5) | 0.50 | ≤ 0.5 | yes |\n", out.String())
	out.Reset()
	c = contest{what: "speed", unit: "B/s", target: 2, more: true, ours: figures("weft", 4, 4, 4), peers: []side{figures("a", 1, 1, 1), figures("b", 3, 3, 3)}}
	met, err = c.hold(t.Context(), &out, io.Discard, rounds)
	require.NoError(t, err)
	require.False(t, met)
	require.Contains(t, out.String(), "| 1.33 | ≥ 2 | no |")
	out.Reset()
	c = contest{what: "time", unit: "µs", target: 0.15, difference: true, ours: figures("weft", 1.1, 1.1, 1.1), peers: []side{figures("a", 1, 1, 1)}}
	met, err = c.hold(t.Context(), &out, io.Discard, rounds)
	require.NoError(t, err)
	require.True(t, met)
	require.Contains(t, out.String(), "| 1.10 (+0.10 µs) | ≤ +0.15 µs | yes |")
}

func TestHoldAgainstOneThatFails(t *testing.T) {
	good := side{"good", func(context.Context) (float64, error) { return 2, nil }}
	bad := side{"bad", func(context.Context) (float64, error) { return 0, errors.New("no") }}
	var out bytes.Buffer
	c := &contest{what: "x", unit: "µs", ours: good, peers: []side{bad, good}, target: 1}
	met, err := c.hold(t.Context(), &out, io.Discard, 2)
	require.NoError(t, err)
	require.True(t, met)
	require.Contains(t, out.String(), "bad fails; good **2**")
	require.Contains(t, out.String(), "| 1.00 |")

	out.Reset()
	c.peers = []side{bad}
	_, err = c.hold(t.Context(), &out, io.Discard, 2)
	require.NoError(t, err)
	require.Contains(t, out.String(), "| bad fails | – | – | – |")

	c.ours = bad
	_, err = c.hold(t.Context(), &out, io.Discard, 2)
	require.Error(t, err)
}

func TestBadUsage(t *testing.T) {
	for _, args := range [][]string{{"-rounds", "0"}, {"more"}, {"-only", "speed"}, {"-sizes", "0"}, {"-sizes", "8,x"}, {"-fast"}} {
		var errs strings.Builder
		require.Equal(t, 2, run(t.Context(), io.Discard, &errs, args))
		require.Contains(t, errs.String(), "compare: ")
	}
}
