package sys_test

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
)

// wait calls Wait, repeats the call if a signal ends it, and returns the numbers of the events.
func wait(t *testing.T, p *sys.Poller, ms int) (ids []int) {
	t.Helper()
	var events [4]sys.Event
	n, err := p.Wait(events[:], ms)
	for errors.Is(err, unix.EINTR) {
		n, err = p.Wait(events[:], ms)
	}
	require.NoError(t, err)
	for i := range n {
		ids = append(ids, events[i].ID())
	}
	return ids
}

func pair(t *testing.T) (a, b int) {
	t.Helper()
	p, err := sys.Socketpair()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = unix.Close(p[0]), unix.Close(p[1]) })
	return p[0], p[1]
}

func poller(t *testing.T) *sys.Poller {
	t.Helper()
	p, err := sys.NewPoller()
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

func TestPollerReportsWhatItIsAskedFor(t *testing.T) {
	p := poller(t)
	a, b := pair(t)
	require.NoError(t, p.Add(a, -7, sys.In))
	require.Error(t, p.Add(a, 8, sys.In))
	require.Empty(t, wait(t, p, 0))
	_, err := unix.Write(b, []byte("x"))
	require.NoError(t, err)
	require.Equal(t, []int{-7}, wait(t, p, -1))
	require.Equal(t, []int{-7}, wait(t, p, -1), "it is level-triggered")
	require.Equal(t, 1, sys.Unread(a))
	var events [4]sys.Event
	n, err := p.Now(events[:])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, p.Modify(a, 9, 0))
	require.Empty(t, wait(t, p, 0))
	require.NoError(t, p.Modify(a, 9, sys.In|sys.Out))
	require.Equal(t, []int{9}, wait(t, p, -1))
	p.Remove(a)
	p.Remove(a)
	require.Empty(t, wait(t, p, 0))
	require.Error(t, p.Modify(a, 9, sys.In))
}

func TestPollerReportsTheEndOfAStreamUnasked(t *testing.T) {
	p := poller(t)
	r, w, err := sys.Pipe()
	require.NoError(t, err)
	defer unix.Close(r)
	require.NoError(t, p.Add(r, 1, 0))
	require.NoError(t, unix.Close(w))
	require.Equal(t, []int{1}, wait(t, p, -1))
}

// TestPollerChangesDuringAWait checks that a descriptor that is added during a Wait ends the Wait
// when it is ready, and that Wait does not report a descriptor that was removed meanwhile.
func TestPollerChangesDuringAWait(t *testing.T) {
	p := poller(t)
	a, b := pair(t)
	c, d := pair(t)
	require.NoError(t, p.Add(a, 1, sys.In))
	got := make(chan []int)
	go func() { // ends when there is something to read
		for {
			if ids := wait(t, p, 60_000); len(ids) > 0 {
				got <- ids
				return
			}
		}
	}()
	time.Sleep(20 * time.Millisecond) // the goroutine probably waits by now; the test holds in either order
	p.Remove(a)
	_, err := unix.Write(b, []byte("x"))
	require.NoError(t, err)
	require.NoError(t, p.Add(c, 2, sys.In))
	_, err = unix.Write(d, []byte("x"))
	require.NoError(t, err)
	require.Equal(t, []int{2}, <-got)
}

// TestPollerIsFair checks that Wait reports each descriptor within some calls if more descriptors
// are ready than the caller has room for events.
func TestPollerIsFair(t *testing.T) {
	p := poller(t)
	for id := range 10 {
		a, b := pair(t)
		require.NoError(t, p.Add(a, id, sys.In))
		_, err := unix.Write(b, []byte("x"))
		require.NoError(t, err)
	}
	seen := make(map[int]bool)
	for range 20 {
		for _, id := range wait(t, p, -1) {
			seen[id] = true
		}
	}
	require.Len(t, seen, 10)
}

func TestWaker(t *testing.T) {
	w, err := sys.NewWaker()
	require.NoError(t, err)
	defer w.Close()
	p := poller(t)
	require.NoError(t, p.Add(w.FD(), 3, sys.In))
	w.Clear() // does not block
	require.Empty(t, wait(t, p, 0))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20_000 { // more than a pipe holds
				w.Wake()
			}
		})
	}
	all.Wait()
	require.Equal(t, []int{3}, wait(t, p, -1))
	w.Clear()
	require.Empty(t, wait(t, p, 0))
	w.Wake()
	require.Equal(t, []int{3}, wait(t, p, -1))
}

func TestDescriptorsAreNotInherited(t *testing.T) {
	check := func(fds ...int) {
		t.Helper()
		for _, fd := range fds {
			flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
			require.NoError(t, err)
			require.NotZero(t, flags&unix.FD_CLOEXEC)
			require.NoError(t, unix.Close(fd))
		}
	}
	p, err := sys.Socketpair()
	require.NoError(t, err)
	check(p[:]...)
	a, b, err := sys.Pipe()
	require.NoError(t, err)
	check(a, b)
	a, err = sys.Socket(unix.AF_INET, unix.SOCK_STREAM)
	require.NoError(t, err)
	check(a)
}

func TestDupTo(t *testing.T) {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(null)
	r, w, err := sys.Pipe()
	require.NoError(t, err)
	defer unix.Close(r)
	require.NoError(t, sys.DupTo(null, w))
	defer unix.Close(w)
	n, err := unix.Read(r, make([]byte, 1)) // DupTo has closed the pipe's last writer
	require.NoError(t, err)
	require.Zero(t, n)
	require.False(t, sys.IsTerminal(null))
}

// TestAwaitExit checks that AwaitExit returns when a child has ended, and does not reap the child.
func TestAwaitExit(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ended := make(chan error)
	go func() { ended <- sys.AwaitExit(cmd.Process.Pid) }() // ends with cat
	require.NoError(t, in.Close())
	require.NoError(t, <-ended)
	require.NoError(t, sys.AwaitExit(cmd.Process.Pid), "the child had ended before")
	require.NoError(t, unix.Kill(cmd.Process.Pid, 0), "the child's id is still in use")
	require.NoError(t, cmd.Wait())
}
