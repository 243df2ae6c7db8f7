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

// TestTimeoutWhileOutputIsNotRead: if the ranks have ended well and no process reads their output,
// the job ends at its timeout.
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

// TestEachStartReadsTheSameInput: a restarted job reads its input again if that is a file.
func TestEachStartReadsTheSameInput(t *testing.T) {
	name := filepath.Join(t.TempDir(), "in")
	require.NoError(t, os.WriteFile(name, []byte("skipped\none\ntwo\n"), 0o600))
	in, err := os.Open(name)
	require.NoError(t, err)
	defer in.Close()
	_, err = in.Seek(8, io.SeekStart)
	require.NoError(t, err)
	j := testJob(1, "-c", `cat; exit $((2-2*$WEFT_EPOCH))`) // the exit code of a panic
	j.Apps[0].Program, j.OnFailure, j.MaxRestarts, j.Stdin = "sh", job.FailRestart, 1, job.StdinRank0
	var out, stderr strings.Builder
	res := Run(t.Context(), j, Stdio{In: in, Out: &out, Err: &stderr})
	require.Zero(t, res.ExitCode, stderr.String())
	require.Equal(t, "one\ntwo\none\ntwo\n", out.String())
	require.Contains(t, stderr.String(), "gorun: starting again: restart 1 of at most 1\n")
}

// TestOneHostOfSeveralThatAreLostIsLeftOut: if a host is lost with the hosts behind it in the tree,
// a restart leaves out only that host, because the others may be well.
func TestOneHostOfSeveralThatAreLostIsLeftOut(t *testing.T) {
	r := testRun(3)
	r.hostsLost(proto.Lost{First: 1, Count: 2, Cause: "h1: no sign of life for 5s"})
	require.Equal(t, map[string]string{"h1": "h1: no sign of life for 5s"}, r.lost)
	require.Equal(t, "h1: no sign of life for 5s; 1 host behind it cannot be reached any more either", r.outcome.Reason)
}

// TestInvalidPorts: gorun refuses ports that an agent cannot have bound.
func TestInvalidPorts(t *testing.T) {
	for _, ports := range [][]int{{1, 2}, {0}, {-1}, {65536}, {70000, 1}} {
		require.False(t, validPorts(&proto.Plan{Address: "10.0.0.1", Ranks: make([]proto.Rank, 1)}, ports))
	}
	require.False(t, validPorts(&proto.Plan{Ranks: make([]proto.Rank, 1)}, []int{4000}))
	require.True(t, validPorts(&proto.Plan{Address: "10.0.0.1", Ranks: make([]proto.Rank, 1)}, []int{4000}))
}

// testRun returns a run with one rank on each of n hosts, in the phase of preparation.
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

// TestStates: gorun fails a job when the reports of its hosts show that a rank waits for ever.
func TestStates(t *testing.T) {
	r := testRun(3)
	r.states.of[9] = proto.State{Left: -1, Absent: -1} // gorun has asked all hosts to report
	report := func(index, waiting int, begun bool, left, absent int) {
		r.checkState(proto.State{Index: index, Waiting: waiting, Begun: begun, Left: left, Absent: absent})
	}
	report(0, 0, true, -1, -1)
	report(1, 1, true, -1, -1)
	r.released = 1
	report(2, 0, true, 2, -1)
	require.Nil(t, r.outcome, "fence 1 was released, so no rank waits in it")
	report(1, 0, true, -1, -1)
	report(0, 2, true, -1, -1)
	require.Equal(t, "rank 2 did not start: ended while other ranks wait for it in a fence", r.outcome.Error())

	r = testRun(2)
	r.states.of[9] = proto.State{Left: -1, Absent: -1}
	report(0, 0, false, 0, 0)
	require.Nil(t, r.outcome)
	report(1, 0, true, -1, -1)
	require.Equal(t, "ended without Init, which other ranks have called", r.outcome.Reason)
}
