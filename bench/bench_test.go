package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testprog"
)

// bin is the path of the folder with the built programs, for example gorun and bench.
var bin string

func TestMain(m *testing.M) {
	os.Exit(testprog.Main(m.Run, "weft-bench-", &bin, []string{"..", "-tags", buildTags, "./cmd/gorun", "./bench", "./bench/peers/hello", "./bench/compare"}))
}

// gorun runs a program of the folder bin with gorun. args are the program's name and its arguments.
func gorun(t *testing.T, ranks int, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	args[0] = filepath.Join(bin, args[0])
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "gorun"), append([]string{"-timeout", "1m", "-np", strconv.Itoa(ranks)}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.True(t, errors.As(err, &exit), "gorun %q: %v", args, err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// briefSizes returns a value of -sizes with two sizes, for which the benchmark takes a short time.
func (b *benchmark) briefSizes() string {
	if b.counts != "" {
		return "4,12"
	}
	return "8,100k"
}

// each calls f in a subtest for every benchmark, and for each number of ranks from 1 to 4 that the
// benchmark permits, or only for the smallest of them if all is false. args are the first arguments for the function gorun: the program bench, the
// benchmark, and flags that make the run short.
func each(t *testing.T, all bool, f func(t *testing.T, b *benchmark, ranks int, args []string)) {
	for _, b := range benchmarks {
		for ranks := 1; ranks <= 4; ranks++ {
			if b.checkRanks(ranks) != nil {
				continue
			}
			args := []string{"bench", b.name}
			if b != &idle {
				args = append(args, "-iters", "20")
			}
			if b.sizes != "" {
				args = append(args, "-sizes", b.briefSizes())
			}
			t.Run(fmt.Sprintf("%s/%d", b.name, ranks), func(t *testing.T) { f(t, b, ranks, args) })
			if !all {
				break
			}
		}
	}
}

// TestJSON: every benchmark verifies its data, and prints a line of JSON for each size.
func TestJSON(t *testing.T) {
	each(t, true, func(t *testing.T, b *benchmark, ranks int, args []string) {
		code, out, errs := gorun(t, ranks, append(args, "-json", "-time", "100ms")...)
		require.Zero(t, code, errs)
		lines := json.NewDecoder(strings.NewReader(out))
		lines.DisallowUnknownFields()
		var sizes []int
		for {
			var r result
			err := lines.Decode(&r)
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, out)
			sizes = append(sizes, r.Size)
			require.Equal(t, b.name, r.Bench)
			require.Equal(t, ranks, r.Ranks)
			require.NotEmpty(t, r.Transport)
			require.NotEmpty(t, r.Version)
			require.NotEmpty(t, r.Go)
			require.Positive(t, r.Cores)
			require.Positive(t, r.Iterations)
			require.Positive(t, r.Min)
			require.GreaterOrEqual(t, r.Median, r.Min)
			require.GreaterOrEqual(t, r.P99, r.Median)
			require.GreaterOrEqual(t, r.Mean, r.Min)
			require.Equal(t, b.sizes != "" && b.counts == "" && b != &idle || b == &waiters || b == &vector || b == &face || b == &fileWrite || b == &fileRead || b == &filePlain, r.Bandwidth > 0)
			require.Equal(t, b == &mr || b == &threads, r.Rate > 0)
			require.Equal(t, b == &overlap, r.Overlap != nil)
			require.Equal(t, b == &initialize, r.Finalized > 0)
			require.Equal(t, b == &idle, r.CPU > 0)
		}
		want, err := parseSizes("")
		if b.sizes != "" {
			want, err = parseSizes(b.briefSizes())
		}
		require.NoError(t, err)
		require.Equal(t, want, sizes)
		for _, key := range []string{"bench", "size", "ranks", "transport", "min_us", "median_us", "p99_us", "max_us", "bytes_per_s", "allocs_per_op"} {
			require.Contains(t, out, `"`+key+`":`)
		}
	})
}

// TestTable: every benchmark prints a table.
func TestTable(t *testing.T) {
	each(t, false, func(t *testing.T, b *benchmark, ranks int, args []string) {
		code, out, errs := gorun(t, ranks, append(args, "-time", "50ms")...)
		require.Zero(t, code, errs)
		rows := 1
		if b.sizes != "" {
			rows = 2
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Len(t, lines, 2+rows, out)
		require.True(t, strings.HasPrefix(lines[0], "# weft "+b.name+": "), out)
		require.True(t, strings.HasPrefix(lines[1], "# "+b.sizeUnit()+" "), out)
		for _, line := range lines[2:] {
			fields := strings.Fields(line)
			require.GreaterOrEqual(t, len(fields), 6)
			for _, field := range fields {
				_, err := strconv.ParseFloat(field, 64)
				require.NoError(t, err, out)
			}
		}
	})
}

func TestCheckOnly(t *testing.T) {
	code, out, errs := gorun(t, 3, "bench", "alltoall", "-sizes", "0,8,100k", "-check")
	require.Zero(t, code, errs)
	require.Equal(t, "alltoall of 0 bytes over 3 ranks: correct\nalltoall of 8 bytes over 3 ranks: correct\nalltoall of 102400 bytes over 3 ranks: correct\n", out)
	code, out, errs = gorun(t, 3, "bench", "cg", "-sizes", "16", "-check")
	require.Zero(t, code, errs)
	require.Equal(t, "cg of 16 rows over 3 ranks: correct\n", out)
}

func TestBadUsage(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, "expected the name of a benchmark first"},
		{[]string{"latencies"}, `no benchmark "latencies"`},
		{[]string{"-json", "latency"}, "expected the name of a benchmark first"},
		{[]string{"latency", "-sizes", "8,x"}, `-sizes: expected bytes such as 8, 64k or 1m, found "x"`},
		{[]string{"latency", "-sizes", "8..4"}, "ascends"},
		{[]string{"allreduce", "-sizes", "6"}, "6 is no multiple of 4"},
		{[]string{"barrier", "-sizes", "8"}, "barrier takes no sizes"},
		{[]string{"latency", "-iters", "-1"}, "-iters: expected 0 or more"},
		{[]string{"latency", "-time", "0"}, "-time: expected more than 0"},
		{[]string{"latency", "more"}, `unexpected argument "more"`},
		{[]string{"latency", "-fast"}, "flag provided but not defined: -fast"},
	} {
		_, err := parse(test.args, io.Discard)
		require.ErrorContains(t, err, test.want, "%q", test.args)
	}
	code, out, errs := gorun(t, 2, "bench", "latency", "-sizes", "x")
	require.Equal(t, 2, code)
	require.Empty(t, out)
	require.Contains(t, errs, "bench: -sizes: expected bytes")
	code, _, errs = gorun(t, 1, "bench", "latency")
	require.Equal(t, 1, code)
	require.Contains(t, errs, "latency needs two ranks or more, and has 1")
}

func TestHelp(t *testing.T) {
	var help strings.Builder
	_, err := parse([]string{"-h"}, &help)
	require.Error(t, err)
	for _, b := range benchmarks {
		require.Contains(t, help.String(), "  "+b.name+" ")
	}
}

func TestParseSizes(t *testing.T) {
	for _, test := range []struct {
		list string
		want []int
	}{
		{"", []int{0}},
		{"8", []int{8}},
		{"8,4096", []int{8, 4096}},
		{"0,1..10", []int{0, 1, 2, 4, 8}},
		{"3..12,1k", []int{3, 6, 12, 1024}},
		{"512k..2m", []int{512 << 10, 1 << 20, 2 << 20}},
		{"4G", []int{4 << 30}},
		{"8..8", []int{8}},
		{strconv.Itoa(math.MaxInt/2+1) + ".." + strconv.Itoa(math.MaxInt), []int{math.MaxInt/2 + 1}},
	} {
		got, err := parseSizes(test.list)
		require.NoError(t, err, test.list)
		require.Equal(t, test.want, got, test.list)
	}
	for _, bad := range []string{",", "8,", "k", "-8", "8..", "..8", "0..8", "8..4", "1.5k", "8 k", "9999999999g", "8kk", "0x8"} {
		_, err := parseSizes(bad)
		require.Error(t, err, bad)
	}
}

// FuzzParseSizes checks that parseSizes does not panic, and that it parses each size that it has
// returned, printed as a decimal number, to the same size.
func FuzzParseSizes(f *testing.F) {
	for _, s := range []string{"", "8,4096", "1..4m", "0", "1k..64k,3", "..", "9223372036854775807", "1..9223372036854775807"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		sizes, err := parseSizes(list)
		if err != nil {
			return
		}
		for _, n := range sizes {
			again, err := parseSizes(strconv.Itoa(n))
			require.NoError(t, err)
			require.Equal(t, []int{n}, again)
		}
	})
}
