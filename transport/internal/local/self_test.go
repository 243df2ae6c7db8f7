package local

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

const me = transport.Addr(3)

// message returns the operation of a message from the rank me to itself.
func message(header string, data []byte) *transport.Op {
	op := &transport.Op{Peer: me, HeaderLen: len(header), Data: data}
	copy(op.Header[:], header)
	return op
}

func send(t *testing.T, q *SelfQueue, header string, data []byte) {
	t.Helper()
	done, err := q.Send(message(header, data))
	require.NoError(t, err)
	require.True(t, done)
	require.True(t, q.Waiting())
}

// read does a Read with room for n messages, and returns the messages that it gets. drop is the
// argument of [SelfQueue.Deliver].
func read(t *testing.T, q *SelfQueue, n int, drop bool) (msgs [][]byte) {
	t.Helper()
	var c Completions
	user := make([]transport.Completion, n)
	c.Begin(user)
	q.Deliver(&c, me, drop)
	require.False(t, c.Pending())
	for _, x := range user[:c.End()] {
		require.Equal(t, transport.Completion{Kind: transport.RecvDone, Peer: me, Msg: x.Msg}, x)
		msgs = append(msgs, x.Msg)
	}
	return msgs
}

func texts(msgs [][]byte) []string {
	s := []string{}
	for _, m := range msgs {
		s = append(s, string(m))
	}
	return s
}

func TestSelfQueueOrder(t *testing.T) {
	var q SelfQueue
	require.False(t, q.Waiting())
	require.Empty(t, read(t, &q, 2, false))
	for i := range 5 {
		send(t, &q, fmt.Sprint("h", i), fmt.Appendf(nil, "data%d", i))
	}
	require.Empty(t, read(t, &q, 0, false), "without room")
	require.Equal(t, []string{"h0data0", "h1data1"}, texts(read(t, &q, 2, false)))
	send(t, &q, "", nil)
	send(t, &q, "h6", nil)
	send(t, &q, "", []byte("data7"))
	require.Equal(t, []string{"h2data2", "h3data3"}, texts(read(t, &q, 2, false)))
	require.Equal(t, []string{"h4data4"}, texts(read(t, &q, 2, false)))
	require.True(t, q.Waiting())
	require.Equal(t, []string{"", "h6", "data7"}, texts(read(t, &q, 9, false)))
	require.False(t, q.Waiting())
}

// TestSelfQueueViews sends more messages after each Read. The messages that a Read has returned
// stay unchanged until the next Read, although the sender uses one buffer for all messages.
func TestSelfQueueViews(t *testing.T) {
	var q SelfQueue
	data := make([]byte, 100)
	stamp := func(n int) []byte { return bytes.Repeat([]byte{byte(n)}, len(data)) }
	sent := 0
	batch := func(n int) {
		for range n {
			copy(data, stamp(sent))
			send(t, &q, "", data)
			sent++
		}
	}
	batch(2)
	got := 0
	for n := 1; n < 30; n++ {
		msgs := read(t, &q, n%4+1, false)
		require.NotEmpty(t, msgs)
		batch(n % 7)
		for _, m := range msgs {
			require.Equal(t, stamp(got), m)
			require.Equal(t, len(m), cap(m), "append to a message must not overwrite the next one")
			got++
		}
		if !q.Waiting() {
			batch(1)
		}
	}
}

func TestSelfQueueLimit(t *testing.T) {
	var q SelfQueue
	first := make([]byte, selfLimit-4-2-(4+3))
	send(t, &q, "hh", first)
	again := func(header string, n int) {
		t.Helper()
		done, err := q.Send(message(header, make([]byte, n)))
		require.ErrorIs(t, err, transport.ErrAgain)
		require.False(t, done)
	}
	again("h", 3)
	send(t, &q, "h", []byte("ab"))
	again("", 0)
	require.Len(t, read(t, &q, 1, false), 1)
	send(t, &q, "later", nil) // succeeds, because the Read has exchanged the buffers
	require.Equal(t, []string{"hab"}, texts(read(t, &q, 9, false)))
	require.Equal(t, []string{"later"}, texts(read(t, &q, 9, false)))
	require.False(t, q.Waiting())
}

func TestSelfQueueDrop(t *testing.T) {
	var q SelfQueue
	send(t, &q, "given", nil)
	send(t, &q, "dropped", nil)
	msgs := read(t, &q, 1, false)
	send(t, &q, "dropped too", nil)
	require.Empty(t, read(t, &q, 0, true))
	require.False(t, q.Waiting())
	require.Equal(t, []string{"given"}, texts(msgs), "a drop does not change messages of an earlier Read")
	send(t, &q, "new", nil)
	require.Equal(t, []string{"new"}, texts(read(t, &q, 9, false)))
}

func TestSelfQueueAllocatesNothing(t *testing.T) {
	var q SelfQueue
	var c Completions
	user := make([]transport.Completion, 4)
	op := message("header", make([]byte, 1000))
	run := func() {
		for range 3 {
			if _, err := q.Send(op); err != nil {
				require.NoError(t, err)
			}
		}
		c.Begin(user)
		q.Deliver(&c, me, false)
		if n := c.End(); n != 3 {
			require.Equal(t, 3, n)
		}
	}
	run() // two calls, so that both buffers grow
	run()
	require.Zero(t, testing.AllocsPerRun(500, run))
}
