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

// connectTimeout sets the tunable of a rank.
func connectTimeout(t testing.TB, text string) func(*transport.Config) {
	t.Helper()
	set, err := params.FromEnviron([]string{"WEFT_TRANSPORT_TCP_CONNECT_TIMEOUT=" + text})
	require.NoError(t, err)
	return func(c *transport.Config) { c.Params = set }
}

// TestSilentStrangers has eight times as many silent connections lie in the backlog of a
// rank as it keeps, before it starts. A peer that comes after them gets through before the
// eight times SilentTime for which the rank would keep them if there was room, and the silent
// ones are closed.
func TestSilentStrangers(t *testing.T) {
	f, addr := boundSocket(t)
	silent := make([]net.Conn, 0, 8*maxStrangers)
	for range cap(silent) {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		silent = append(silent, c)
	}
	all := nodes(t, 2, connectTimeout(t, "6s"), func(c *transport.Config) {
		if c.Self == 1 {
			c.Listener = f
		}
	})
	connected(t, all, 0, 1)
	for _, c := range silent {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		_, err := io.ReadAll(c)
		require.NotErrorIs(t, err, errTimeout) // it may be a reset
	}
}

// TestSilentStranger has a connection be silent for too long. It is closed without a
// notice: it may be of a peer that has no time.
func TestSilentStranger(t *testing.T) {
	all := nodes(t, 2)
	c, err := net.Dial("tcp", string(all[1].ep.Address()))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
	_, err = io.ReadAll(c)
	require.NotErrorIs(t, err, errTimeout)
	require.Empty(t, all[1].read(t))
}

// cutter passes connections on to an address, and cuts the first ones at a point of the
// handshake, one after the other.
func cutter(t *testing.T, to string, cuts ...func(initiator, responder net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() { // ends with the listener; the clean-up waits
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
			go func() { _, _ = io.Copy(in, out) }() // both end with the connection, at the latest in the clean-up
			go func() { _, _ = io.Copy(out, in) }()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return l.Addr().String()
}

// TestCutHandshake has handshakes end at each point before the verdict, as when a
// responder needs the room or has no time. The peer is not taken for dead: the next
// attempt succeeds.
func TestCutHandshake(t *testing.T) {
	all := nodes(t, 2)
	hello := func(in, out net.Conn) { _, _ = io.CopyN(out, in, wire.TCPHelloSize) }
	challenge := func(in, out net.Conn) {
		hello(in, out)
		_, _ = io.CopyN(in, out, wire.TCPChallengeSize)
	}
	proof := func(in, out net.Conn) { // which the responder does not get
		challenge(in, out)
		_, _ = io.CopyN(io.Discard, in, wire.TCPProofSize)
	}
	addr := cutter(t, string(all[1].ep.Address()), func(_, _ net.Conn) {}, hello, challenge, proof, proof)
	all[0].dom.av = &addressVector{}
	_, err := all[0].dom.av.Insert([]transport.Address{all[0].ep.Address(), transport.Address(addr)})
	require.NoError(t, err)
	connected(t, all, 0, 1)
}

// TestUndeliveredVerdict has an initiator go before the verdict on its connection. The
// responder has admitted it by then, and has given up its own attempt, but takes the
// peer for dead on neither account: it connects again.
func TestUndeliveredVerdict(t *testing.T) {
	all := nodes(t, 2)
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
	k.mu.Lock() // the responder cannot decide before the connection is gone
	_, err = c.Write(proof[:])
	require.NoError(t, err)
	raw, err := k.greeting[0].(*admission.Conn).SyscallConn()
	require.NoError(t, err)
	taken := false
	for end := time.Now().Add(patience); !taken && time.Now().Before(end); {
		require.NoError(t, raw.Control(func(fd uintptr) {
			_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			taken = err == unix.EAGAIN
		}))
	}
	require.NoError(t, c.(*net.TCPConn).SetLinger(0))
	require.NoError(t, c.Close())
	peer := all[1].dom.peer(0)
	peer.state = connWaiting // its own attempt is under way
	k.peers[0] = &link{cancel: func() {}, other: make(chan struct{}), addr: all[0].ep.Address()}
	k.mu.Unlock()
	require.True(t, taken)
	for end := time.Now().Add(patience); peer.state != connUp; {
		require.True(t, time.Now().Before(end))
		all[0].read(t)
		require.Empty(t, all[1].read(t))
	}
}

// fillDescriptors leaves some descriptors to this process, until release.
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

// starved is a rank, in a process of its own, that has too few descriptors for a
// connection with rank 0. It returns an error if its domain does not fail with one about
// this host.
func (n *node) starved(leave int) error {
	release, err := fillDescriptors(leave)
	if err != nil {
		return err
	}
	defer release()
	if err := os.Mkdir(os.Getenv("WEFT_TCP_TEST_READY"), 0o700); err != nil { // which takes no descriptor
		return err
	}
	if leave > 0 {
		if _, err := n.ep.Send(&transport.Op{Peer: 0, HeaderLen: 4}); err != nil {
			return err
		}
	}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		k, err := n.cq.Read(n.comp)
		switch {
		case err != nil && (!errors.Is(err, unix.EMFILE) || !errors.Is(err, errHere) || errors.Is(err, transport.ErrPeerDown) ||
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
	return errors.New("no failure")
}

// TestNoDescriptors has a rank lack descriptors for a connection, as the one that
// connects and as the one that is connected to. That is no end of the peer: the error is
// about this host.
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
				}, patience, time.Millisecond)
				_, err := n.ep.Send(&transport.Op{Peer: 1, HeaderLen: 4})
				require.NoError(t, err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }() // ends with the child, which is bounded
			for len(ended) == 0 {
				n.read(t)
				time.Sleep(time.Millisecond)
			}
			require.NoError(t, <-ended, "it says why")
		})
	}
}

// TestNoDescriptorsForAWhile has a process lack descriptors until some are closed: the
// connection comes then.
func TestNoDescriptorsForAWhile(t *testing.T) {
	all := nodes(t, 2)
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
