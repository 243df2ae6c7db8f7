package tcp

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/transport"
)

// TestMain runs the tests. If a test has started this process as a child, it has set
// WEFT_TCP_TEST_CHILD to a task, and TestMain runs that task instead.
func TestMain(m *testing.M) {
	if task := os.Getenv("WEFT_TCP_TEST_CHILD"); task != "" {
		if err := child(task); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// testRank is a rank without weft's engine: the test itself calls its endpoint and its queue.
type testRank struct {
	dom  *domain
	cq   transport.CompletionQueue
	ep   *endpoint
	comp []transport.Completion
}

func openRank(cfg transport.Config) (*testRank, error) {
	dom, err := New().Open(cfg)
	if err != nil {
		return nil, err
	}
	n := &testRank{dom: dom.(*domain), comp: make([]transport.Completion, 16)}
	if n.cq, err = dom.OpenCQ(); err != nil {
		return nil, err
	}
	av, err := dom.OpenAV()
	if err != nil {
		return nil, err
	}
	ep, err := dom.OpenEndpoint(av, n.cq)
	if err != nil {
		return nil, err
	}
	n.ep = ep.(*endpoint)
	return n, nil
}

func config(self, size int) transport.Config {
	return transport.Config{Self: transport.Addr(self), Size: size, JobID: "job", Secret: [32]byte{1, 2, 3}, OneHost: true}
}

// openRanks opens the n ranks of a job in this process, and inserts their addresses in the address
// vector of each. The functions in change edit each rank's configuration first.
func openRanks(t testing.TB, n int, change ...func(*transport.Config)) []*testRank {
	t.Helper()
	all := make([]*testRank, n)
	addrs := make([]transport.Address, n)
	for i := range all {
		cfg := config(i, n)
		for _, f := range change {
			f(&cfg)
		}
		var err error
		all[i], err = openRank(cfg)
		require.NoError(t, err)
		addrs[i] = all[i].ep.Address()
		t.Cleanup(func() { require.NoError(t, all[i].dom.Close()) })
	}
	for _, x := range all {
		_, err := x.dom.av.Insert(addrs)
		require.NoError(t, err)
	}
	return all
}

// read reads the queue once and returns the completions.
func (n *testRank) read(t testing.TB) []transport.Completion {
	t.Helper()
	k, err := n.cq.Read(n.comp)
	require.NoError(t, err)
	return n.comp[:k]
}

const testTimeout = 2 * time.Minute

// await reads the queues of the ranks in all until f returns true for a completion of rank n, and
// returns that completion. It drops all other completions.
func await(t testing.TB, all []*testRank, n *testRank, f func(*transport.Completion) bool) transport.Completion {
	t.Helper()
	for end := time.Now().Add(testTimeout); time.Now().Before(end); {
		for _, x := range all {
			for i, c := range x.read(t) {
				if x == n && f(&x.comp[i]) {
					return c
				}
			}
		}
	}
	t.Fatalf("no such completion within %v", testTimeout)
	return transport.Completion{}
}

func kind(k transport.CompletionKind) func(*transport.Completion) bool {
	return func(c *transport.Completion) bool { return c.Kind == k }
}

// connected makes ranks a and b connect: a sends a message to b, and b receives it.
func connected(t testing.TB, all []*testRank, a, b int) {
	t.Helper()
	op := &transport.Op{Peer: transport.Addr(b), HeaderLen: 4}
	_, err := all[a].ep.Send(op)
	require.NoError(t, err)
	await(t, all, all[b], kind(transport.RecvDone))
	for all[a].dom.peer(transport.Addr(b)).hasOutput() {
		all[a].read(t)
	}
}

// boundSocket returns a socket that listens on a free port, and its address. Nothing accepts the
// connections yet.
func boundSocket(t testing.TB) (*os.File, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	t.Cleanup(func() { _ = f.Close() })
	return f, addr
}

// twoProcesses opens rank 0 of a job of two in this process, and starts rank 1 in a child process,
// which runs a task; see child.
func twoProcesses(t testing.TB, task string) (*testRank, *exec.Cmd) {
	t.Helper()
	f0, a0 := boundSocket(t)
	f1, a1 := boundSocket(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "WEFT_TCP_TEST_CHILD="+task, "WEFT_TCP_TEST_ADDRS="+a0+" "+a1)
	cmd.ExtraFiles = []*os.File{f1}
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	cfg := config(0, 2)
	cfg.Listener = f0
	n, err := openRank(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.dom.Close()) })
	_, err = n.dom.av.Insert([]transport.Address{transport.Address(a0), transport.Address(a1)})
	require.NoError(t, err)
	return n, cmd
}

// child opens rank 1 of a job of two, and runs one of these tasks: "echo" and "serve" send back
// each message, "hang" makes no progress, and "starved connects" and "starved accepts" lack
// descriptors.
func child(task string) error {
	cfg := config(1, 2)
	cfg.Listener = os.NewFile(3, "listener")
	if strings.HasPrefix(task, "starved") {
		var err error
		if cfg.Params, err = params.FromEnviron([]string{"WEFT_TRANSPORT_TCP_CONNECT_TIMEOUT=200ms"}); err != nil {
			return err
		}
	}
	n, err := openRank(cfg)
	// Otherwise the garbage collector would close it, and a starved rank would have its descriptor.
	_ = cfg.Listener.Close() // an error cannot harm, because the rank has a duplicate
	if err != nil {
		return err
	}
	var addrs []transport.Address
	for _, a := range strings.Fields(os.Getenv("WEFT_TCP_TEST_ADDRS")) {
		addrs = append(addrs, transport.Address(a))
	}
	if _, err := n.dom.av.Insert(addrs); err != nil {
		return err
	}
	switch task {
	case "echo":
		pin(1)
		return n.echo()
	case "starved connects":
		// One descriptor suffices for the socket, but not for its duplicate.
		return n.failWithoutDescriptors(1)
	case "starved accepts":
		return n.failWithoutDescriptors(0)
	case "hang", "serve":
		// Send the key of a region. Then "hang" makes no progress, and "serve" does what "echo"
		// does.
		mr, err := n.dom.RegisterMemory(make([]byte, 4<<20), transport.RemoteRead|transport.RemoteWrite)
		if err != nil {
			return err
		}
		op := &transport.Op{HeaderLen: 8}
		for i := range 8 {
			op.Header[i] = byte(mr.Key() >> (8 * i))
		}
		if _, err := n.ep.Send(op); err != nil {
			return err
		}
		for n.dom.peer(0).state != connUp || n.dom.peer(0).hasOutput() {
			if _, err := n.cq.Read(n.comp); err != nil {
				return err
			}
		}
		if task == "serve" {
			pin(1)
			return n.echo()
		}
		select {} // until the test kills the process
	}
	return fmt.Errorf("unknown task %q", task)
}

// echo sends back each message until the peer leaves.
func (n *testRank) echo() error {
	op := &transport.Op{}
	buf := make([]byte, n.dom.Attr().MaxMsgSize)
	for {
		k, err := n.cq.Read(n.comp)
		if err != nil {
			return err
		}
		for i := range n.comp[:k] {
			switch c := &n.comp[i]; c.Kind {
			case transport.RecvDone:
				op.HeaderLen = min(16, len(c.Msg))
				copy(op.Header[:], c.Msg)
				op.Data = buf[:copy(buf, c.Msg[op.HeaderLen:])]
				done, err := n.ep.Send(op)
				if err != nil {
					return err
				}
				for !done {
					m, err := n.cq.Read(n.comp[:1])
					if err != nil {
						return err
					}
					done = m > 0 && n.comp[0].Kind == transport.OpDone
				}
			case transport.PeerLeft:
				ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
				defer cancel()
				if err := n.ep.Shutdown(ctx); err != nil {
					return err
				}
				return n.dom.Close()
			case transport.PeerDown:
				return c.Err
			case transport.OpDone, transport.PeerNotice:
			}
		}
	}
}

// pin binds the calling thread to the first (i is 0) or second (i is 1) processor that the thread
// may use. Nothing undoes that. Benchmarks call pin for stable figures.
func pin(i int) {
	if allowed := sys.Allowed(0); len(allowed) >= 2 {
		_ = sys.Bind(allowed[i : i+1]) // if this fails, the figures are only less stable
	}
}
