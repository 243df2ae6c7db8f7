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

// numbered returns a message to rank 1. It has size bytes, at least four. Its first four bytes are
// the number i.
func numbered(i, size int) *transport.Op {
	op := &transport.Op{Peer: 1, HeaderLen: 4, Data: bytes.Repeat([]byte{byte(i)}, size-4)}
	binary.LittleEndian.PutUint32(op.Header[:], uint32(i))
	return op
}

// writes returns the bytes that the rank at the other end of fd has written since the last call of
// writes: one slice per system call. fd is the test's end of a SOCK_SEQPACKET connection.
func writes(t testing.TB, fd int) (all [][]byte) {
	t.Helper()
	for {
		b := make([]byte, 1<<20)
		n, err := recv(fd, b)
		if err == errAgain { //nolint:errorlint // never wrapped
			return all
		}
		require.NoError(t, err)
		all = append(all, b[:n])
	}
}

// requireNumbered checks that b consists of whole frames of messages made by numbered, whose
// numbers are first, first+1 and so on. It returns the number of the message that would follow.
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

// burst reads the queue, sends messages until the endpoint puts one in a batch, and returns the
// number of messages sent. The endpoint writes the first two messages at once. Which later message
// is the first in a batch depends on the time between the calls of Send.
func burst(t testing.TB, n *testRank) int {
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
	t.Fatal("none of 1000 messages in a row was batched")
	return 0
}

// A rank sends 2000 messages without a Read in between. They leave in fewer than 200 system calls,
// in order, the last of them in the next Read.
func TestBurstLeavesTogether(t *testing.T) {
	n, fd := socketRankOf(t, unix.SOCK_SEQPACKET)
	n.ep.EnableBatch()
	sent := burst(t, n)
	require.GreaterOrEqual(t, sent, 3, "two messages are not a burst")
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
	require.Less(t, len(w), 200) // more than one, because a machine under load may interrupt a burst
	require.Equal(t, 2000, requireNumbered(t, bytes.Join(w, nil), 0))
}

// Send writes a message at once in three cases: EnableBatch was not called, the message does not
// closely follow others, or Send is called between Arm and the next Read.
func TestLoneMessageLeavesAtOnce(t *testing.T) {
	n, fd := socketRankOf(t, unix.SOCK_SEQPACKET)
	sent := 0
	requireWritten := func(why string) {
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
		requireWritten("no EnableBatch")
	}
	n.ep.EnableBatch()
	n.read(t)
	for range 5 {
		requireWritten("first since the last Read")
		requireWritten("second since the last Read")
		n.read(t)
	}
	for range 5 {
		requireWritten("long after the last")
		time.Sleep(2 * burstGap)
	}
	require.True(t, n.cq.Arm())
	for range 10 {
		requireWritten("after Arm")
	}
}

// A rank with a pending batch posts an operation that does not fit a batch. The batch is written
// before the operation.
func TestLargerOperationSendsBatch(t *testing.T) {
	for name, post := range map[string]func(n *testRank, i int) error{
		"message": func(n *testRank, i int) error {
			_, err := n.ep.Send(numbered(i, 50_000))
			return err
		},
		"read":  func(n *testRank, _ int) error { return n.ep.Read(&transport.Op{Peer: 1, Data: make([]byte, 8)}) },
		"write": func(n *testRank, _ int) error { return n.ep.Write(&transport.Op{Peer: 1, Data: make([]byte, 8)}) },
	} {
		t.Run(name, func(t *testing.T) {
			n, fd := socketRankOf(t, unix.SOCK_SEQPACKET)
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

// While the peer does not read, a rank sends messages. The endpoint batches no more than batchSize
// bytes and queues the messages that follow. When the peer reads, all messages arrive in order.
func TestBatchIsBounded(t *testing.T) {
	n, fd := socketRank(t)
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
		require.Equal(t, queued > 0, !done, "a message that is batched now would overtake the queued ones")
	}
	c := n.dom.peer(1)
	require.Greater(t, len(c.frames), batchSize-1000, "the endpoint batches while the socket is full")
	require.LessOrEqual(t, len(c.frames), batchSize)
	require.LessOrEqual(t, cap(c.frames), 4*batchSize)
	require.Equal(t, sent, requireNumbered(t, readSome(t, n, fd, sent*(wire.TCPPrefixSize+500)), 0))
}

// A rank sends messages of random sizes, so that some are batched, some are written at once, and
// some are queued. All arrive in order.
func TestOrderAcrossSizes(t *testing.T) {
	const count = 1000
	all := openRanks(t, 2)
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
	for end := time.Now().Add(testTimeout); got < count || pending > 0; receive() {
		require.True(t, time.Now().Before(end), "%d of %d messages arrived, %d sends are pending", got, count, pending)
		pending -= len(n.read(t))
	}
	require.Zero(t, pending)
	require.False(t, n.ep.Unsent())
}

// A peer dies while a rank has a pending batch for it. The rank reports PeerDown and drops the
// batch.
func TestPeerDiesWithBatch(t *testing.T) {
	n, fd := socketRank(t)
	n.ep.EnableBatch()
	burst(t, n)
	require.NoError(t, unix.Close(fd))
	c := await(t, []*testRank{n}, n, kind(transport.PeerDown))
	require.ErrorIs(t, c.Err, transport.ErrPeerDown)
	n.read(t)
	require.False(t, n.ep.Unsent())
	require.True(t, n.cq.Arm())
	_, err := n.ep.Send(numbered(0, 12))
	require.ErrorIs(t, err, transport.ErrPeerDown)
}

// A rank calls Shutdown while it has a pending batch. All messages of the batch arrive.
func TestShutdownSendsBatch(t *testing.T) {
	all := openRanks(t, 2)
	connected(t, all, 0, 1)
	all[0].ep.EnableBatch()
	sent := burst(t, all[0])
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
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

// A receiver needs several Reads for a batch, because each Read returns few messages. The messages
// that are not returned yet stay where they are in the input buffer: rpos moves, the bytes do not.
func TestBatchIsReadFromItsPlace(t *testing.T) {
	const count = 100
	n, fd := socketRank(t)
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
