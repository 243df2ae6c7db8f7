//go:build linux

package launcher

import (
	"bytes"
	"encoding/json"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/stats"
)

// TestStats: -stats prints each call with its number and bytes, and -stats-dir writes the same figures
// and the matrix. A rank that was killed has its figures, too, up to its end, and programs of another MPI
// have none.
func TestStats(t *testing.T) {
	program := filepath.Join(t.TempDir(), "account")
	text, err := exec.Command("go", "build", "-o", program, "./testdata/account").CombinedOutput()
	require.NoError(t, err, string(text))
	const large, small = 2 << 20, 10 * 8
	for name, test := range map[string]struct {
		use  string
		args []string
		code int
	}{
		"shm":    {"shm,tcp", nil, 0},
		"tcp":    {"tcp", nil, 0},
		"killed": {"shm,tcp", []string{"die"}, 137},
	} {
		t.Run(name, func(t *testing.T) {
			j := testJob(2, test.args...)
			j.Apps[0].Program, j.Stats, j.StatsDir = program, true, filepath.Join(t.TempDir(), "a", "b")
			j.Params = &params.Set{}
			require.NoError(t, j.Params.Set("transport.use", test.use, params.FromFlag))
			res, _, stderr := runJob(t, j)
			require.Equal(t, test.code, res.ExitCode, stderr)
			require.Regexp(t, `(?m)^Send +12  +2\.0 MiB `, stderr)
			require.Regexp(t, `(?m)^Ssend +1  +100 B `, stderr)
			require.Regexp(t, `(?m)^8 B to 15 B +10$`, stderr)

			s := readStats(t, filepath.Join(j.StatsDir, "stats.json"))
			require.Equal(t, 2, s.Ranks)
			require.Equal(t, []stats.Cell{{From: 0, To: 1, Messages: 12, Bytes: large + small}, {From: 1, To: 0, Messages: 1, Bytes: 100}}, s.Matrix)
			require.Positive(t, s.Elapsed.Mean)
			require.LessOrEqual(t, s.InCalls.Max, s.Elapsed.Max)
			data, err := os.ReadFile(filepath.Join(j.StatsDir, "matrix.png"))
			require.NoError(t, err)
			_, err = png.Decode(bytes.NewReader(data))
			require.NoError(t, err)
			require.FileExists(t, filepath.Join(j.StatsDir, "matrix.svg"))
		})
	}

	j := testJob(2)
	j.Apps[0].Program, j.Stats = mpich(t, "hello"), true
	res, _, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	require.Contains(t, stderr, "no statistics: no rank is a weft program")
}

// TestStatsOfRounds: a persistent collective counts once for each round, and not for its Init and Free; a
// sparse exchange, which ends with a barrier, counts once.
func TestStatsOfRounds(t *testing.T) {
	program := filepath.Join(t.TempDir(), "calls")
	text, err := exec.Command("go", "build", "-o", program, "./testdata/calls").CombinedOutput()
	require.NoError(t, err, string(text))
	j := testJob(2)
	j.Apps[0].Program, j.StatsDir = program, t.TempDir()
	res, _, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode, stderr)
	calls := make(map[string]stats.Call)
	for _, c := range readStats(t, filepath.Join(j.StatsDir, "stats.json")).Calls {
		calls[c.Name] = c
	}
	require.EqualValues(t, 2, calls["AllreduceInit"].Calls)
	require.EqualValues(t, 6, calls["Allreduce (persistent)"].Calls)
	require.Less(t, calls["Allreduce (persistent)"].Share, 0.5) // the program computes between the last round and Free
	require.NotContains(t, calls, "Barrier (persistent)")
	require.EqualValues(t, 2, calls["SparseAlltoall"].Calls)
}

func readStats(t *testing.T, name string) (s stats.Summary) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &s))
	return s
}

// TestStatsDir: a directory that cannot be made or written fails the job before its ranks start, and a
// disk that is full at the end fails the job with a cause.
func TestStatsDir(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	j := testJob(1)
	j.Apps[0].Program, j.StatsDir = "true", filepath.Join(file, "x")
	res, out, stderr := runJob(t, j)
	require.Equal(t, proto.ExitFailed, res.ExitCode)
	require.Contains(t, stderr, "not a directory")
	require.Empty(t, out)

	j = testJob(1)
	j.Apps[0].Program, j.StatsDir = "true", dir
	require.NoError(t, os.Mkdir(filepath.Join(dir, "stats.json"), 0o700)) // cannot be replaced by a file
	res, _, stderr = runJob(t, j)
	require.Equal(t, proto.ExitFailed, res.ExitCode)
	require.Contains(t, stderr, "gorun: statistics: ")
}
