package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/admission"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// connectTimeout returns a function that sets transport.tcp.connect_timeout in a rank's
// configuration.
func connectTimeout(t testing.TB, text string) func(*transport.Config) {
	t.Helper()
	set, err := params.FromEnviron([]string{"WEFT_TRANSPORT_TCP_CONNECT_TIMEOUT=" + text})
	require.NoError(t, err)
	return func(c *transport.Config) { c.Params = set }
}

// TestSilentConnections opens connections on which nothing is sent, eight times as many as a rank
// keeps, before the rank starts. Then a peer connects. If the rank kept each silent connection for
// admission.SilentTime, the peer would wait for eight times that long, which is more than the
// transport.tcp.connect_timeout of 6 s. The peer connects in time, and the rank closes the silent
// connections.
func TestSilentConnections(t *testing.T) {
	f, addr := boundSocket(t)
	silent := make([]net.Conn, 0, 8*maxUnproved) // more than the rank keeps at the same time
	for range cap(silent) {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		silent = append(silent, c)
	}
	all := openRanks(t, 2, connectTimeout(t, "6s"), func(c *transport.Config) {
		if c.Self == 1 {
			c.Listener = f
		}
	})
	connected(t, all, 0, 1)
	for _, c := range silent {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
		_, err := io.ReadAll(c)
		require.NotErrorIs(t, err, errTimeout) // the rank has closed c; a reset is allowed
	}
}

// TestSilentConnection opens a connection to a rank and sends nothing. The rank closes the
// connection and reports no PeerNotice, because the connection might come from a peer that gets no
// CPU time.
func TestSilentConnection(t *testing.T) {
	all := openRanks(t, 2)
	c, err := net.Dial("tcp", string(all[1].ep.Address()))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(testTimeout)))
	_, err = io.ReadAll(c)
	require.NotErrorIs(t, err, errTimeout)
	require.Empty(t, all[1].read(t))
}

// cutter returns the address of a proxy that relays connections to the address to. For the i-th
// connection, as long as cuts has an i-th function, the proxy calls that function, which relays a
// part of the handshake, and then closes the connection. It relays later connections whole.
func cutter(t *testing.T, to string, cuts ...func(initiator, responder net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() { // ends when the clean-up closes the listener; the clean-up waits for it
		defer close(ended)
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			if len(cuts) > 0 {
				cuts[0](in, out)
				cuts = cuts[1:]
				_ = in.Close()
				_ = out.Close()
				continue
			}
			t.Cleanup(func() {
				_ = in.Close()
				_ = out.Close()
			})
			// Both goroutines end when in or out is closed, at the latest in the clean-up.
			go func() { _, _ = io.Copy(in, out) }()
			go func() { _, _ = io.Copy(out, in) }()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return l.Addr().String()
}

// TestCutHandshake closes the connection of a handshake after each message before the verdict. A
// responder does that to make room for other connections, or if a message comes too late. The
// initiator does not report the peer as down: it tries again, and the last attempt succeeds.
func TestCutHandshake(t *testing.T) {
	all := openRanks(t, 2)
	hello := func(in, out net.Conn) { _, _ = io.CopyN(out, in, wire.TCPHelloSize) }
	challenge := func(in, out net.Conn) {
		hello(in, out)
		_, _ = io.CopyN(in, out, wire.TCPChallengeSize)
	}
	proof := func(in, out net.Conn) { // the initiator sends its proof, but the responder does not get it
		challenge(in, out)
		_, _ = io.CopyN(io.Discard, in, wire.TCPProofSize)
	}
	addr := cutter(t, string(all[1].ep.Address()), func(_, _ net.Conn) {}, hello, challenge, proof, proof)
	all[0].dom.av = &addressVector{}
	_, err := all[0].dom.av.Insert([]transport.Address{all[0].ep.Address(), transport.Address(addr)})
	require.NoError(t, err)
	connected(t, all, 0, 1)
}

// TestUndeliveredVerdict has an initiator close its connection before it gets the verdict. By
// then the responder has admitted the initiator, and so has ended its own attempt to connect with
// the initiator. The responder does not report the peer as down, but connects again.
func TestUndeliveredVerdict(t *testing.T) {
	all := openRanks(t, 2)
	k := all[1].dom.links
	c, err := net.Dial("tcp", string(all[1].ep.Address()))
	require.NoError(t, err)
	s := all[0].dom.links.id.session(0, 1)
	h := s.Hello()
	var b [wire.TCPHelloSize]byte
	h.Put(b[:])
	_, err = c.Write(b[:])
	require.NoError(t, err)
	var ch [wire.TCPChallengeSize]byte
	_, err = io.ReadFull(c, ch[:])
	require.NoError(t, err)
	require.True(t, wire.ParseTCPChallenge(ch[:], &s.Responder))
	proof := s.Proof()
	k.mu.Lock() // so that the responder cannot reach its verdict before the connection is closed
	_, err = c.Write(proof[:])
	require.NoError(t, err)
	raw, err := k.inHandshake[0].(*admission.Conn).SyscallConn()
	require.NoError(t, err)
	taken := false
	for end := time.Now().Add(testTimeout); !taken && time.Now().Before(end); {
		require.NoError(t, raw.Control(func(fd uintptr) {
			_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			taken = err == unix.EAGAIN
		}))
	}
	require.NoError(t, c.(*net.TCPConn).SetLinger(0))
	require.NoError(t, c.Close())
	peer := all[1].dom.peer(0)
	peer.state = connWaiting // as if the responder's own attempt were under way
	k.peers[0] = &link{cancel: func() {}, other: make(chan struct{}), addr: all[0].ep.Address()}
	k.mu.Unlock()
	require.True(t, taken)
	for end := time.Now().Add(testTimeout); peer.state != connUp; {
		require.True(t, time.Now().Before(end))
		all[0].read(t)
		require.Empty(t, all[1].read(t))
	}
}

// fillDescriptors lowers this process's limit of descriptors and opens descriptors until only leave
// of them are unused. release closes them and restores the limit.
func fillDescriptors(leave int) (release func(), err error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return nil, err
	}
	low := was
	low.Cur = 256
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		return nil, err
	}
	var fds []int
	for err == nil {
		var fd int
		if fd, err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	for _, fd := range fds[:leave] {
		_ = unix.Close(fd)
	}
	return sync.OnceFunc(func() {
		for _, fd := range fds[leave:] {
			_ = unix.Close(fd)
		}
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	}), nil
}

// failWithoutDescriptors leaves this process so few descriptors that it cannot connect with rank 0,
// and reads the queue of n until the domain fails. A child process runs it. If leave is not 0, rank
// n connects to rank 0; otherwise rank 0 connects. It returns nil if the domain fails with the
// right error, which says that this host has failed and how to raise the limit.
func (n *testRank) failWithoutDescriptors(leave int) error {
	release, err := fillDescriptors(leave)
	if err != nil {
		return err
	}
	defer release()
	// Mkdir needs no descriptor.
	if err := os.Mkdir(os.Getenv("WEFT_TCP_TEST_READY"), 0o700); err != nil {
		return err
	}
	if leave > 0 {
		if _, err := n.ep.Send(&transport.Op{Peer: 0, HeaderLen: 4}); err != nil {
			return err
		}
	}
	for end := time.Now().Add(testTimeout); time.Now().Before(end); {
		k, err := n.cq.Read(n.comp)
		switch {
		case err != nil && (!errors.Is(err, unix.EMFILE) || !errors.Is(err, errThisHost) || errors.Is(err, transport.ErrPeerDown) ||
			!strings.HasPrefix(err.Error(), "tcp: connect rank 0 at ") || !strings.Contains(err.Error(), "raise the limit of open files (ulimit -n), which is 256")):
			return err
		case err != nil:
			return nil
		case k > 0:
			return fmt.Errorf("%+v", n.comp[0])
		}
		if err := n.cq.Wait(10 * time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the domain did not fail")
}

// TestNoDescriptors has a rank in a child process lack descriptors for a connection that it makes,
// or that rank 0 makes. The rank does not report rank 0 as down: its domain fails with an error
// that says that this host has failed. The child checks that, in failWithoutDescriptors.
func TestNoDescriptors(t *testing.T) {
	for _, what := range []string{"starved connects", "starved accepts"} {
		t.Run(what, func(t *testing.T) {
			ready := filepath.Join(t.TempDir(), "ready")
			t.Setenv("WEFT_TCP_TEST_READY", ready)
			n, cmd := twoProcesses(t, what)
			if what == "starved accepts" {
				require.Eventually(t, func() bool {
					_, err := os.Stat(ready)
					return err == nil
				}, testTimeout, time.Millisecond)
				_, err := n.ep.Send(&transport.Op{Peer: 1, HeaderLen: 4})
				require.NoError(t, err)
			}
			ended := make(chan error, 1)
			// The goroutine ends with the child, which runs no longer than testTimeout.
			go func() { ended <- cmd.Wait() }()
			for len(ended) == 0 {
				n.read(t)
				time.Sleep(time.Millisecond)
			}
			require.NoError(t, <-ended, "the child prints the reason")
		})
	}
}

// TestNoDescriptorsForAWhile has two ranks of one process lack descriptors for a connection during
// 100 ms. No rank reports an error meanwhile. When descriptors are free again, the ranks connect.
func TestNoDescriptorsForAWhile(t *testing.T) {
	all := openRanks(t, 2)
	release, err := fillDescriptors(0)
	require.NoError(t, err)
	defer release()
	_, err = all[0].ep.Send(&transport.Op{Peer: 1, HeaderLen: 4})
	require.NoError(t, err)
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		require.Empty(t, all[0].read(t))
	}
	release()
	await(t, all, all[1], kind(transport.RecvDone))
}
