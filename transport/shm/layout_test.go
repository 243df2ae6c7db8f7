//go:build linux && !portable

package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// TestLayout checks, for jobs of several sizes, that the parts of the memory file follow each other
// without overlap and are aligned. It logs the number of bytes of the file per rank, without the
// heap.
func TestLayout(t *testing.T) {
	for _, n := range []int{1, 2, 3, 16, 17, 64, 128, 1000, 1024, maxLocals} {
		l := newLayout(n)
		require.EqualValues(t, pageSize+4*maxLocals, l.states)
		require.LessOrEqual(t, l.states+int64(n)*stateSize, l.cards)
		require.Equal(t, l.cards+int64(n)*pageSize, l.claims)
		require.Equal(t, l.claims+int64(n)*pageSize, l.tables)
		require.Equal(t, l.tables+int64(n)*tableSize, l.inboxes)
		require.Equal(t, l.inboxes, l.ring(0, 0))
		require.Equal(t, l.ring(n-1, n-1)+l.ringSize(), l.ring(0, n))
		if n > 1 {
			require.Equal(t, l.ring(0, 0)+l.ringSize(), l.ring(1, 0))
			require.Equal(t, l.ring(n-1, 0)+l.ringSize(), l.ring(0, 1))
		}
		require.LessOrEqual(t, l.ring(0, n), l.heap(0))
		require.Zero(t, l.heap(0)%heapAlign)
		require.Equal(t, l.size, l.heap(n))
		for _, off := range []int64{l.cards, l.claims, l.tables, l.inboxes, l.ringSize(), l.heaps} {
			require.Zero(t, off%pageSize)
		}
		require.Zero(t, l.ringLines&(l.ringLines-1))
		require.LessOrEqual(t, maxMessage(l.ringLines), wire.ShmMaxLength)
		require.LessOrEqual(t, linesOf(maxMessage(l.ringLines)), uint64(l.ringLines/2))

		rank := l.inboxSize() + 2*pageSize + tableSize
		t.Logf("%4d ranks: %8d bytes each, %5d per ring, messages of up to %d bytes", n, rank, l.ringSize(), maxMessage(l.ringLines))
		if n <= 1024 {
			require.Less(t, rank, int64(64<<20))
		}
	}
	require.Equal(t, 64<<10+transport.HeaderSize, maxMessage(ringLines(2)))
}

// TestSizes pins the sizes and offsets of types in shared memory. Ranks that run different builds
// of weft must agree on them.
func TestSizes(t *testing.T) {
	sizes := pinned()
	require.Equal(t, map[string]uintptr{
		"line": 64, "line.data": 8, "card": 256 + 4*64*8, "card.sleep": 128, "card.events": 192,
		"card.polled": 256, "card.refused": 256 + 64*8, "card.changed": 256 + 3*64*8, "state": stateSize, "state.alive": 4, "header.sleepers": 64, "header": 128, "claims": 4096,
	}, sizes)
}

// TestFileCannotShrink checks that no rank can change the size of the memory file, on which the
// mappings of the other ranks depend, or add a seal that forbids writes.
func TestFileCannotShrink(t *testing.T) {
	all := nodes(t, 2, New())
	fd := int(all[0].file.Fd())
	require.ErrorIs(t, unix.Ftruncate(fd, 0), unix.EPERM)
	require.ErrorIs(t, unix.Ftruncate(fd, all[0].seg.size+1), unix.EPERM)
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
	require.ErrorIs(t, err, unix.EPERM)
}

// TestOpenRefuses opens domains with an invalid Self or Locals, with a file of another job, and
// with a file of another size. Each Open returns an error, and none spoils the file for the right
// rank.
func TestOpenRefuses(t *testing.T) {
	memory, err := newMemory()
	require.NoError(t, err)
	defer memory.Close()
	open := func(self int, change func(*transport.Config)) error {
		cfg := config(self, 4)
		cfg.Memory, cfg.Locals = memory, []transport.Addr{1, 3}
		if change != nil {
			change(&cfg)
		}
		n, err := newNode(New(), cfg)
		if err == nil {
			t.Cleanup(func() { require.NoError(t, n.Close()) })
		}
		return err
	}
	require.NoError(t, open(1, nil))
	require.Error(t, open(1, nil), "twice")
	require.ErrorIs(t, open(0, nil), transport.ErrAddress)
	require.ErrorIs(t, open(4, nil), transport.ErrAddress)
	for _, l := range [][]transport.Addr{{3, 1}, {1, 3, 3}, {1, 3, 4}, {-1, 3}, nil} {
		require.ErrorIs(t, open(3, func(c *transport.Config) { c.Locals = l }), transport.ErrAddress, "%v", l)
	}
	require.Error(t, open(3, func(c *transport.Config) { c.Locals = []transport.Addr{2, 3} }), "another group")
	require.Error(t, open(3, func(c *transport.Config) { c.Locals = []transport.Addr{2, 3, 1}[1:] }))
	require.Error(t, open(3, func(c *transport.Config) { c.Secret[0]++ }), "another secret")
	require.Error(t, open(3, func(c *transport.Config) { c.JobID = "other" }), "another job")
	require.Error(t, open(3, func(c *transport.Config) { c.Locals = []transport.Addr{1, 2, 3} }), "another size")

	other, err := newMemory()
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, unix.Ftruncate(int(other.Fd()), 4096))
	_, err = unix.FcntlInt(other.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	require.NoError(t, err)
	require.Error(t, open(3, func(c *transport.Config) { c.Memory = other }), "sealed at another size")

	require.NoError(t, open(3, nil))
}

// TestStranger corrupts what rank 1 has published in shared memory: its identity (by a wrong
// authentication code or the identity of another rank) or its state. Rank 0 must report rank 1 as
// down, with a protocol error, and rank 1 must report rank 0 as down.
func TestStranger(t *testing.T) {
	for _, how := range []string{"mac", "rank", "state"} {
		all := nodes(t, 2, New())
		c, state := all[0].seg.card(1), all[0].seg.state(1)
		switch how {
		case "mac":
			c.identity[wire.ShmCardSize-1]++
		case "rank":
			c.identity = all[0].seg.card(0).identity
		case "state":
			state.state.Store(77)
		}
		_, err := all[0].ep.Send(&transport.Op{Peer: 1})
		require.ErrorIs(t, err, transport.ErrProtocol)
		require.ErrorIs(t, err, transport.ErrPeerDown)
		d := all[0].await(t, transport.PeerDown)
		require.Equal(t, err, d.Err)
		require.ErrorIs(t, all[1].await(t, transport.PeerDown).Err, transport.ErrPeerDown, "rank 1 must learn that rank 0 has closed it")
		_, err = all[1].ep.Send(&transport.Op{Peer: 0})
		require.ErrorIs(t, err, transport.ErrPeerDown)
	}
}

// TestEndedBeforeJoin has processes end before they have written anything to the memory file, or
// before they have published that they are ready. Their ends are known only from what the launcher
// writes to the file, in one case before the file has its size. The rank that is left must report
// each of them as down, also if it sleeps when the launcher writes.
func TestEndedBeforeJoin(t *testing.T) {
	memory, err := newMemory()
	require.NoError(t, err)
	defer memory.Close()
	// Only 0 is a valid index. The launcher may not write outside of its part of the file.
	for _, early := range []int{0, 4, maxLocals, -1} {
		require.NoError(t, wire.PutShmEnded(memory, early))
	}
	cfg := config(2, 4)
	cfg.Memory, cfg.Locals = memory, ranks(4)
	n, err := newNode(New(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })

	down := n.await(t, transport.PeerDown)
	require.ErrorIs(t, down.Err, transport.ErrPeerDown)
	require.Zero(t, down.Peer)
	_, err = n.ep.Send(&transport.Op{Peer: 0})
	require.Equal(t, down.Err, err)
	for peer, state := range map[int]uint32{1: cardAbsent, 3: cardTaken} {
		n.seg.state(peer).state.Store(state)
		op := &transport.Op{Peer: transport.Addr(peer)}
		_, err = n.ep.Send(op)
		require.ErrorIs(t, err, transport.ErrAgain)
		require.Eventually(t, func() bool { n.read(t); return n.cq.Arm() }, deadline, time.Microsecond)
		slept := make(chan error, 1)
		// The goroutine ends after PutShmEnded, when Wait, which checks all ranks at intervals,
		// finds the end.
		go func() { slept <- n.cq.Wait(deadline) }()
		time.Sleep(10 * time.Millisecond) // so that Wait usually sleeps by then; no rank wakes it
		require.NoError(t, wire.PutShmEnded(memory, peer))
		require.NoError(t, <-slept)
		down = n.await(t, transport.PeerDown)
		require.ErrorIs(t, down.Err, transport.ErrPeerDown)
		require.Equal(t, transport.Addr(peer), down.Peer)
		_, err = n.ep.Send(op)
		require.Equal(t, down.Err, err)
	}
}

// TestAbsent has rank 0 send to rank 1, whose Open has not been called yet. Send returns ErrAbsent,
// and a Wait of rank 0 ends when rank 1 opens its domain. Later rank 0 closes its domain, and Sends
// of rank 1 to it fail with ErrPeerDown.
func TestAbsent(t *testing.T) {
	memory, err := newMemory()
	require.NoError(t, err)
	defer memory.Close()
	open := func(self int) *node {
		cfg := config(self, 3)
		cfg.Memory, cfg.Locals = memory, ranks(2)
		n, err := newNode(New(), cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		return n
	}
	a := open(0)
	_, err = a.ep.Send(&transport.Op{Peer: 1})
	require.ErrorIs(t, err, transport.ErrAbsent)
	require.ErrorIs(t, err, transport.ErrAgain)
	require.True(t, a.av.(transport.Reacher).Reaches(1))
	require.False(t, a.av.(transport.Reacher).Reaches(2), "on another host")
	_, err = a.ep.Send(&transport.Op{Peer: 2})
	require.ErrorIs(t, err, transport.ErrAddress)
	woken := asleepRank(t, a)
	b := open(1)
	wakes(t, woken)
	a.send(t, 1, []byte("hello"))
	require.Equal(t, "hello", string(b.await(t, transport.RecvDone).Msg))
	require.NoError(t, a.Close())
	for end := time.Now().Add(deadline); ; {
		b.read(t)
		_, err := b.ep.Send(&transport.Op{Peer: 0, Data: make([]byte, 1000)})
		if err != nil && err != transport.ErrAgain { //nolint:errorlint // Send does not wrap it
			require.ErrorIs(t, err, transport.ErrPeerDown)
			break
		}
		require.True(t, time.Now().Before(end))
	}
}

// TestCostOfPeers checks what the other ranks of a host cost a rank that communicates with few of
// them. The rank must not make the state of a peer (type peer) for the others. To check whether
// they have ended, it must not touch the page that each of them has in the memory file (its card),
// only the words of all ranks' states, which lie side by side.
func TestCostOfPeers(t *testing.T) {
	const n = 1024
	memory, err := newMemory()
	require.NoError(t, err)
	defer memory.Close()
	all := make([]*node, 3)
	for i := range all {
		cfg := config(i, n)
		cfg.Memory, cfg.Locals = memory, ranks(n)
		all[i], err = newNode(New(), cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, all[i].Close()) })
	}
	made := func(d *domain) (k int) {
		for _, p := range d.locals {
			if p != nil {
				k++
			}
		}
		return k
	}
	a, b := all[0], all[1]
	a.send(t, 1, []byte("hello"))
	b.await(t, transport.RecvDone)
	before := resident(t, b.domain)
	a.seg.state(700).state.Store(cardLeft) // as if rank 700 had left, but had told no rank
	for gone := false; !gone; {
		for _, c := range b.read(t) {
			gone = gone || c.Kind == transport.PeerLeft && c.Peer == 700
		}
		if b.cq.Arm() {
			b.Signal()
			require.NoError(t, b.cq.Wait(deadline))
		}
	}
	require.LessOrEqual(t, resident(t, b.domain)-before, int64(2*pageSize), "the states of all ranks, and no cards")
	require.Equal(t, 2, made(a.domain), "itself and 1")
	require.Equal(t, 3, made(b.domain), "itself, 0, and 700")
	require.Equal(t, 1, made(all[2].domain), "itself")
}
