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

// TestMain runs the tests, or, started by one of them, its other process.
func TestMain(m *testing.M) {
	if what := os.Getenv("WEFT_TCP_TEST_CHILD"); what != "" {
		if err := child(what); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// node is a rank in the test's hands.
type node struct {
	dom  *domain
	cq   transport.CompletionQueue
	ep   *endpoint
	comp []transport.Completion
}

func newNode(cfg transport.Config) (*node, error) {
	dom, err := New().Open(cfg)
	if err != nil {
		return nil, err
	}
	n := &node{dom: dom.(*domain), comp: make([]transport.Completion, 16)}
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

// nodes opens n ranks of a job that know each other.
func nodes(t testing.TB, n int, change ...func(*transport.Config)) []*node {
	t.Helper()
	all := make([]*node, n)
	addrs := make([]transport.Address, n)
	for i := range all {
		cfg := config(i, n)
		for _, f := range change {
			f(&cfg)
		}
		var err error
		all[i], err = newNode(cfg)
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

// read reads the queue once.
func (n *node) read(t testing.TB) []transport.Completion {
	t.Helper()
	k, err := n.cq.Read(n.comp)
	require.NoError(t, err)
	return n.comp[:k]
}

const patience = 2 * time.Minute

// await reads the queues of all nodes until one of n's completions is what f
// wants; those are returned. Others of n are skipped.
func await(t testing.TB, all []*node, n *node, f func(*transport.Completion) bool) transport.Completion {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		for _, x := range all {
			for i, c := range x.read(t) {
				if x == n && f(&x.comp[i]) {
					return c
				}
			}
		}
	}
	t.Fatalf("nothing of the kind within %v", patience)
	return transport.Completion{}
}

func kind(k transport.CompletionKind) func(*transport.Completion) bool {
	return func(c *transport.Completion) bool { return c.Kind == k }
}

// connected makes the connection between two nodes.
func connected(t testing.TB, all []*node, a, b int) {
	t.Helper()
	op := &transport.Op{Peer: transport.Addr(b), HeaderLen: 4}
	_, err := all[a].ep.Send(op)
	require.NoError(t, err)
	await(t, all, all[b], kind(transport.RecvDone))
	for all[a].dom.peer(transport.Addr(b)).hasOutput() {
		all[a].read(t)
	}
}

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

// twoProcesses opens rank 0 here and starts rank 1 of two as a child.
func twoProcesses(t testing.TB, what string) (*node, *exec.Cmd) {
	t.Helper()
	f0, a0 := boundSocket(t)
	f1, a1 := boundSocket(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "WEFT_TCP_TEST_CHILD="+what, "WEFT_TCP_TEST_ADDRS="+a0+" "+a1)
	cmd.ExtraFiles = []*os.File{f1}
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() })
	cfg := config(0, 2)
	cfg.Listener = f0
	n, err := newNode(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.dom.Close()) })
	_, err = n.dom.av.Insert([]transport.Address{transport.Address(a0), transport.Address(a1)})
	require.NoError(t, err)
	return n, cmd
}

func child(what string) error {
	cfg := config(1, 2)
	cfg.Listener = os.NewFile(3, "listener")
	if strings.HasPrefix(what, "starved") {
		var err error
		if cfg.Params, err = params.FromEnviron([]string{"WEFT_TRANSPORT_TCP_CONNECT_TIMEOUT=200ms"}); err != nil {
			return err
		}
	}
	n, err := newNode(cfg)
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
	switch what {
	case "echo":
		pin(1)
		return n.echo()
	case "starved connects":
		return n.starved(1) // for the socket, and not for its duplicate
	case "starved accepts":
		return n.starved(0)
	case "hang", "serve": // says hello with the key of a region; "hang" is never heard of again
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
		if what == "serve" {
			pin(1)
			return n.echo()
		}
		select {} // until it is killed
	}
	return fmt.Errorf("what is %q", what)
}

// echo sends back all messages until the peer leaves.
func (n *node) echo() error {
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
				ctx, cancel := context.WithTimeout(context.Background(), patience)
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

// pin binds the calling thread, for ever, to one of two processors.
func pin(i int) {
	if have := sys.Allowed(0); len(have) >= 2 {
		_ = sys.Bind(have[i : i+1]) // measuring is all it is for
	}
}
