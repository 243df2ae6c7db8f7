package tcp

import (
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
)

// detectTime is the time within which ranks must detect that a peer has ended.
const detectTime = 2 * time.Second

// TestManyConnections has a rank with more connections than directConns, so that it uses the
// poller. Each Read returns one completion. The messages of all peers arrive in order. Then a peer
// ends, and the rank reports PeerDown.
func TestManyConnections(t *testing.T) {
	const n, count = 7, 50
	all := openRanks(t, n)
	all[0].comp = all[0].comp[:1] // so that whole messages stay in the input buffers after a Read
	for _, x := range all[1:] {
		for i := range count {
			op := &transport.Op{HeaderLen: 1, Data: make([]byte, i*100)}
			op.Header[0] = byte(i)
			_, err := x.ep.Send(op)
			require.NoError(t, err)
		}
	}
	var got [n]int
	total := 0
	await(t, all, all[0], func(c *transport.Completion) bool {
		require.Equal(t, transport.RecvDone, c.Kind)
		require.Equal(t, byte(got[c.Peer]), c.Msg[0])
		require.Len(t, c.Msg, 1+100*got[c.Peer])
		got[c.Peer]++
		total++
		return total == (n-1)*count
	})
	require.NoError(t, all[n-1].dom.Close())
	c := await(t, all[:1], all[0], kind(transport.PeerDown))
	require.Equal(t, transport.Addr(n-1), c.Peer)
	require.ErrorIs(t, c.Err, transport.ErrPeerDown)
}

// isHostFailure returns true only for errors that come from this host, because such an error makes
// the domain fail. ENETUNREACH is not among them: it may come from a router on the way to the peer.
func TestIsHostFailure(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EMFILE: true, unix.EADDRNOTAVAIL: true, unix.ENETDOWN: true,
		unix.ENETUNREACH: false, unix.EHOSTUNREACH: false, unix.ECONNREFUSED: false, net.ErrClosed: false,
	} {
		require.Equal(t, want, isHostFailure(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)}), err)
	}
}

// The domain fails only if failures of this host, without a success or a long pause in between, go
// on for half of transport.tcp.connect_timeout.
func TestHostFailureSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &links{timeout: 10 * time.Second, signal: func() {}}
		for range 3 { // single failures, far apart
			require.True(t, k.noteAccept(1, unix.EMFILE))
			time.Sleep(k.timeout)
		}
		for range 100 { // failures that are not due to this host
			require.True(t, k.noteAccept(1, net.ErrClosed))
			time.Sleep(100 * time.Millisecond)
		}
		require.Empty(t, k.results)
		for start := time.Now(); len(k.results) == 0; time.Sleep(100 * time.Millisecond) {
			require.True(t, k.noteAccept(1, unix.EMFILE))
			require.Less(t, time.Since(start), k.timeout)
		}
		require.ErrorIs(t, k.results[0].err, unix.EMFILE)
		require.False(t, k.noteAccept(1, nil))
	})
}

// inherited opens the n ranks of a job. Each gets a socket that listens already, as a rank may
// inherit it from the launcher.
func inherited(t *testing.T, n int) []*testRank {
	t.Helper()
	return openRanks(t, n, func(c *transport.Config) { c.Listener, _ = boundSocket(t) })
}

// requirePeerDown sends a message from n to rank gone, which has ended, and checks that the message
// fails and n reports PeerDown.
func requirePeerDown(t *testing.T, n *testRank, gone int) {
	t.Helper()
	_, err := n.ep.Send(&transport.Op{Peer: transport.Addr(gone)})
	require.NoError(t, err)
	failed := false
	c := await(t, []*testRank{n}, n, func(c *transport.Completion) bool {
		failed = failed || c.Kind == transport.OpDone && c.Err != nil
		return c.Kind == transport.PeerDown
	})
	require.True(t, failed, "the message must fail, too")
	require.Equal(t, transport.Addr(gone), c.Peer)
	require.ErrorIs(t, c.Err, transport.ErrPeerDown)
}

// TestDeadBeforeContact closes rank 0, with which no rank has a connection. Rank 1 sends to rank 0,
// detects that rank 0 has ended, and is closed; then rank 2 sends to rank 1, and so on. All ranks
// together take less than detectTime.
func TestDeadBeforeContact(t *testing.T) {
	const n = 6
	for name, open := range map[string]func(*testing.T) []*testRank{
		"inherited": func(t *testing.T) []*testRank { return inherited(t, n) },
		"own":       func(t *testing.T) []*testRank { return openRanks(t, n) },
	} {
		t.Run(name, func(t *testing.T) {
			all := open(t)
			start := time.Now()
			for i := range n - 1 {
				require.NoError(t, all[i].dom.Close())
				requirePeerDown(t, all[i+1], i)
			}
			require.Less(t, time.Since(start), detectTime)
		})
	}
}

// TestLeftBeforeContact shuts down and closes rank 0, with which no rank has a connection. Rank 1,
// which then sends to rank 0, reports it as down.
func TestLeftBeforeContact(t *testing.T) {
	all := inherited(t, 2)
	require.NoError(t, all[0].ep.Shutdown(t.Context()))
	require.NoError(t, all[0].dom.Close())
	start := time.Now()
	requirePeerDown(t, all[1], 0)
	require.Less(t, time.Since(start), detectTime)
}

// fullBacklog returns a listening socket whose backlog has no room for another connection.
func fullBacklog(t *testing.T) (f *os.File, addr string) {
	t.Helper()
	fd, err := sys.Socket(unix.AF_INET, unix.SOCK_STREAM)
	require.NoError(t, err)
	f = os.NewFile(uintptr(fd), "listener")
	t.Cleanup(func() { _ = f.Close() })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(fd, 0))
	sa, err := unix.Getsockname(fd)
	require.NoError(t, err)
	addr = (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*unix.SockaddrInet4).Port}).String()
	for range 100 {
		c, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			return f, addr
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the backlog does not fill up")
	return nil, ""
}

// TestBacklog has rank 0 connect to rank 1, which has not started. The socket of rank 1 listens
// already; its backlog is full ("full") or not ("room"). Rank 0 reports nothing while that socket
// is open and rank 1 does not run. It reports PeerDown when the socket is closed ("dies"), and
// connects when rank 1 starts ("starts").
func TestBacklog(t *testing.T) {
	for name, bind := range map[string]func(*testing.T) (*os.File, string){
		"full": fullBacklog,
		"room": func(t *testing.T) (*os.File, string) { return boundSocket(t) },
	} {
		waits := func(t *testing.T) (*testRank, *os.File, []transport.Address) {
			f, addr := bind(t)
			n, err := openRank(config(0, 2))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, n.dom.Close()) })
			addrs := []transport.Address{n.ep.Address(), transport.Address(addr)}
			_, err = n.dom.av.Insert(addrs)
			require.NoError(t, err)
			_, err = n.ep.Send(&transport.Op{Peer: 1, HeaderLen: 7})
			require.NoError(t, err)
			for end := time.Now().Add(answerTime + 100*time.Millisecond); time.Now().Before(end); {
				require.Empty(t, n.read(t))
				require.NoError(t, n.cq.Wait(10*time.Millisecond))
			}
			return n, f, addrs
		}
		t.Run(name+" dies", func(t *testing.T) {
			n, f, _ := waits(t)
			require.NoError(t, f.Close())
			start := time.Now()
			c := await(t, []*testRank{n}, n, kind(transport.PeerDown))
			require.Equal(t, transport.Addr(1), c.Peer)
			require.Less(t, time.Since(start), detectTime)
		})
		t.Run(name+" starts", func(t *testing.T) {
			n, f, addrs := waits(t)
			cfg := config(1, 2)
			cfg.Listener = f
			late, err := openRank(cfg)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, late.dom.Close()) })
			_, err = late.dom.av.Insert(addrs)
			require.NoError(t, err)
			c := await(t, []*testRank{n, late}, late, kind(transport.RecvDone))
			require.Len(t, c.Msg, 7)
		})
	}
}

// TestReleaseTimer checks how long an attempt to connect counts against maxDialing: for
// silentTime if the peer does not answer, otherwise until it ends, but at most answerTime after
// the answer.
func TestReleaseTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &links{dialing: semaphore.NewWeighted(1)}
		free := func() bool {
			synctest.Wait()
			ok := k.dialing.TryAcquire(1)
			if ok {
				k.dialing.Release(1)
			}
			return ok
		}
		attempt := func() (answered, done func()) {
			require.NoError(t, k.dialing.Acquire(t.Context(), 1))
			return k.releaseTimer()
		}
		_, done := attempt()
		time.Sleep(silentTime - time.Nanosecond)
		require.False(t, free())
		time.Sleep(time.Nanosecond)
		require.True(t, free())
		done()

		answered, done := attempt()
		time.Sleep(silentTime / 2)
		answered()
		time.Sleep(answerTime - time.Nanosecond)
		require.False(t, free())
		done()
		require.True(t, free())

		answered, done = attempt()
		answered()
		time.Sleep(answerTime)
		require.True(t, free())
		answered() // has no effect, because the timer has fired
		time.Sleep(2 * answerTime)
		done()
		require.True(t, free())
	})
}

// TestConnect has rank 0 call Connect for peers to which it sends no messages. Rank 0 detects that
// a peer has ended before the call, ends after the call, or has left the job.
func TestConnect(t *testing.T) {
	all := openRanks(t, 4)
	n := all[0]
	require.NoError(t, n.ep.Connect(0), "with itself")
	require.ErrorIs(t, n.ep.Connect(4), transport.ErrAddress)

	require.NoError(t, all[1].dom.Close())
	require.NoError(t, n.ep.Connect(1))
	c := await(t, all[:1], n, kind(transport.PeerDown))
	require.Equal(t, transport.Addr(1), c.Peer)
	require.ErrorIs(t, n.ep.Connect(1), transport.ErrPeerDown)

	require.NoError(t, n.ep.Connect(2))
	require.NoError(t, n.ep.Connect(2))
	for end := time.Now().Add(testTimeout); n.dom.peer(2).state != connUp && time.Now().Before(end); {
		require.Empty(t, n.read(t))
		all[2].read(t)
	}
	require.NoError(t, n.ep.Connect(2))
	require.NoError(t, all[2].dom.Close())
	c = await(t, all[:1], n, kind(transport.PeerDown))
	require.Equal(t, transport.Addr(2), c.Peer)

	shutdown(t, all[3])
	require.NoError(t, n.ep.Connect(3))
	c = await(t, all[:1], n, kind(transport.PeerLeft))
	require.Equal(t, transport.Addr(3), c.Peer)
}

// shutdown shuts down the endpoint of a rank that has no connections. The domain stays open.
func shutdown(t *testing.T, n *testRank) {
	t.Helper()
	require.NoError(t, n.ep.Shutdown(t.Context()))
}

// TestConnectDuringShutdown has a rank send one message and shut down, while the receiver of the
// message connects to the sender. The message arrives, whichever of the two connections is made.
func TestConnectDuringShutdown(t *testing.T) {
	for _, from := range []int{0, 1} {
		for range 50 {
			all := openRanks(t, 2)
			to := 1 - from
			op := &transport.Op{Peer: transport.Addr(to), HeaderLen: 4}
			require.NoError(t, all[to].ep.Connect(transport.Addr(from)))
			_, err := all[from].ep.Send(op)
			require.NoError(t, err)
			gone := make(chan error, 1)
			go func() { // ends when the receiver has read everything; the test waits for gone below
				gone <- all[from].ep.Shutdown(t.Context())
			}()
			var came []transport.CompletionKind
			await(t, all[to:to+1], all[to], func(c *transport.Completion) bool {
				came = append(came, c.Kind)
				return c.Kind == transport.PeerLeft || c.Kind == transport.PeerDown
			})
			require.Equal(t, []transport.CompletionKind{transport.RecvDone, transport.PeerLeft}, came)
			for len(gone) == 0 {
				all[to].read(t)
			}
			require.NoError(t, <-gone)
		}
	}
}
