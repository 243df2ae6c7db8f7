package tcp

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// numbered is a message of at least four bytes that begins with a number.
func numbered(i, size int) *transport.Op {
	op := &transport.Op{Peer: 1, HeaderLen: 4, Data: bytes.Repeat([]byte{byte(i)}, size-4)}
	binary.LittleEndian.PutUint32(op.Header[:], uint32(i))
	return op
}

// writes returns what each system call has written since the last call. The test
// holds fd, the end of a SOCK_SEQPACKET connection.
func writes(t testing.TB, fd int) (all [][]byte) {
	t.Helper()
	for {
		b := make([]byte, 1<<20)
		n, err := recv(fd, b)
		if err == errAgain { //nolint:errorlint // the very value
			return all
		}
		require.NoError(t, err)
		all = append(all, b[:n])
	}
}

// requireNumbered parses frames as the numbered messages from first on, and
// returns the number of the one that would follow.
func requireNumbered(t testing.TB, b []byte, first int) int {
	t.Helper()
	for len(b) > 0 {
		_, n, ok := wire.TCPMsgLen(b)
		require.True(t, ok)
		m := b[wire.TCPPrefixSize : wire.TCPPrefixSize+n]
		require.Equal(t, first, int(binary.LittleEndian.Uint32(m)))
		b = b[wire.TCPPrefixSize+n:]
		first++
	}
	return first
}

// burst Reads, sends messages until the endpoint keeps one, and returns how many it
// sent. Whether it keeps the third depends on the time between two of them.
func burst(t testing.TB, n *node) int {
	t.Helper()
	n.read(t)
	for i := range 1000 {
		done, err := n.ep.Send(numbered(i, 12))
		require.NoError(t, err)
		require.True(t, done)
		if n.ep.Unsent() {
			return i + 1
		}
	}
	t.Fatal("no message of 1000 in a row was kept")
	return 0
}

// Messages that are sent without a Read in between leave in few writes, in order.
func TestBurstLeavesTogether(t *testing.T) {
	n, fd := wiredBy(t, unix.SOCK_SEQPACKET)
	n.ep.EnableBatch()
	sent := burst(t, n)
	require.GreaterOrEqual(t, sent, 3, "two messages are no burst")
	for ; sent < 2000; sent++ {
		done, err := n.ep.Send(numbered(sent, 12))
		require.NoError(t, err)
		require.True(t, done)
	}
	require.True(t, n.ep.Unsent())
	require.False(t, n.cq.Arm(), "a Read has something to do")
	n.read(t)
	require.False(t, n.ep.Unsent())
	require.True(t, n.cq.Arm())
	w := writes(t, fd)
	require.Less(t, len(w), 200) // a machine under load may break bursts up
	require.Equal(t, 2000, requireNumbered(t, bytes.Join(w, nil), 0))
}

// A message that closely follows no other leaves at once, and so does each one
// without EnableBatch or between Arm and the next Read.
func TestLoneMessageLeavesAtOnce(t *testing.T) {
	n, fd := wiredBy(t, unix.SOCK_SEQPACKET)
	sent := 0
	leaves := func(why string) {
		t.Helper()
		done, err := n.ep.Send(numbered(sent, 12))
		require.NoError(t, err)
		require.True(t, done)
		require.False(t, n.ep.Unsent(), why)
		w := writes(t, fd)
		require.Len(t, w, 1, why)
		sent = requireNumbered(t, w[0], sent)
	}
	for range 10 {
		leaves("no EnableBatch")
	}
	n.ep.EnableBatch()
	n.read(t)
	for range 5 {
		leaves("first since the last Read")
		leaves("second since the last Read")
		n.read(t)
	}
	for range 5 {
		leaves("long after the last")
		time.Sleep(2 * burstGap)
	}
	require.True(t, n.cq.Arm())
	for range 10 {
		leaves("after Arm")
	}
}

// An operation that cannot be kept sends what was kept before it.
func TestLargerOperationSendsBatch(t *testing.T) {
	for name, post := range map[string]func(n *node, i int) error{
		"message": func(n *node, i int) error {
			_, err := n.ep.Send(numbered(i, 50_000))
			return err
		},
		"read":  func(n *node, _ int) error { return n.ep.Read(&transport.Op{Peer: 1, Data: make([]byte, 8)}) },
		"write": func(n *node, _ int) error { return n.ep.Write(&transport.Op{Peer: 1, Data: make([]byte, 8)}) },
	} {
		t.Run(name, func(t *testing.T) {
			n, fd := wiredBy(t, unix.SOCK_SEQPACKET)
			n.ep.EnableBatch()
			sent := burst(t, n)
			require.NoError(t, post(n, sent))
			require.False(t, n.dom.peer(1).batched)
			b := bytes.Join(writes(t, fd), nil)
			if name == "message" {
				require.Equal(t, sent+1, requireNumbered(t, b, 0))
				return
			}
			messages := sent * (wire.TCPPrefixSize + 12)
			require.Equal(t, sent, requireNumbered(t, b[:messages], 0))
			var f wire.TCPFrame
			k, err := f.Parse(b[messages:])
			require.NoError(t, err)
			require.Equal(t, len(b), messages+k+int(f.Length))
		})
	}
}

// A peer that does not read makes the endpoint keep no more than batchSize. What
// follows queues, and all arrives in order.
func TestBatchIsBounded(t *testing.T) {
	n, fd := wired(t)
	n.ep.EnableBatch()
	sent, queued := 0, 0
	for ; queued < 100; sent++ {
		require.Less(t, sent, 1_000_000)
		done, err := n.ep.Send(numbered(sent, 500))
		require.NoError(t, err)
		if !done {
			queued++
		}
		require.True(t, done || queued > 0)
		require.Equal(t, queued > 0, !done, "one that could be kept would overtake those that queue")
	}
	c := n.dom.peer(1)
	require.Greater(t, len(c.frames), batchSize-1000, "a batch was kept while the socket was busy")
	require.LessOrEqual(t, len(c.frames), batchSize)
	require.LessOrEqual(t, cap(c.frames), 4*batchSize)
	require.Equal(t, sent, requireNumbered(t, readSome(t, n, fd, sent*(wire.TCPPrefixSize+500)), 0))
}

// Messages of all sizes keep their order, whatever is kept, written or queued.
func TestOrderAcrossSizes(t *testing.T) {
	const count = 1000
	all := nodes(t, 2)
	connected(t, all, 0, 1)
	n := all[0]
	n.ep.EnableBatch()
	require.NoError(t, unix.SetsockoptInt(n.dom.peer(1).fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
	const seed = 3
	rng := rand.New(rand.NewPCG(seed, seed))
	got, pending := 0, 0
	receive := func() {
		for _, c := range all[1].read(t) {
			require.Equal(t, transport.RecvDone, c.Kind)
			require.Equal(t, got, int(binary.LittleEndian.Uint32(c.Msg)))
			require.Equal(t, bytes.Repeat([]byte{byte(got)}, len(c.Msg)-4), c.Msg[4:])
			got++
		}
	}
	for i := range count {
		size := 4 + rng.IntN(100)
		if rng.IntN(20) == 0 {
			size = 4 + rng.IntN(100_000)
		}
		done, err := n.ep.Send(numbered(i, size))
		require.NoError(t, err)
		if !done {
			pending++
		}
		if rng.IntN(10) == 0 {
			pending -= len(n.read(t))
		}
		if rng.IntN(10) == 0 {
			receive()
		}
	}
	for end := time.Now().Add(patience); got < count; receive() {
		require.True(t, time.Now().Before(end), "%d of %d messages came", got, count)
		pending -= len(n.read(t))
	}
	require.Zero(t, pending)
	require.False(t, n.ep.Unsent())
}

// A peer that dies while messages are kept for it is reported, and nothing is left.
func TestPeerDiesWithBatch(t *testing.T) {
	n, fd := wired(t)
	n.ep.EnableBatch()
	burst(t, n)
	require.NoError(t, unix.Close(fd))
	c := await(t, []*node{n}, n, kind(transport.PeerDown))
	require.ErrorIs(t, c.Err, transport.ErrPeerDown)
	n.read(t)
	require.False(t, n.ep.Unsent())
	require.True(t, n.cq.Arm())
	_, err := n.ep.Send(numbered(0, 12))
	require.ErrorIs(t, err, transport.ErrPeerDown)
}

// Shutdown delivers what was kept.
func TestShutdownSendsBatch(t *testing.T) {
	all := nodes(t, 2)
	connected(t, all, 0, 1)
	all[0].ep.EnableBatch()
	sent := burst(t, all[0])
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- all[0].ep.Shutdown(ctx) }()
	got := 0
	await(t, all[1:], all[1], func(c *transport.Completion) bool {
		if c.Kind == transport.RecvDone {
			got++
		}
		return c.Kind == transport.PeerLeft
	})
	require.Equal(t, sent, got)
	require.NoError(t, all[1].ep.Shutdown(ctx))
	require.NoError(t, <-ended)
}

// A receiver takes a batch out of its buffer by several Reads, without moving what
// is left each time.
func TestBatchIsReadFromItsPlace(t *testing.T) {
	const count = 100
	n, fd := wired(t)
	var b []byte
	for i := range count {
		op := numbered(i, 12)
		b = append(b, frame(wire.TCPFrame{Type: wire.TCPMsg}, append(op.Header[:4:4], op.Data...)...)...)
	}
	_, err := send(fd, b)
	require.NoError(t, err)
	c := n.dom.peer(1)
	for got := 0; got < count; {
		cs := n.read(t)
		require.Len(t, cs, min(len(n.comp), count-got))
		for i := range cs {
			require.Equal(t, got, int(binary.LittleEndian.Uint32(cs[i].Msg)))
			got++
		}
		require.Equal(t, got*len(b)/count, c.rpos)
	}
}
