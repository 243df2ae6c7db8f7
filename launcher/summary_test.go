package launcher

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/hosts"
	"github.com/weft-hpc/weft/launcher/job"
	"github.com/weft-hpc/weft/launcher/proto"
)

// TestFailureBeforeItsProcessIsNoted has a rank abort before it is known to have
// been started: it did start.
func TestFailureBeforeItsProcessIsNoted(t *testing.T) {
	for pid, says := range map[int]string{
		4711: "gorun: rank 1 called Abort: the disk is full (exit code 7): app, pid 4711 on host; the other rank was ended\n",
		0:    "gorun: rank 1 did not start: called Abort: the disk is full\n",
	} {
		var stderr strings.Builder
		s := &session{job: &job.Job{Apps: []job.App{{Program: "app", NP: 2}}}, programs: make([]program, 1), host: "host", out: newWriter(nil, &stderr)}
		r := newRun(s, "id")
		r.hosts, r.ranks, r.ending = []host{{Host: hosts.Host{Name: "host"}}}, make([]rank, 2), true
		r.blame(cause{rank: 1}, Failure{Rank: 1, ExitCode: 7, Reason: "called Abort: the disk is full"}, 7)
		r.ranks[1].pid = pid // as Started says it
		r.allEnded(proto.Ended{})
		require.Equal(t, 7, r.verdict.code)
		require.Equal(t, pid, r.verdict.PID)
		s.tellFailure(r.verdict)
		s.out.finish()
		<-s.out.done
		require.Equal(t, says, stderr.String())
	}
}
