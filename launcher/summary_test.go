package launcher

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

// TestFailureBeforeItsProcessIsNoted has a rank abort before the thread that forked
// it has come to note its process id: it did start.
func TestFailureBeforeItsProcessIsNoted(t *testing.T) {
	for pid, says := range map[int]string{
		4711: "gorun: rank 1 called Abort: the disk is full (exit code 7): app, pid 4711 on host; the other rank was ended\n",
		0:    "gorun: rank 1 did not start: called Abort: the disk is full\n",
	} {
		var stderr strings.Builder
		r := &run{job: &job.Job{Apps: []job.App{{Program: "app", NP: 2}}}, path: []string{"app"}, host: "host", stderr: &stderr,
			ep: -1, wake: -1, wd: &watchdog{}, ranks: []rank{{pid: 4710, exited: true, pidfd: -1, ctl: -1}, {pidfd: -1, ctl: -1}}}
		var err error
		r.output, err = newOutput(2, false, nil, nil)
		require.NoError(t, err)
		r.output.closeFDs()
		close(r.output.done)
		r.blame(&Failure{Rank: 1, ExitCode: 7, Reason: "called Abort: the disk is full"}, 7)
		r.ranks[1].pid = pid // as fork notes it
		res := r.result()
		require.Equal(t, 7, res.ExitCode)
		require.Equal(t, pid, res.Failure.PID)
		require.Equal(t, says, stderr.String())
	}
}
