package crew

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStaleCgroup: the group of a process that has gone is removed, that of one that
// lives is not.
func TestStaleCgroup(t *testing.T) {
	live := newCgroup("live")
	if live == nil {
		t.Skip("this process may make no cgroup")
	}
	defer live.end(sweepLimit)
	gone := exec.Command("true")
	require.NoError(t, gone.Run())
	stale := filepath.Join(filepath.Dir(live.dir), fmt.Sprintf("weft-stale-%d", gone.Process.Pid))
	require.NoError(t, os.Mkdir(stale, 0o755))
	newCgroup("next").end(sweepLimit)
	require.NoDirExists(t, stale)
	require.DirExists(t, live.dir)
}

// TestEndCgroup: groups within the group go with it, and one that has gone already is
// not waited for.
func TestEndCgroup(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "weft-job-1")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "weft-inner-2", "pod"), 0o755))
	endCgroup(dir, time.Hour)
	require.NoDirExists(t, dir)
	endCgroup(dir, time.Hour)
}
