package procs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStaleCgroup checks that newCgroup removes a cgroup whose name contains the pid of a process
// that no longer exists, and keeps a cgroup whose name contains the pid of a running process.
func TestStaleCgroup(t *testing.T) {
	live := newCgroup("live")
	if live == nil {
		t.Skip("this process may not make a cgroup")
	}
	defer live.end(leftoverLimit)
	gone := exec.Command("true")
	require.NoError(t, gone.Run())
	stale := filepath.Join(filepath.Dir(live.dir), fmt.Sprintf("weft-stale-%d", gone.Process.Pid))
	require.NoError(t, os.Mkdir(stale, 0o755))
	newCgroup("next").end(leftoverLimit)
	require.NoDirExists(t, stale)
	require.DirExists(t, live.dir)
}

// TestEndCgroup checks that endCgroup also removes the groups within the group, and that it returns
// at once if the group does not exist. Plain directories stand for the groups.
func TestEndCgroup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "weft-job-1")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "weft-inner-2", "pod"), 0o755))
	endCgroup(dir, time.Hour)
	require.NoDirExists(t, dir)
	endCgroup(dir, time.Hour)
}
