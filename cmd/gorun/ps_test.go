package main

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPSAndStop: gorun -ps must have a row for a running job, by whose id gorun -stop must end the
// job. gorun -stop returns when the job has ended, so then the row is gone.
func TestPSAndStop(t *testing.T) {
	j := start(t, 3, build(t), "barrier")
	row := regexp.MustCompile(`(?m)^([0-9a-f]{16}) +` + strconv.Itoa(j.cmd.Process.Pid) + ` +3 +1 +\d+s +running +hang$`)
	code, out, errs := gorun(t, "-ps")
	require.Zero(t, code, errs)
	match := row.FindStringSubmatch(out)
	require.NotNil(t, match, out)

	code, out, errs = gorun(t, "-stop", match[1])
	require.Zero(t, code, errs)
	require.Empty(t, out)
	code, errs = j.end(t)
	require.Equal(t, 143, code)
	require.Contains(t, errs, "gorun: ended by signal 15 (SIGTERM)\n")

	_, out, _ = gorun(t, "-ps")
	require.NotRegexp(t, row, out)
	code, _, errs = gorun(t, "-stop", match[1])
	require.Equal(t, 1, code)
	require.Equal(t, "gorun: -stop: expected the id of a job of this user on this host, or the pid of its gorun, found \""+match[1]+"\"\n", errs)
}

// TestStopByPID: gorun -stop must end a job by the pid of its gorun, and wait for ranks that ignore
// SIGTERM until the grace period has ended them.
func TestStopByPID(t *testing.T) {
	j := start(t, 2, "-grace", "500ms", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done")
	code, _, errs := gorun(t, "-stop", strconv.Itoa(j.cmd.Process.Pid))
	require.Zero(t, code, errs)
	code, errs = j.end(t)
	require.Equal(t, 143, code)
	require.Contains(t, errs, "SIGKILL")
}
