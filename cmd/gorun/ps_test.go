package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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

// TestPSAtTheEnd: gorun waits for a reader of its trace, and the ranks have ended. gorun -ps and
// gorun -top must still know them.
func TestPSAtTheEnd(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	j := start(t, 2, "-trace", pipe, "sh", "-c", `echo up; exec "$0" work`, traced(t))
	row := regexp.MustCompile(`(?m)^[0-9a-f]{16} +` + strconv.Itoa(j.cmd.Process.Pid) + ` +2 +1 +\d+s +ending +sh$`)
	ended := regexp.MustCompile(`(?m)^0 .*ended$\n^1 .*ended$`)
	require.Eventually(t, func() bool {
		code, out, errs := gorun(t, "-ps")
		require.Zero(t, code, errs)
		return row.MatchString(out)
	}, time.Minute, time.Millisecond)
	code, out, errs := gorun(t, "-top", strconv.Itoa(j.cmd.Process.Pid))
	require.Zero(t, code, errs)
	require.Regexp(t, ended, out)
	_, err := os.ReadFile(pipe)
	require.NoError(t, err)
	code, errs = j.end(t)
	require.Zero(t, code, errs)
}
