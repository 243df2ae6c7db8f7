//go:build libfabric

package libfabric

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// scripted opens two ranks over testprov with this script.
func scripted(t *testing.T, script string) (a, b *node) {
	t.Helper()
	t.Setenv(testScript, script)
	return pair(t, libfabrictest.Name, nil)
}

// access does an access of n to memory of a peer, and returns the error with which it has ended.
func access(t *testing.T, post func(*transport.Op) error, op *transport.Op, n *node, others ...*node) error {
	t.Helper()
	nodes := append([]*node{n}, others...)
	var err error
	until(t, func() bool {
		err = post(op)
		return !errors.Is(err, transport.ErrAgain)
	}, nodes...)
	if err != nil {
		return err
	}
	var end *transport.Completion
	until(t, func() bool {
		for i := range n.seen {
			if c := &n.seen[i]; c.Kind == transport.OpDone && c.Op == op {
				end = c
			}
		}
		return end != nil
	}, nodes...)
	return end.Err
}

// TestFailedAccess checks that an access that fails for a reason that says nothing about the peer
// returns its cause, with all that the provider says about it, and that the peer does not count as
// failed.
func TestFailedAccess(t *testing.T) {
	for script, want := range map[string]struct {
		is   error
		text string
	}{
		"plain,err=2": {fi.ErrIO, "(the script makes this operation fail, prov_errno 4242, err_data \"the script makes this operation fail\")"},
		"verbs,err=2": {fi.ErrIO, "(the script makes this operation fail, prov_errno 4242, err_data \"the script makes this operation fail\")"},
		"cxi,ekey=2":  {transport.ErrKey, "(the target rejected the key, prov_errno 23, err_data \"the target rejected the key\")"},
		"psm,ekey=2":  {transport.ErrKey, "(the target rejected the key, prov_errno 23, err_data \"the target rejected the key\")"},
	} {
		t.Run(script, func(t *testing.T) {
			a, b := scripted(t, script)
			mr, err := b.dom.RegisterMemory(make([]byte, 100), transport.RemoteRead|transport.RemoteWrite)
			require.NoError(t, err)
			mem := make([]byte, 100)
			local, err := a.dom.RegisterMemory(mem, transport.Local)
			require.NoError(t, err)
			rma, failed := a.ep.(transport.RMAEndpoint), 0
			const accesses = 20
			for i := range accesses {
				op := &transport.Op{Peer: 1, RemoteKey: mr.Key(), RemoteAddr: mr.Base(), Data: mem, Region: local}
				post := rma.Read
				if i%3 == 0 {
					post = rma.Write
				}
				err := access(t, post, op, a, b)
				if err == nil {
					continue
				}
				failed++
				require.ErrorIs(t, err, want.is)
				require.NotErrorIs(t, err, transport.ErrPeerDown)
				require.ErrorContains(t, err, want.text)
				require.ErrorContains(t, err, "libfabric testprov on "+a.dom.attr.Name+": ")
				require.ErrorContains(t, err, "rank 1 at "+string(b.ep.Address()))
			}
			require.Equal(t, accesses/2, failed)
			require.Zero(t, kinds(a.seen, transport.PeerDown))
			require.NoError(t, local.Close())
			require.NoError(t, mr.Close())
		})
	}
}

// TestOverrun checks that Read returns the error of a completion queue that has overrun.
func TestOverrun(t *testing.T) {
	a, b := scripted(t, "overrun=20")
	var err error
	for end := time.Now().Add(testTimeout); err == nil; {
		require.True(t, time.Now().Before(end))
		_, _ = a.ep.Send(&transport.Op{Peer: 1, Data: make([]byte, 5000)}) // any result is right
		_, _ = b.cq.Read(b.comp)                                           // its queue overruns, too
		_, err = a.cq.Read(a.comp)
	}
	require.ErrorIs(t, err, errQueue)
	require.ErrorIs(t, err, fi.ErrOverrun)
	require.ErrorContains(t, err, "libfabric testprov on plain: ")
}

// exchange sends messages of several sizes in both directions and checks that all arrive in their
// order.
func exchange(t *testing.T, a, b *node) {
	t.Helper()
	sizes := []int{1, 100, 3000, 7000, min(12_000, a.dom.attr.MaxMsgSize), min(40_000, a.dom.attr.MaxMsgSize)}
	const messages = 300
	text := func(i int) string { return string(pattern(make([]byte, sizes[i%len(sizes)]), i)) }
	var next [2]int
	nodes := [2]*node{a, b}
	until(t, func() bool {
		for i, n := range nodes {
			for next[i] < messages {
				_, err := n.ep.Send(&transport.Op{Peer: transport.Addr(1 - i), Data: []byte(text(next[i]))})
				if errors.Is(err, transport.ErrAgain) {
					break
				}
				require.NoError(t, err)
				next[i]++
			}
		}
		return len(a.msgs) == messages && len(b.msgs) == messages
	}, a, b)
	for i := range messages {
		require.True(t, a.msgs[i] == text(i) && b.msgs[i] == text(i), "message %d", i)
	}
	until(t, func() bool { return a.dom.arena.busy == 0 && b.dom.arena.busy == 0 }, a, b)
}

// TestRefusedMessages checks that a message that the target has refused for want of a receive, or
// that has failed for a reason that says nothing about the peer, is sent again.
func TestRefusedMessages(t *testing.T) {
	for _, script := range []string{
		"enorx=3", "verbs,enorx=3", "efa,enorx=2,late=200", "cxi,enorx=4", "psm,enorx=3", "psm,unexpected=2000",
		"unexpected=100", "err=5", "verbs,err=3", "cxi,err=4", "psm,err=3,enorx=5,eagain=20", "erecv=7", "cxi,erecv=5", "psm,erecv=5",
	} {
		t.Run(script, func(t *testing.T) {
			a, b := scripted(t, script)
			exchange(t, a, b)
			require.Zero(t, kinds(a.seen, transport.PeerDown)+kinds(b.seen, transport.PeerDown))
			for _, n := range []*node{a, b} {
				inUse := len(n.dom.arena.bufs) - len(n.dom.arena.spares)
				require.Empty(t, n.dom.arena.lost)
				if n.dom.multiRecv {
					require.Equal(t, largeBuffers, inUse)
				}
			}
		})
	}
}

// TestHopelessMessage checks that a message that fails again and again ends in the failure of the
// peer, with the cause of the last failure.
func TestHopelessMessage(t *testing.T) {
	for _, size := range []int{10, 5000, 20_000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			a, b := scripted(t, "err=1")
			op := &transport.Op{Peer: 1, Data: make([]byte, size)}
			done, err := a.ep.Send(op)
			require.NoError(t, err)
			require.Equal(t, size <= copyLimit, done)
			until(t, func() bool { return kinds(a.seen, transport.PeerDown) == 1 && a.dom.arena.busy == 0 }, a, b)
			if !done {
				require.Equal(t, 1, kinds(a.seen, transport.OpDone))
			}
			for _, c := range a.seen {
				require.ErrorIs(t, c.Err, transport.ErrPeerDown)
				require.ErrorIs(t, c.Err, fi.ErrIO)
				require.ErrorContains(t, c.Err, "the script makes this operation fail, prov_errno 4242")
			}
		})
	}
}

// TestRefusedForLong checks that a message that is refused for a long time does not keep the rank
// awake, and ends if the peer ends.
func TestRefusedForLong(t *testing.T) {
	a, b := scripted(t, "enorx=1")
	require.NoError(t, send(t, a, 1, "hello", a, b))
	until(t, func() bool { return len(a.dom.resends) == 1 && a.dom.arena.slots[a.dom.resends[0]].pause == lastPause }, a, b)
	polls := 0
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); polls++ {
		if a.cq.Arm() {
			require.NoError(t, a.cq.Wait(time.Second))
		}
		a.poll(t)
		b.poll(t)
	}
	require.Less(t, polls, 2000, "the rank sleeps between the attempts")
	_, err := a.ep.Send(&transport.Op{Peer: 1, Data: []byte("more")})
	require.ErrorIs(t, err, transport.ErrAgain)
	flush := a.ep.(transport.FlushEndpoint)
	require.False(t, flush.Flushed(func(transport.Addr) bool { return false }), "rank 1 lacks the message")
	require.True(t, flush.Flushed(func(p transport.Addr) bool { return p == 1 }), "rank 1 has failed")
	require.NoError(t, b.dom.Close())
	until(t, func() bool { return kinds(a.seen, transport.PeerDown) == 1 && a.dom.arena.busy == 0 }, a)
	require.Empty(t, a.dom.resends)
	require.True(t, flush.Flushed(func(transport.Addr) bool { return false }))
}

// TestRepeated checks that a message that was sent again, and arrives twice, is delivered once, and
// that a peer that has never said so may not repeat a message (see TestTwice).
func TestRepeated(t *testing.T) {
	a, _ := pair(t, "tcp;ofi_rxm", nil)
	give := func(number uint32, k kind) {
		b := make([]byte, frameSize)
		frame{a.dom.tokens(1).rx, 1, k, number}.put(b)
		a.dom.message(append(b, fmt.Sprint(number)...))
		a.poll(t)
	}
	give(1, kindData)
	give(1, kindData|kindRepeated)
	give(3, kindData)
	give(3, kindData|kindRepeated)
	give(2, kindData|kindRepeated)
	give(2, kindData) // the one that was thought to have failed
	a.poll(t)
	require.Equal(t, []string{"1", "2", "3"}, a.msgs)
	require.Empty(t, a.seen)
}

// TestStuckPeer checks that a peer that takes nothing leaves room for operations with the others,
// and that the number of slots is that of the provider's queue.
func TestStuckPeer(t *testing.T) {
	t.Setenv(testScript, "verbs,tx=16")
	var nodes [3]*node
	var addrs []transport.Address
	for i := range nodes {
		nodes[i] = newNode(t, libfabrictest.Name, config(i, len(nodes)))
		addrs = append(addrs, nodes[i].ep.Address())
	}
	for _, n := range nodes {
		_, err := n.dom.av.Insert(addrs)
		require.NoError(t, err)
	}
	a, stuck, b := nodes[0], nodes[1], nodes[2]
	sent := 0
	for range 100 {
		if _, err := a.ep.Send(&transport.Op{Peer: 1, Data: make([]byte, 5000)}); err == nil {
			sent++
		} else {
			require.ErrorIs(t, err, transport.ErrAgain)
		}
		a.poll(t)
	}
	require.Equal(t, 12, sent, "three quarters")
	for i := range 50 {
		require.NoError(t, send(t, a, 2, fmt.Sprint(i), a, b))
	}
	until(t, func() bool { return len(b.msgs) == 50 }, a, b)
	until(t, func() bool { return len(stuck.msgs) == sent }, a, stuck)
}
