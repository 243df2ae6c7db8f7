//go:build linux

package procs

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestInputUnread checks that close does not wait for a reader that neither reads nor closes its
// pipe.
func TestInputUnread(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer closeFiles(r, w)
	size, err := unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 1<<20)
	require.NoError(t, err)
	_, err = w.Write(make([]byte, size))
	require.NoError(t, err)

	i, err := newInput(stdinAll, r, 2)
	require.NoError(t, err)
	// held keeps the pipe open, as a stuck rank would.
	held, err := unix.FcntlInt(uintptr(i.fd(0)), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { _ = unix.Close(held) }()
	room, err := unix.FcntlInt(uintptr(held), unix.F_GETPIPE_SZ, 0)
	require.NoError(t, err)
	i.started()
	for n := 0; n < room; time.Sleep(time.Millisecond) {
		n, err = unix.IoctlGetInt(held, unix.TIOCINQ)
		require.NoError(t, err)
	}
	i.close()
}
