//go:build linux && !portable

package shm

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// TestMain runs the tests. In a child process, for which a test has set childVariable, it runs one
// rank of the test's job instead.
func TestMain(m *testing.M) {
	if what := os.Getenv(childVariable); what != "" {
		if err := child(what); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// deadline bounds each wait of a test.
const deadline = 20 * time.Second

func config(self, size int) transport.Config {
	return transport.Config{Self: transport.Addr(self), Size: size, JobID: "job", Secret: [32]byte{1, 2, 3}, OneHost: true}
}

// ranks returns the ranks 0 to n-1.
func ranks(n int) []transport.Addr {
	l := make([]transport.Addr, n)
	for i := range l {
		l[i] = transport.Addr(i)
	}
	return l
}

// node is a rank without weft's engine: the test itself calls its domain, queue and endpoint.
type node struct {
	*domain
	cq   transport.CompletionQueue
	av   transport.AddressVector
	ep   *endpoint
	comp []transport.Completion
}

func newNode(p transport.Provider, cfg transport.Config) (*node, error) {
	d, err := p.Open(cfg)
	if err != nil {
		return nil, err
	}
	n := &node{domain: d.(*domain), comp: make([]transport.Completion, 32)}
	if n.cq, err = d.OpenCQ(); err != nil {
		return nil, err
	}
	if n.av, err = d.OpenAV(); err != nil {
		return nil, err
	}
	ep, err := d.OpenEndpoint(n.av, n.cq)
	if err != nil {
		return nil, err
	}
	n.ep = ep.(*endpoint)
	return n, nil
}

// nodes opens the n ranks of a job in this process. They get one memory file in Config.Memory. The
// functions in change edit each rank's configuration first.
func nodes(t testing.TB, n int, p transport.Provider, change ...func(*transport.Config)) []*node {
	t.Helper()
	memory, err := newMemory()
	require.NoError(t, err)
	defer memory.Close()
	all := make([]*node, n)
	for i := range all {
		cfg := config(i, n)
		cfg.Memory, cfg.Locals = memory, ranks(n)
		for _, f := range change {
			f(&cfg)
		}
		all[i], err = newNode(p, cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, all[i].Close()) })
	}
	return all
}

// read reads the queue once, and returns the completions.
func (n *node) read(t testing.TB) []transport.Completion {
	t.Helper()
	k, err := n.cq.Read(n.comp)
	require.NoError(t, err)
	return n.comp[:k]
}

// await reads n's queue until it returns a completion of a kind, and returns the first such
// completion. It drops all other completions that it reads.
func (n *node) await(t testing.TB, kind transport.CompletionKind) transport.Completion {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		for _, c := range n.read(t) {
			if c.Kind == kind {
				return c
			}
		}
	}
	require.FailNow(t, "no completion of the kind came", "kind %d", kind)
	return transport.Completion{}
}

// send sends a message without a header to a rank. Send must return done.
func (n *node) send(t testing.TB, to int, data []byte) {
	t.Helper()
	done, err := n.ep.Send(&transport.Op{Peer: transport.Addr(to), Data: data})
	require.NoError(t, err)
	require.True(t, done)
}
