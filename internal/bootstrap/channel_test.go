package bootstrap

import (
	"encoding/json"
	"io"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

func TestChannel(t *testing.T) {
	pair, err := sys.Socketpair()
	require.NoError(t, err)
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	packets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	require.NoError(t, err)
	defer unix.Close(packets[0])
	defer unix.Close(packets[1])
	listener, err := net.Listen("unix", t.TempDir()+"/socket")
	require.NoError(t, err)
	defer listener.Close()
	listens, err := listener.(*net.UnixListener).File()
	require.NoError(t, err)
	defer listens.Close()
	tcp, err := sys.Socket(unix.AF_INET, unix.SOCK_STREAM)
	require.NoError(t, err)
	defer unix.Close(tcp)
	require.True(t, channel(pair[0]))
	for _, fd := range []int{-1, 1 << 20, packets[0], int(listens.Fd()), tcp} {
		require.False(t, channel(fd), "descriptor %d", fd)
	}
}

// TestFailureChannelOfCard checks that a rank whose card names a channel for failure reports reads
// what gorun writes to it, and that Close ends a Read that waits for more.
func TestFailureChannelOfCard(t *testing.T) {
	pair, err := sys.Socketpair()
	require.NoError(t, err)
	gorun := os.NewFile(uintptr(pair[0]), "gorun")
	defer gorun.Close()
	ctl, done := scriptedLauncher(t, stepInit, stepEnd)
	secret := NewSecret()
	w := openCard(t, ctl, &Card{
		JobID: "job1", Secret: secret[:], Size: 2, KVSName: "K", Control: ctl, Failures: pair[1], Epoch: 3,
		HostOf: Runs([]int{0, 0}), AppNums: Runs([]int{0, 0}),
	})
	require.Equal(t, 3, w.Epoch)
	require.NotNil(t, w.Failures)
	flags, err := unix.FcntlInt(uintptr(pair[1]), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)

	_, err = gorun.WriteString("failed 1\n")
	require.NoError(t, err)
	b := make([]byte, 100)
	n, err := w.Failures.Read(b)
	require.NoError(t, err)
	require.Equal(t, "failed 1\n", string(b[:n]))
	read := make(chan error, 1)
	go func() { // ends when Close ends the Read
		_, err := w.Failures.Read(b)
		read <- err
	}()
	time.Sleep(time.Millisecond) // the goroutine probably waits by now
	require.NoError(t, w.Failures.Close())
	require.ErrorIs(t, <-read, os.ErrClosed)
	require.NoError(t, w.KVS.Finalize())
	require.NoError(t, <-done)
}

// openCard opens the world of rank 0 of a card.
func openCard(t *testing.T, ctl int, c *Card) *World {
	t.Helper()
	f, err := c.Seal()
	require.NoError(t, err)
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3) // a duplicate, which Open closes
	require.NoError(t, err)
	require.NoError(t, f.Close())
	w, err := open(t.Context(), env(EnvJobFD, strconv.Itoa(fd), EnvRank, "0", "PMI_FD", strconv.Itoa(ctl),
		"PMI_RANK", "0", "PMI_SIZE", strconv.Itoa(c.Size)), io.Discard)
	require.NoError(t, err)
	return w
}

func TestBadFailureChannelOfCard(t *testing.T) {
	for _, spoil := range []func(c *Card){func(c *Card) { c.Failures = -1 }, func(c *Card) { c.Epoch = -1 }} {
		c := testCard()
		c.Version = cardVersion
		spoil(c)
		text, err := json.Marshal(c)
		require.NoError(t, err)
		_, err = parseCard(append([]byte(cardMagic), text...))
		require.Error(t, err)
	}
}

// TestFilesOfCard checks that a rank gets the files that its card names, and can write to them, and
// that a card with a bad descriptor of a file is refused.
func TestFilesOfCard(t *testing.T) {
	unnamed, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	require.NoError(t, os.Remove(unnamed.Name()))
	named, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer named.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer null.Close()
	removed := t.TempDir() + "/removed"
	require.NoError(t, os.WriteFile(removed, nil, 0o600))
	readable, err := os.Open(removed)
	require.NoError(t, err)
	defer readable.Close()
	require.NoError(t, os.Remove(removed))
	for _, fd := range []int{-1, 1 << 20, int(named.Fd()), int(readable.Fd()), int(null.Fd())} {
		require.False(t, rankFile(fd), "descriptor %d", fd)
	}
	ctl, done := scriptedLauncher(t, stepInit, stepEnd)
	secret := NewSecret()
	w := openCard(t, ctl, &Card{
		JobID: "job1", Secret: secret[:], Size: 2, KVSName: "K", Control: ctl, Files: []CardFile{{"cpu", inherit(t, unnamed)}},
		HostOf: Runs([]int{0, 0}), AppNums: Runs([]int{0, 0}),
	})
	require.Len(t, w.Files, 1)
	flags, err := unix.FcntlInt(w.Files["cpu"].Fd(), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	_, err = w.Files["cpu"].WriteString("x")
	require.NoError(t, err)
	require.NoError(t, w.Files["cpu"].Close())
	require.NoError(t, w.KVS.Finalize())
	require.NoError(t, <-done)

	c := testCard()
	c.Files = []CardFile{{"cpu", 0}}
	_, err = c.Seal()
	require.Error(t, err)
}
