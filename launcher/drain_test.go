//go:build linux

package launcher

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// TestTimeoutWhileOutputIsNotRead: a rank writes more than a pipe holds, and no process reads
// gorun's stdout. The job must end at its timeout, with exit code 124.
func TestTimeoutWhileOutputIsNotRead(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	j := testJob(1, "-c", "head -c 200000 /dev/zero")
	j.Apps[0].Program, j.Timeout = "sh", 300*time.Millisecond
	var stderr strings.Builder
	res := Run(t.Context(), j, Stdio{Out: w, Err: &stderr})
	require.Equal(t, proto.ExitTimeout, res.ExitCode, stderr.String())
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
	require.Eventually(t, func() bool { return strings.HasPrefix(stderr.String(), "gorun: ") }, 10*time.Second, time.Millisecond)
}

// TestEachStartReadsTheSameInput: gorun's standard input is a file, whose offset is 8 at the start.
// The job fails and is restarted once. In both runs rank 0 must read the same lines, those after
// the offset.
func TestEachStartReadsTheSameInput(t *testing.T) {
	name := filepath.Join(t.TempDir(), "in")
	require.NoError(t, os.WriteFile(name, []byte("skipped\none\ntwo\n"), 0o600))
	in, err := os.Open(name)
	require.NoError(t, err)
	defer in.Close()
	_, err = in.Seek(8, io.SeekStart)
	require.NoError(t, err)
	// The rank exits with 2, as after a Go panic, and with 0 after the restart.
	j := testJob(1, "-c", `cat; exit $((2-2*$WEFT_EPOCH))`)
	j.Apps[0].Program, j.OnFailure, j.MaxRestarts, j.Stdin = "sh", job.FailRestart, 1, job.StdinRank0
	var out, stderr strings.Builder
	res := Run(t.Context(), j, Stdio{In: in, Out: &out, Err: &stderr})
	require.Zero(t, res.ExitCode, stderr.String())
	require.Equal(t, "one\ntwo\none\ntwo\n", out.String())
	require.Contains(t, stderr.String(), "gorun: starting again: restart 1 of at most 1\n")
}

// TestOneHostOfSeveralThatAreLostIsLeftOut: host h1 is lost, and with it h2, which is below h1 in
// the tree of agents. A restart must leave out only h1, because h2 may still work.
func TestOneHostOfSeveralThatAreLostIsLeftOut(t *testing.T) {
	r := testRun(3)
	r.hostsLost(proto.Lost{First: 1, Count: 2, Cause: "h1: no sign of life for 5s"})
	require.Equal(t, map[string]string{"h1": "h1: no sign of life for 5s"}, r.lost)
	require.Equal(t, "h1: no sign of life for 5s; 1 host behind it cannot be reached any more either", r.outcome.Reason)
}

// TestInvalidPorts: validPorts must return false if a port is not from 1 to 65535, if there is not
// one port for each rank, or if the plan has no address.
func TestInvalidPorts(t *testing.T) {
	for _, ports := range [][]int{{1, 2}, {0}, {-1}, {65536}, {70000, 1}} {
		require.False(t, validPorts(&proto.Plan{Address: "10.0.0.1", Ranks: make([]proto.Rank, 1)}, ports))
	}
	require.False(t, validPorts(&proto.Plan{Ranks: make([]proto.Rank, 1)}, []int{4000}))
	require.True(t, validPorts(&proto.Plan{Address: "10.0.0.1", Ranks: make([]proto.Rank, 1)}, []int{4000}))
}

// testRun returns a run in phasePreparing with n hosts, h0 to h(n-1), and one rank on each of them.
func testRun(n int) *run {
	s := &session{job: &job.Job{Apps: []job.App{{Program: "app", NP: n}}}, programs: make([]program, 1), host: "h0", out: newWriter(nil, nil)}
	s.out.finish()
	r := newRun(s, "id")
	r.phase, r.ranks, r.plans, r.used = phasePreparing, make([]rank, n), make([]proto.Plan, n), n
	for i := range n {
		r.hosts = append(r.hosts, host{Host: hosts.Host{Name: "h" + string(rune('0'+i))}, state: hostUp})
		r.ranks[i].host = i
		r.plans[i] = proto.Plan{Index: i, Ranks: []proto.Rank{{Rank: i}}}
	}
	return r
}
