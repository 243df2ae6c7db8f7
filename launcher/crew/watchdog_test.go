package crew

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestWatchdogRemovesSegments tells a watchdog of a process that has ended.
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
