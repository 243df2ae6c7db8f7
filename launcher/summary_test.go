//go:build linux

package launcher

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// TestFailureBeforeItsProcessIsNoted: gorun gets the abort of rank 1 before it knows the pid of
// rank 1. If gorun gets the pid before the job has ended, its message must contain the pid.
// Otherwise the message must be that the rank did not start.
func TestFailureBeforeItsProcessIsNoted(t *testing.T) {
	for pid, says := range map[int]string{
		4711: "gorun: rank 1 failed: the disk is full (exit code 7): app, pid 4711 on host; the other rank was ended\n",
		0:    "gorun: rank 1 did not start: failed: the disk is full\n",
	} {
		var stderr strings.Builder
		s := &session{job: &job.Job{Apps: []job.App{{Program: "app", NP: 2}}}, programs: make([]program, 1), host: "host", out: newWriter(nil, &stderr)}
		r := newRun(s, "id")
		r.hosts, r.ranks, r.ending = []host{{Host: hosts.Host{Name: "host"}}}, make([]rank, 2), true
		r.setOutcome(cause{rank: 1}, Failure{Rank: 1, ExitCode: 7, Reason: "failed: the disk is full"}, 7)
		r.ranks[1].pid = pid // as ranksStarted does
		r.groupEnded(proto.Ended{})
		require.Equal(t, 7, r.outcome.code)
		require.Equal(t, pid, r.outcome.PID)
		s.printFailure(r.outcome)
		s.out.finish()
		<-s.out.done
		require.Equal(t, says, stderr.String())
	}
}

// TestReasonIsWrittenOnce: comm.Main has written the reason of the failure of rank 1 to stderr, as
// "rank 1: REASON". gorun must leave these lines out when it prints the rank's last lines, because
// it prints the reason itself. It must leave out no other lines.
func TestReasonIsWrittenOnce(t *testing.T) {
	const head = "gorun: rank 1 failed: "
	for name, x := range map[string]struct {
		reason string
		stderr []string
		says   string
	}{
		"alone":         {"no grid", []string{"rank 1: no grid"}, head + "no grid: app, pid 7 on host\n"},
		"holds more":    {"no grid", []string{"ERROR no grid: see grid.log", "rank 1: no grid"}, head + "no grid: app, pid 7 on host\n" + lastLines("ERROR no grid: see grid.log")},
		"only in more":  {"no grid", []string{"ERROR no grid: see grid.log"}, head + "no grid: app, pid 7 on host\n" + lastLines("ERROR no grid: see grid.log")},
		"several lines": {"no grid\nno mesh", []string{"first", "rank 1: no grid", "no mesh", "bye"}, head + "no grid\nno mesh: app, pid 7 on host\n" + lastLines("first", "bye")},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			s := &session{out: newWriter(nil, &stderr)}
			s.printFailure(&outcome{Failure: Failure{Rank: 1, PID: 7, Program: "app", Host: "host", Reason: failedOf + x.reason, Stderr: x.stderr}})
			s.out.finish()
			<-s.out.done
			require.Equal(t, x.says, stderr.String())
		})
	}
}

func lastLines(lines ...string) string {
	return "gorun: the last lines that rank 1 wrote to stderr:\ngorun:   " + strings.Join(lines, "\ngorun:   ") + "\n"
}
