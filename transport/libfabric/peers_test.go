//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

const testTimeout = 20 * time.Second

// node is a rank of the test. It makes progress only when the test calls [node.poll].
type node struct {
	dom  *domain
	cq   transport.CompletionQueue
	ep   transport.Endpoint
	comp []transport.Completion
	seen []transport.Completion // completions that [node.poll] has read, except messages
	msgs []string               // messages that [node.poll] has read
}

func newNode(t testing.TB, prov string, cfg transport.Config) *node {
	t.Helper()
	return openNode(t, withProvider(t, prov), cfg)
}

func openNode(t testing.TB, p transport.Provider, cfg transport.Config) *node {
	t.Helper()
	cfg.OneHost = true
	d, err := p.Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	n := &node{dom: d.(*domain), comp: make([]transport.Completion, 16)}
	n.cq, err = d.OpenCQ()
	require.NoError(t, err)
	av, err := d.OpenAV()
	require.NoError(t, err)
	n.ep, err = d.OpenEndpoint(av, n.cq)
	require.NoError(t, err)
	return n
}

func config(self, size int) transport.Config {
	return transport.Config{Self: transport.Addr(self), Size: size, JobID: "job", Secret: [32]byte{1, 2, 3}}
}

// pair opens two ranks and inserts the addresses of both into the address vectors of both. change,
// if not nil, modifies the config of b.
func pair(t testing.TB, prov string, change func(*transport.Config)) (a, b *node) {
	t.Helper()
	cfg := config(1, 2)
	if change != nil {
		change(&cfg)
	}
	a, b = newNode(t, prov, config(0, 2)), newNode(t, prov, cfg)
	addrs := []transport.Address{a.ep.Address(), b.ep.Address()}
	for _, n := range []*node{a, b} {
		_, err := n.dom.av.Insert(addrs)
		require.NoError(t, err)
	}
	return a, b
}

func (n *node) poll(t testing.TB) {
	t.Helper()
	k, err := n.cq.Read(n.comp)
	require.NoError(t, err)
	for _, c := range n.comp[:k] {
		if c.Kind == transport.RecvDone {
			n.msgs = append(n.msgs, string(c.Msg))
		} else {
			n.seen = append(n.seen, c)
		}
	}
}

// until polls nodes until cond returns true. The test fails after testTimeout.
func until(t testing.TB, cond func() bool, nodes ...*node) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !cond(); {
		for _, n := range nodes {
			n.poll(t)
		}
		require.False(t, time.Now().After(end), "condition not met within %v", testTimeout)
	}
}

// send sends a message. As long as Send returns ErrAgain, send polls nodes and tries again. It
// returns the last result of Send.
func send(t testing.TB, from *node, to transport.Addr, text string, nodes ...*node) error {
	t.Helper()
	op := &transport.Op{Peer: to, Data: []byte(text)}
	var err error
	until(t, func() bool {
		_, err = from.ep.Send(op)
		return !errors.Is(err, transport.ErrAgain)
	}, nodes...)
	return err
}

func kinds(l []transport.Completion, k transport.CompletionKind) (n int) {
	for _, c := range l {
		if c.Kind == k {
			n++
		}
	}
	return n
}

// TestPeerDies closes rank 1 without Shutdown after both ranks have exchanged messages, as if its
// process had died. Rank 0 must report it down once, and then refuse to send to it.
func TestPeerDies(t *testing.T) {
	for _, prov := range []string{"tcp;ofi_rxm", libfabrictest.XNet(), "sockets"} {
		t.Run(prov, func(t *testing.T) {
			a, b := pair(t, prov, nil)
			require.NoError(t, send(t, a, 1, "hello", a, b))
			until(t, func() bool { return len(b.msgs) == 1 }, a, b)
			require.NoError(t, send(t, b, 0, "and you", a, b))
			until(t, func() bool { return len(a.msgs) == 1 }, a, b)
			require.NoError(t, b.dom.Close())
			var err error
			until(t, func() bool { err = send(t, a, 1, "are you there?", a); return err != nil }, a)
			require.ErrorIs(t, err, transport.ErrPeerDown)
			until(t, func() bool { return kinds(a.seen, transport.PeerDown) > 0 }, a)
			require.ErrorIs(t, send(t, a, 1, "still?", a), transport.ErrPeerDown)
			a.poll(t)
			require.Equal(t, 1, kinds(a.seen, transport.PeerDown), "PeerDown is reported once")
		})
	}
}

// TestStranger checks that rank 0 drops a message, and reports a PeerNotice, if the sender knows
// the address of rank 0 but has another secret, another job id or a rank that the job does not
// have.
func TestStranger(t *testing.T) {
	for name, change := range map[string]func(*transport.Config){
		"another secret": func(c *transport.Config) { c.Secret[0]++ },
		"another job":    func(c *transport.Config) { c.JobID = "jobs" },
		"another rank":   func(c *transport.Config) { c.Self, c.Size = 2, 3 },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, "tcp;ofi_rxm", change)
			require.NoError(t, send(t, b, 0, "let me in", a, b))
			until(t, func() bool { return kinds(a.seen, transport.PeerNotice) > 0 }, a, b)
			require.Empty(t, a.msgs)
			require.ErrorIs(t, a.seen[0].Err, errToken)
		})
	}
}

// TestEarly gives a rank messages in another order than that of their numbers. The rank must
// deliver them in the order of the numbers.
func TestEarly(t *testing.T) {
	a, _ := pair(t, "tcp;ofi_rxm", nil)
	d := a.dom
	message := func(number uint32, k kind, text string) []byte {
		b := make([]byte, frameSize, frameSize+len(text))
		frame{d.tokens(1).rx, 1, k, number & numberMask}.put(b)
		return append(b, text...)
	}
	d.peers[1].got = numberMask - 2 // so that the numbers wrap round during the test
	first := uint32(numberMask - 1)
	for _, i := range []uint32{3, 1, 2, 5} {
		d.message(message(first+i, kindData, string(rune('a'+i))))
	}
	a.poll(t)
	require.Empty(t, a.msgs)
	d.message(message(first, kindData, "a"))
	a.poll(t)
	require.Equal(t, []string{"a", "b", "c", "d"}, a.msgs)
	d.message(message(first+6, kindClose, ""))
	d.message(message(first+4, kindData, "e"))
	until(t, func() bool { return kinds(a.seen, transport.PeerLeft) == 1 }, a)
	require.Equal(t, []string{"a", "b", "c", "d", "e", "f"}, a.msgs, "all messages, before PeerLeft")
	require.Nil(t, d.peers[1].early)
}

// TestManyEarly gives a rank more messages before the missing one than one Read returns, and
// further messages while some of them still wait. The rank must deliver all in the order of their
// numbers.
func TestManyEarly(t *testing.T) {
	const n = 200
	a, _ := pair(t, "tcp;ofi_rxm", nil)
	give := func(number int) {
		b := make([]byte, frameSize)
		frame{a.dom.tokens(1).rx, 1, kindData, uint32(number)}.put(b)
		a.dom.message(append(b, fmt.Sprint(number)...))
	}
	for i := 2; i <= n; i++ {
		give(i)
	}
	give(1)
	var want []string
	for i := 1; i <= 2*n; i++ {
		want = append(want, fmt.Sprint(i))
		if i > n {
			give(i)
			a.poll(t)
		}
	}
	until(t, func() bool { return len(a.msgs) == 2*n }, a)
	require.Equal(t, want, a.msgs)
}

// TestEarlyPause checks that a message that is missing for longer than earlyTimeout counts as lost
// only if the rank has polled more than earlyMinPolls times meanwhile.
func TestEarlyPause(t *testing.T) {
	a, _ := pair(t, "tcp;ofi_rxm", nil)
	for _, number := range []uint32{3, 2, 4} {
		b := make([]byte, frameSize)
		frame{a.dom.tokens(1).rx, 1, kindData, number}.put(b)
		if number == 4 {
			a.dom.polls += earlyMinPolls + 1
		}
		a.dom.message(b)
		a.poll(t)
		a.poll(t)
		require.Equal(t, number == 4, kinds(a.seen, transport.PeerDown) == 1, "%d", number)
		if number == 3 {
			a.dom.peers[1].early.since = time.Now().Add(-time.Hour)
		}
	}
}

func TestTwice(t *testing.T) {
	a, _ := pair(t, "tcp;ofi_rxm", nil)
	b := make([]byte, frameSize)
	frame{a.dom.tokens(1).rx, 1, kindData, 1}.put(b)
	a.dom.message(b)
	a.dom.message(b)
	a.poll(t)
	a.poll(t)
	require.Equal(t, 1, kinds(a.seen, transport.PeerDown))
	require.ErrorIs(t, a.seen[0].Err, transport.ErrProtocol)
}

// TestAtomicToSelf lets rank 0 and rank 1 by turns add to an integer of rank 0. Each addition must
// fetch the sum of all earlier ones.
func TestAtomicToSelf(t *testing.T) {
	for _, prov := range []string{"tcp;ofi_rxm", "shm", "sockets"} {
		t.Run(prov, func(t *testing.T) {
			a, b := pair(t, prov, nil)
			mem := make([]byte, 16)
			mr, err := a.dom.RegisterMemory(mem, transport.RemoteRead|transport.RemoteWrite)
			require.NoError(t, err)
			sum := func(n *node, add, want byte) {
				e, ok := n.ep.(transport.AtomicEndpoint)
				require.True(t, ok)
				op := &transport.Op{
					Peer: 0, RemoteKey: mr.Key(), RemoteAddr: mr.Base() + 8, Atomic: transport.AtomicSum, Datatype: transport.Uint64,
					Data: []byte{add, 0, 0, 0, 0, 0, 0, 0}, Fetch: make([]byte, 8),
				}
				limit, ok := e.AtomicValid(op)
				require.True(t, ok)
				require.Positive(t, limit)
				until(t, func() bool {
					err = e.Atomic(op)
					return !errors.Is(err, transport.ErrAgain)
				}, a, b)
				require.NoError(t, err)
				before := len(n.seen)
				until(t, func() bool { return len(n.seen) > before }, a, b)
				require.NoError(t, n.seen[before].Err)
				require.Equal(t, []byte{want, 0, 0, 0, 0, 0, 0, 0}, op.Fetch)
			}
			sum(a, 3, 0)
			sum(b, 4, 3)
			sum(a, 5, 7)
			require.Equal(t, []byte{8: 12, 15: 0}, mem)
			require.NoError(t, mr.Close())
		})
	}
}

func TestShmAddress(t *testing.T) {
	a := newNode(t, "shm", config(0, 1))
	name, ok := strings.CutPrefix(string(a.ep.Address()), shmScheme)
	require.True(t, ok, a.ep.Address())
	require.False(t, processEnded(name))
	cmd := exec.CommandContext(t.Context(), "true")
	require.NoError(t, cmd.Run())
	require.True(t, processEnded(strconv.Itoa(cmd.Process.Pid)+":0:0"))
}
