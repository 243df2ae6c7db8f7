//go:build libfabric

package fi

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSignalsKill sends SIGTERM to a child process. The signal must end the child: no library that
// was loaded with libfabric may catch it.
func TestSignalsKill(t *testing.T) {
	const inChild = "WEFT_FI_TEST_SIGNAL"
	if os.Getenv(inChild) != "" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		time.Sleep(10 * time.Second)
		return
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestSignalsKill$")
	cmd.Env, cmd.Dir = append(os.Environ(), inChild+"=1"), dir
	require.Error(t, cmd.Run())
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.True(t, status.Signaled(), "exited with %d", status.ExitStatus())
	require.Equal(t, syscall.SIGTERM, status.Signal())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
