//go:build linux

package cluster

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

// TestTrace traces examples/heat2d on two hosts. The monotonic clock of the second one, and of all that
// runs there, is more than an hour ahead, by a time namespace. Both clocks must be known within the error
// that the trace gives, and no message may arrive before it was sent by more than this error.
func TestTrace(t *testing.T) {
	c := hosts(t)
	const ahead = 5000 // seconds
	agent := filepath.Join(t.TempDir(), "gorun")
	script := fmt.Sprintf("#!/bin/sh\n[ $(hostname) = %s ] && exec unshare --time --monotonic %d --fork --kill-child %s \"$@\"\nexec %[3]s \"$@\"\n", c.name(2), ahead, run.Program("gorun"))
	require.NoError(t, os.WriteFile(agent, []byte(script), 0o755))
	for _, radix := range []string{"1", "64"} {
		file := filepath.Join(t.TempDir(), "trace.json")
		r := c.gorunOn("1:2,2:2", "-radix", radix, "-np", "4", "-agent-path", agent, "-trace", file, run.Program("heat2d")).Run(t)
		run.RequireLines(t, r, 0, "trace of 4 ranks: "+file)
		tr := run.ReadTrace(t, file)
		want := map[int]string{}
		for i := range 4 {
			want[i] = fmt.Sprintf("rank %d (%s)", i, c.name(i/2+1))
			require.Greater(t, tr.Calls[i], 100)
		}
		require.Equal(t, want, tr.Ranks)
		require.Equal(t, tr.Ends, 2*len(tr.Messages), "ends of messages without the other end")
		first, firstBound := tr.Clock(0)
		second, secondBound := tr.Clock(2)
		require.Positive(t, firstBound)
		require.Positive(t, secondBound)
		require.LessOrEqual(t, math.Abs(first), firstBound)
		require.LessOrEqual(t, math.Abs(second-ahead*1e9), secondBound)
		t.Logf("radix %s: clocks are wrong by %.1f and %.1f µs, at most %.1f and %.1f µs", radix, first/1000, (second-ahead*1e9)/1000, firstBound/1000, secondBound/1000)
		between, early := 0, 0.0
		for _, m := range tr.Messages {
			if m.From/2 != m.To/2 {
				between++
				early = max(early, m.Sent-m.Received)
			}
		}
		require.Greater(t, between, 100)
		require.LessOrEqual(t, early*1000, firstBound+secondBound+2000) // 2 µs: times are read one after the other
	}
}

// TestTraceOnAFullDisk runs ranks on a host whose directory for temporary files has room for few events. The
// job must end well, and gorun must say how many events the trace lacks.
func TestTraceOnAFullDisk(t *testing.T) {
	hosts(t)
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "trace.json")
	const script = `mount -t tmpfs -o size=256k none "$0" && TMPDIR=$0 && export TMPDIR && { "$@"; code=$?; ls -A "$0"; exit $code; }`
	cmd := exec.Command("unshare", "-m", "sh", "-c", script, dir, run.Program("gorun"), "-n", "2", "-trace", file, run.Program("heat2d"), "-steps", "100000", "-nx", "8", "-ny", "8")
	cmd.Env = run.CleanEnv()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `(?m)^gorun: the trace lacks \d{4,} events of ranks 0-1: no space left on device$`, string(out))
	require.Regexp(t, `gorun: trace of 2 ranks: `+file+"\n$", string(out))
	tr := run.ReadTrace(t, file)
	require.Len(t, tr.Ranks, 2)
	require.Greater(t, tr.Calls[0]+tr.Calls[1], 100) // one rank may have filled the disk alone
}

// TestTraceOfLostHost kills the agent of a host in a job that goes on. gorun must name the ranks without a
// trace, and have the events of the others.
func TestTraceOfLostHost(t *testing.T) {
	c := hosts(t)
	file := filepath.Join(t.TempDir(), "trace.json")
	p := c.gorunOn("1:2,2:2,3:2", "-on-failure", "notify", "-np", "6", "-trace", file, run.Rank(), "notify", "2").Start(t)
	p.AwaitStdout(6, "up\n")
	kill(t, c.only(2, run.Watchdog), c.only(2, agent))
	run.RequireLines(t, p.Wait(), 0, c.name(2)+": .*", "no trace of ranks 2-3 on "+c.name(2)+": its host is lost: "+c.name(2)+": .*", "trace of 4 ranks: "+file)
	tr := run.ReadTrace(t, file)
	require.Len(t, tr.Ranks, 4)
	for _, i := range []int{0, 1, 4, 5} {
		require.Positive(t, tr.Calls[i])
	}
}
