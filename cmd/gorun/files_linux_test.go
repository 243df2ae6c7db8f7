package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestInterruptWhileFilesHang: while gorun makes output files, the file server does not answer.
// SIGINT must end gorun all the same. Instead of such a server, the test has a lease on an output
// file, see fcntl(2): gorun's open(2) of the file blocks until the test gives up the lease, or for
// /proc/sys/fs/lease-break-time seconds.
func TestInterruptWhileFilesHang(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm") // a file system that has leases
	dir := t.TempDir()
	held, err := os.Create(filepath.Join(dir, "0.out"))
	require.NoError(t, err)
	defer held.Close()
	_, err = unix.FcntlInt(held.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	require.NoError(t, err)

	cmd := exec.Command(os.Args[0], "-n", "2", "-output", dir, "true")
	cmd.Env = append(os.Environ(), asGorun+"=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	defer cmd.Process.Kill()
	// The condition is true when gorun is in open(2): then the kernel has begun to break the lease.
	require.Eventually(t, func() bool {
		lease, err := unix.FcntlInt(held.Fd(), unix.F_GETLEASE, 0)
		return err == nil && lease != unix.F_WRLCK
	}, time.Minute, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	_ = cmd.Wait()
	f, err := os.OpenFile(held.Name(), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err == nil {
		_ = f.Close()
	}
	require.ErrorIs(t, err, syscall.EWOULDBLOCK, "gorun has waited for the lease to end")
	require.Equal(t, 130, cmd.ProcessState.ExitCode(), &stderr)
	require.Equal(t, "gorun: ended by signal 2 (SIGINT) before the ranks were started\n", stderr.String())
}
