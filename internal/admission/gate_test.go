package admission

import (
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// testTimeout is the time after which a test fails because an event has not occurred. The events
// occur at once on a machine without load.
const testTimeout = 30 * time.Second

// serve makes a gate with this limit, which is closed at the end of the test. Its handlers read
// until the connection is closed. The channel came delivers each connection after its handler has
// started.
func serve(t *testing.T, limit int) (g *Gate, addr string, came <-chan *Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	conns := make(chan *Conn, 100)
	g = Serve(l.(*net.TCPListener), limit, func(c *Conn) {
		conns <- c
		_, _ = io.Copy(io.Discard, c) // returns when the gate or the other end closes the connection
	}, nil)
	t.Cleanup(func() {
		g.Close()
		g.Close()
		g.Wait()
	})
	return g, l.Addr().String(), conns
}

// dial opens a connection to a gate, and returns the gate's end of the connection.
func dial(t *testing.T, addr string, came <-chan *Conn) *Conn {
	t.Helper()
	there, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = there.Close() })
	return <-came
}

// closed reports whether the gate g has closed the connection c, which is not proved.
func closed(t *testing.T, g *Gate, c *Conn) bool {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	return !slices.Contains(g.pending, c)
}

// TestEviction: a connection arrives at a gate that has reached its limit. The gate closes the
// oldest connection on which nothing has arrived. If something has arrived on all of them, it
// closes the oldest one, once this one is older than SilentTime. A proved connection does not count
// and is not closed.
func TestEviction(t *testing.T) {
	g, addr, came := serve(t, 3)
	var heard, unread, first *Conn
	heard = dial(t, addr, came)
	heard.Heard()
	l, err := net.Listen("tcp", "127.0.0.1:0") // for the connection unread, whose bytes no handler reads
	require.NoError(t, err)
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer out.Close()
	in, err := l.Accept()
	require.NoError(t, err)
	_, err = out.Write([]byte{1})
	require.NoError(t, err)
	unread = &Conn{TCPConn: in.(*net.TCPConn), gate: g, since: time.Now()}
	require.True(t, g.enter(unread))
	defer g.running.Done()
	require.Eventually(t, unread.readable, testTimeout, time.Millisecond)
	first = dial(t, addr, came)
	second := dial(t, addr, came)
	require.True(t, closed(t, g, first))
	require.False(t, closed(t, g, heard))
	require.False(t, closed(t, g, unread))
	second.Heard()
	require.NoError(t, unread.Await())

	before := time.Now()
	// This call returns when the gate has closed heard, the oldest connection, because something
	// has arrived on all connections.
	dial(t, addr, came)
	require.GreaterOrEqual(t, time.Since(heard.since), SilentTime, before)
	require.True(t, closed(t, g, heard))
	require.False(t, closed(t, g, second))

	unread.Proved() // makes room, so the next connection closes no other one
	dial(t, addr, came)
	require.False(t, closed(t, g, second))
	second.Proved()
	second.Proved()
	g.Close()
	_, err = second.Write([]byte{1})
	require.NoError(t, err, "Close has closed a proved connection")
	_ = second.Close()
}

// TestSilence: Await returns ErrSilent if nothing arrives, net.ErrClosed if the gate closes the
// connection, and nil at the end of the stream.
func TestSilence(t *testing.T) {
	errs := make(chan error, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := Serve(l.(*net.TCPListener), 1, func(c *Conn) {
		errs <- c.Await()
		_ = c.Close()
	}, nil)
	defer func() {
		g.Close()
		g.Wait()
	}()
	silent, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer silent.Close()
	require.ErrorIs(t, <-errs, ErrSilent)
	ends, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, ends.Close())
	require.NoError(t, <-errs, "Await leaves the end of the stream to the handler")
	// Try again until Evict closes the connection before SilentTime has passed.
	for end := time.Now().Add(testTimeout); ; {
		evicted, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		for len(errs) == 0 {
			g.Evict()
			time.Sleep(time.Millisecond)
		}
		_ = evicted.Close()
		if err = <-errs; errors.Is(err, net.ErrClosed) {
			break
		}
		require.ErrorIs(t, err, ErrSilent)
		require.True(t, time.Now().Before(end), "Evict closes nothing")
	}
}

// TestSpare: a process that has no free file descriptor left still accepts one connection, because
// its gate holds a spare descriptor.
func TestSpare(t *testing.T) {
	g, addr, came := serve(t, 10)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	to := g.listener.Addr().(*net.TCPAddr)
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	low := was
	low.Cur = 128
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	}()
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		fds = append(fds, fd)
	}
	require.NoError(t, unix.Connect(fd, &unix.SockaddrInet4{Port: to.Port, Addr: [4]byte{127, 0, 0, 1}}))
	select {
	case c := <-came:
		c.Proved()
		_ = c.Close()
	case <-time.After(testTimeout):
		t.Fatalf("nothing was accepted at %s", addr)
	}
}
