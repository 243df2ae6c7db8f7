//go:build linux

package launcher

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// TestReplaceFile: replaceFile must give a new file the permissions 0666 without those of the
// umask. It must keep the permissions of a file that it replaces, and a symbolic link to that file.
// It must leave no temporary files behind.
func TestReplaceFile(t *testing.T) {
	dir := t.TempDir()
	mode := func(name string) fs.FileMode {
		st, err := os.Lstat(filepath.Join(dir, name))
		require.NoError(t, err)
		return st.Mode()
	}
	umask := unix.Umask(0o027)
	defer unix.Umask(umask)
	require.NoError(t, replaceFile(filepath.Join(dir, "new"), []byte("1")))
	require.Equal(t, fs.FileMode(0o640), mode("new"))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "own"), nil, 0o600))
	require.NoError(t, os.Symlink("own", filepath.Join(dir, "link")))
	require.NoError(t, replaceFile(filepath.Join(dir, "link"), []byte("2")))
	require.Equal(t, fs.FileMode(0o600), mode("own"))
	require.Equal(t, fs.ModeSymlink, mode("link").Type())
	text, err := os.ReadFile(filepath.Join(dir, "own"))
	require.NoError(t, err)
	require.Equal(t, "2", string(text))

	require.Error(t, replaceFile(filepath.Join(dir, "none", "x"), nil))
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 3)
}

// TestReportMatchesItsSchema: reports of real jobs must match docs/report.schema.json, and the
// schema must have all of their keys.
func TestReportMatchesItsSchema(t *testing.T) {
	schema := reportSchema(t)
	for name, test := range map[string]struct {
		change func(j *job.Job)
		ranks  string // a state that at least one rank must have in the report; "": the report may have no ranks
	}{
		"well":   {func(*job.Job) {}, "exited"},
		"code":   {func(j *job.Job) { j.Apps[0].Args = []string{"fail", "1", "5"} }, "killed"},
		"signal": {func(j *job.Job) { j.Apps[0].Args = []string{"kill", "1"} }, "killed"},
		"spawned": {func(j *job.Job) {
			plan := spawnPlan{Spawns: [][]bootstrap.Command{{commandOf(1, "again")}, {commandOf(2, "kill", "1")}}, Then: "wait"}
			j.Apps[0].Args = spawnJob(t, 2, plan).Apps[0].Args
		}, "killed"},
		"no program": {func(j *job.Job) { j.Apps[0].Program = "./none" }, ""},
		"no host":    {func(j *job.Job) { j.Hosts = []hosts.Host{{Name: "none"}}; j.SSH, j.Radix, j.AtOnce = "false", 1, 1 }, ""},
		"restart": {func(j *job.Job) {
			j.Apps[0].Args, j.OnFailure, j.MaxRestarts = []string{"fail", "1", "5"}, job.FailRestart, 1
		}, "exited"},
		"notify": {func(j *job.Job) { j.Apps[0].Args, j.OnFailure = []string{"kill"}, job.FailNotify }, "killed"},
		"bound": {func(j *job.Job) {
			j.Bind, j.Slots, j.Hosts = job.BindCore, 3, []hosts.Host{{Name: "localhost", Slots: 3}}
		}, "exited"},
	} {
		j := testJob(2, "exit", "0")
		j.Report = filepath.Join(t.TempDir(), "report")
		test.change(j)
		runJob(t, j)
		text, err := os.ReadFile(j.Report)
		require.NoError(t, err, name)
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		require.NoError(t, err, name)
		require.NoError(t, schema.Validate(doc), "%s: %s", name, text)
		var r report
		require.NoError(t, json.Unmarshal(text, &r))
		require.Equal(t, version(), r.Gorun)
		states := ""
		for _, run := range r.Runs {
			for _, rk := range run.Ranks {
				states += rk.State
				if rk.State == "exited" || rk.State == "killed" {
					require.NotNil(t, rk.UserCPU, "%s: %s", name, text)
					require.Positive(t, *rk.UserCPU+*rk.SystemCPU, name)
					require.Greater(t, rk.MaxRSS, int64(1<<20), name)
				}
			}
		}
		require.Contains(t, states, test.ranks, "%s: %s", name, text)
	}
}

// TestReportHasWhatRanksUsed: rank 1 waits for a child process that computes. The CPU time of rank
// 1 in the report must include that of the child, so it must be more than three times that of rank
// 0.
func TestReportHasWhatRanksUsed(t *testing.T) {
	j := testJob(2, "-c", `[ $PMI_RANK = 0 ] || sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'; sleep 0.01`)
	j.Apps[0].Program, j.Report = "sh", filepath.Join(t.TempDir(), "report")
	runJob(t, j)
	text, err := os.ReadFile(j.Report)
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(text, &r))
	ranks := r.Runs[0].Ranks
	used := func(r reportRank) float64 { return *r.UserCPU + *r.SystemCPU }
	require.Greater(t, used(ranks[1]), 3*used(ranks[0]))
}

// TestReportHasAccounts: for each rank of a weft program that has called Finalize, the report must
// have the numbers of messages and bytes that the rank has sent and received. For other ranks it
// must have no such numbers.
func TestReportHasAccounts(t *testing.T) {
	const large, small = 2 << 20, 10 * 8
	zero := &reportComm{MessagesSent: 12, BytesSent: large + small, MessagesReceived: 1, BytesReceived: 100}
	one := &reportComm{MessagesSent: 1, BytesSent: 100, MessagesReceived: 12, BytesReceived: large + small}
	program, foreign := filepath.Join(t.TempDir(), "account"), mpich(t, "hello")
	text, err := exec.Command("go", "build", "-o", program, "./testdata/account").CombinedOutput()
	require.NoError(t, err, string(text))
	schema := reportSchema(t)
	for name, test := range map[string]struct {
		program, use string
		args         []string
		ranks        []*reportComm
	}{
		"shm":                          {program, "shm,tcp", nil, []*reportComm{zero, one}},
		"tcp":                          {program, "tcp", nil, []*reportComm{zero, one}},
		"one rank":                     {program, "shm,tcp", nil, []*reportComm{{}}},
		"dies":                         {program, "shm,tcp", []string{"die"}, []*reportComm{zero, nil}},
		"program of another MPI":       {foreign, "shm,tcp", nil, []*reportComm{nil, nil}},
		"program that is not parallel": {"true", "shm,tcp", nil, []*reportComm{nil, nil}},
	} {
		j := testJob(len(test.ranks), test.args...)
		j.Apps[0].Program, j.Report, j.OnFailure = test.program, filepath.Join(t.TempDir(), "report"), job.FailNotify
		j.Params = &params.Set{}
		require.NoError(t, j.Params.Set("transport.use", test.use, params.FromFlag))
		res, _, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, "%s: %s", name, stderr)
		text, err := os.ReadFile(j.Report)
		require.NoError(t, err, name)
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		require.NoError(t, err, name)
		require.NoError(t, schema.Validate(doc), "%s: %s", name, text)
		var r report
		require.NoError(t, json.Unmarshal(text, &r))
		for i, want := range test.ranks {
			got := r.Runs[0].Ranks[i]
			if want == nil {
				require.Nil(t, got.Comm, "%s: rank %d: %s", name, i, text)
				continue
			}
			require.NotNil(t, got.Comm, "%s: rank %d: %s", name, i, text)
			require.LessOrEqual(t, got.Comm.Wait, got.Ended.Sub(*got.Started).Seconds(), name)
			got.Comm.Wait = 0
			require.Equal(t, want, got.Comm, "%s: rank %d", name, i)
		}
	}
}

// reportSchema returns docs/report.schema.json, made stricter: no object may have keys that the
// schema does not name.
func reportSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile("../docs/report.schema.json")
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	closeObjects(doc)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("report.json", doc))
	schema, err := c.Compile("report.json")
	require.NoError(t, err)
	return schema
}

func closeObjects(doc any) {
	m, ok := doc.(map[string]any)
	if !ok {
		return
	}
	if m["type"] == "object" {
		m["additionalProperties"] = false
	}
	for _, v := range m {
		closeObjects(v)
	}
}
