//go:build linux

package procs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWatchdogRemovesSegments checks that a watchdog removes the shared memory segment of a rank that
// has ended, but not after the line "end", and not a segment that is older than the job.
func TestWatchdogRemovesSegments(t *testing.T) {
	cmd := exec.Command("sh", "-c", "echo > /dev/shm/$$:0:1")
	begun := time.Now()
	require.NoError(t, cmd.Run())
	segment := filepath.Join("/dev/shm", fmt.Sprintf("%d:0:1", cmd.Process.Pid))
	for _, c := range []struct {
		since time.Time
		ends  string
		left  bool
	}{{begun, "end\n", true}, {begun.Add(time.Hour), "", true}, {begun, "", false}} {
		lines := fmt.Sprintf("job none\nsegments %d\ngroup %d\n%s", c.since.UnixNano(), cmd.Process.Pid, c.ends)
		require.Zero(t, watchdogMain(strings.NewReader(lines)))
		_, err := os.Stat(segment)
		require.Equal(t, c.left, err == nil)
	}
}

// TestWatchdogSparesReusedNumbers checks that the watchdog does not kill a process that has got the
// number of a reaped rank.
func TestWatchdogSparesReusedNumbers(t *testing.T) {
	for _, gone := range []string{"", "before", "now"} {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		require.NoError(t, cmd.Start())
		pid := cmd.Process.Pid
		lines, ends := fmt.Sprintf("job none\ngroup %d\n", pid), syscall.SIGKILL
		switch line := fmt.Sprintf("gone %d\n", pid); gone {
		case "before": // a rank of an earlier job had the same number
			lines = "job before\n" + line + lines
		case "now":
			lines, ends = lines+line, syscall.SIGTERM
		}
		require.Zero(t, watchdogMain(strings.NewReader(lines)))
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, ends, exit.Sys().(syscall.WaitStatus).Signal())
	}
}
