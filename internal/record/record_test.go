package record

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pair returns a recorder with small rings, and a reader of its memory.
func pair(t *testing.T, rank, ranks int) (*Recorder, *Reader) {
	t.Helper()
	mem := make([]byte, Size(ranks, testBits))
	rd, err := NewReader(mem, ranks, testBits)
	require.NoError(t, err)
	require.False(t, rd.Begun())
	r, err := New(mem, rank, ranks, testBits)
	require.NoError(t, err)
	require.True(t, rd.Begun())
	return r, rd
}

const testBits = 7

func read(r *Reader, ended bool) (list []Event, lost uint64) {
	lost = r.Read(ended, func(e Event) { list = append(list, e) })
	return list, lost
}

// TestRecord: a reader gets each event with all its fields, once.
func TestRecord(t *testing.T) {
	r, rd := pair(t, 1, 3)
	r.SetDetail(true)
	op := r.Op("Allreduce", false)
	require.Equal(t, op, r.Op("Allreduce", false))
	world := r.Comm(0, "world")
	r.Messages.Sent(world, 2, 77, 1<<33, Rendezvous, 1<<24+5)
	r.Messages.Received(world, 0, -1, 0, Own|Collective, 3)
	r.Call(&Event{Start: r.Clock(), Op: op, Comm: world, Peer: -1, Tag: 9, Bytes: 800}, true)
	list, lost := read(rd, true)
	require.Zero(t, lost)
	require.Len(t, list, 3)
	sent, received, call := list[0], list[1], list[2]
	require.Positive(t, sent.Start)
	sent.Start, received.Start = 0, 0
	require.Equal(t, Event{Op: OpSent, Protocol: Rendezvous, Peer: 2, Tag: 77, Bytes: 1 << 33, Seq: 5}, sent)
	require.Equal(t, Event{Op: OpReceived, Protocol: Own | Collective, Peer: 0, Tag: -1, Seq: 3}, received)
	require.Positive(t, call.Duration)
	call.Start, call.Duration = 0, 0
	require.Equal(t, Event{Op: op, Peer: -1, Tag: 9, Bytes: 800}, call)
	require.Equal(t, "Allreduce", rd.Ops()[op].Name)
	require.EqualValues(t, 1, rd.Ops()[op].Calls)
	require.EqualValues(t, 800, rd.Ops()[op].Bytes)
	require.Equal(t, "world", rd.CommName(0))
	require.Empty(t, rd.CommName(1))
	require.Equal(t, peerSent{1, 1 << 33}, rd.peer(2))
	require.EqualValues(t, 1, rd.Sizes()[Class(1<<33)])

	list, lost = read(rd, true)
	require.Empty(t, list)
	require.Zero(t, lost)
	require.Zero(t, rd.Times().End)
	r.End()
	require.Positive(t, rd.Times().End)
}

// TestAgain: the record of a second program in the same rank has nothing of the first one, except the level.
func TestAgain(t *testing.T) {
	r, rd := pair(t, 0, 2)
	r.SetDetail(true)
	r.Messages.Sent(r.Comm(0, "world"), 1, 2, 3, Eager, 4)
	r.Call(&Event{Op: r.Op("Barrier", false)}, true)
	r.End()
	r, err := New(r.mem, 0, 2, testBits)
	require.NoError(t, err)
	require.True(t, r.Detail())
	require.Zero(t, rd.Times().End)
	require.Empty(t, rd.CommName(0))
	require.Len(t, rd.Ops(), int(opFirst))
	op := r.Op("Send", false)
	require.Zero(t, rd.Ops()[op].Calls)
	require.Zero(t, rd.peer(1))
	list, lost := read(rd, true)
	require.Empty(t, list)
	require.Zero(t, lost)
	rd.Restart()
	r.Messages.Received(0, 1, 2, 3, Eager, 5)
	list, _ = read(rd, true)
	require.Len(t, list, 1)
}

// TestUnsent: a message that has not left is neither in the record nor in its counters.
func TestUnsent(t *testing.T) {
	r, rd := pair(t, 0, 2)
	for _, detail := range []bool{false, true} {
		r.SetDetail(detail)
		r.Messages.Idle() // the recorder looks at the level from time to time
		r.Messages.Sent(0, 1, 1, 100, Eager, 1)
		r.Messages.Sent(0, 1, 2, 100, Eager, 2)
		r.Messages.Unsent(1, 100)
		r.Messages.Sent(0, 1, 3, 50, Eager, 2)
		r.Messages.Idle()
		for range 2 {
			r.Messages.Sent(0, 1, 4, 7, Eager, 3)
			r.Messages.Unsent(1, 7)
		}
		list, lost := read(rd, false)
		require.Zero(t, lost)
		require.Len(t, list, 2)
		require.EqualValues(t, 1, list[0].Tag)
		require.EqualValues(t, 3, list[1].Tag)
		list, _ = read(rd, true)
		require.Empty(t, list)
	}
	require.Equal(t, peerSent{2, 150}, rd.peer(1))
	require.EqualValues(t, 1, rd.Sizes()[Class(100)])
	require.Zero(t, rd.Sizes()[Class(7)])
}

// TestLost: a reader that is late gets the events that the ring still holds, in order, and the number
// of the others.
func TestLost(t *testing.T) {
	r, rd := pair(t, 0, 1)
	const n = 3<<testBits + 5
	const most = 1<<testBits - 1 // the place of the next event has none
	for i := range n {
		r.Messages.Sent(0, 0, int32(i), 1, Eager, uint32(i))
	}
	list, lost := read(rd, true)
	require.EqualValues(t, n-most, lost)
	require.Len(t, list, most)
	for i, e := range list {
		require.EqualValues(t, n-most+i, e.Tag)
		require.NotZero(t, e.Start)
	}
	messages, calls := rd.Last(1<<testBits, true)
	require.Empty(t, calls)
	require.Len(t, messages, most)
	require.Equal(t, list, messages)
}

// TestWithoutDetail: the flight recorder reads the clock for one of clockEvery messages, and a reader
// of a rank that runs gets the messages up to the last such reading, or all when the rank sleeps.
func TestWithoutDetail(t *testing.T) {
	r, rd := pair(t, 0, 1)
	for i := range 2*clockEvery + 1 {
		r.Messages.Sent(0, 0, int32(i), 1, Eager, 0)
	}
	list, _ := read(rd, false)
	require.Len(t, list, 2*clockEvery)
	require.Equal(t, list[0].Start, list[clockEvery-1].Start)
	require.Greater(t, list[clockEvery].Start, list[0].Start)
	r.Messages.Idle()
	list, _ = read(rd, false)
	require.Len(t, list, 1)
	require.Zero(t, rd.peer(0).Messages)
}

// TestTimeAfterSleep: with detail, an event after a sleep of the engine, or after a message that did not
// leave, has the time at which it was recorded.
func TestTimeAfterSleep(t *testing.T) {
	r, rd := pair(t, 0, 1)
	r.SetDetail(true)
	var times []time.Duration
	for i := range 4 {
		r.Messages.Idle()
		if i%2 == 1 {
			r.Messages.Sent(0, 0, 0, 1, Eager, 0)
			r.Messages.Unsent(0, 1)
		}
		for now := r.Clock(); r.Clock() == now; {
		}
		times = append(times, r.Clock())
		r.Messages.Received(0, 0, 0, 1, Eager, 0)
	}
	list, _ := read(rd, true)
	require.Len(t, list, len(times))
	for i, e := range list {
		require.GreaterOrEqual(t, e.Start, times[i])
	}
}

// TestOrder: a reader gets messages and calls in the order of their ends, and each call after the message
// that the rank sent in it.
func TestOrder(t *testing.T) {
	r, rd := pair(t, 0, 1)
	r.SetDetail(true)
	op := r.Op("Send", false)
	const n = 100
	for i := range n {
		start := r.Clock()
		r.Messages.Sent(0, 0, int32(i), 1, Eager, 0)
		r.Call(&Event{Start: start, Op: op, Tag: int32(i)}, true)
	}
	list, lost := read(rd, true)
	require.Zero(t, lost)
	require.Len(t, list, 2*n)
	for i, e := range list {
		require.EqualValues(t, i/2, e.Tag)
		require.Equal(t, i%2 == 1, e.Op == op)
	}
}

// TestInside: the collective in which a rank is, is known without a call that has ended.
func TestInside(t *testing.T) {
	r, rd := pair(t, 0, 1)
	for i := range uint64(4) {
		r.Comm(i, "comm")
	}
	_, _, _, ok := rd.inside()
	require.False(t, ok)
	r.Enter(r.Op("Barrier", false), 3, 1<<30)
	op, comm, seq, ok := rd.inside()
	require.True(t, ok)
	require.Equal(t, "Barrier", rd.Ops()[op].Name)
	require.EqualValues(t, 3, comm)
	require.EqualValues(t, 1<<30, seq)
	r.Leave(&Event{Op: op, Comm: comm, Tag: 1 << 30}, false)
	_, _, _, ok = rd.inside()
	require.False(t, ok)
}

// TestWaiting: what the program waits for is known while it waits.
func TestWaiting(t *testing.T) {
	r, rd := pair(t, 0, 9)
	world := r.Comm(0, "world")
	require.Nil(t, rd.Figures(0, false, false).Waiting)
	r.Messages.Idle()
	for _, x := range []struct {
		kind WaitKind
		comm uint16
		peer int32
		p    Protocol
		text string
	}{
		{WaitRecv, world, 3, 0, "waits for a message of rank 3 in world"},
		{WaitRecv, world, -1, 0, "waits for a message of any rank in world"},
		{WaitProbe, OtherComm, 8, 0, "waits for a message of rank 8"},
		{WaitSend, world, 1, 0, "waits to send to rank 1 in world"},
		{WaitSend, world, 1, Collective, "waits to send to rank 1 in a collective of world"},
		{WaitRecv, OtherComm, 1, Collective, "waits for a message of rank 1 in a collective of a communicator"},
		{WaitOther, OtherComm, -1, 0, "waits"},
	} {
		r.Messages.Waits(x.kind, x.comm, x.peer, 7, x.p)
		w := rd.Figures(0, false, false).Waiting
		require.NotNil(t, w)
		require.Equal(t, x.text, w.String())
		require.Positive(t, w.Since)
		r.Messages.WaitEnds()
		require.Nil(t, rd.Figures(0, false, false).Waiting)
	}
}

// TestTables: tables that are full take no further names, and entries of communicators are used again.
func TestTables(t *testing.T) {
	r, rd := pair(t, 0, 1)
	for i := range 2 * tableMax {
		op := r.Op(fmt.Sprint("call ", i), false)
		require.Equal(t, i >= tableMax-int(opFirst), op == OpNone, i)
	}
	require.Len(t, rd.Ops(), tableMax)
	for i := range uint64(commOther) {
		require.EqualValues(t, i, r.Comm(i, "a communicator with a name that is far too long for the table"))
	}
	require.EqualValues(t, commOther, r.Comm(1000, "x"))
	r.FreeComm(7)
	require.EqualValues(t, 7, r.Comm(1000, "x"))
	require.Equal(t, "x", rd.CommName(7))
	require.Len(t, rd.CommName(8), nameMax)
}

func TestDuration(t *testing.T) {
	for _, d := range []time.Duration{0, 1, microseconds - 1, time.Hour / 2, 35 * time.Minute} {
		got := durationOf(durationWord(d))
		require.LessOrEqual(t, got, d)
		require.Less(t, d-got, time.Microsecond)
	}
	require.Equal(t, (microseconds-1)*time.Microsecond, durationOf(durationWord(1000*time.Hour)))
	require.Zero(t, durationWord(-1))
}

// TestElapsedOfKilled: the time of a rank that has ended without Finalize contains the time of its last call.
func TestElapsedOfKilled(t *testing.T) {
	r, rd := pair(t, 0, 2)
	r.SetDetail(true)
	time.Sleep(time.Millisecond)
	start := r.Clock()
	time.Sleep(5 * time.Millisecond)
	r.Call(&Event{Start: start, Op: r.Op("Ssend", false), Peer: 1, Tag: -1}, true)
	f := rd.Figures(0, false, true)
	require.Len(t, f.Ops, 1)
	require.GreaterOrEqual(t, f.Elapsed, f.Ops[0].Time)
}

// TestLastText: the text names the collective in which the rank is, and the latest calls and messages first.
func TestLastText(t *testing.T) {
	name := func(n int) string { return fmt.Sprint("rank ", n) }
	mem := make([]byte, Size(3, testBits))
	rd, err := NewReader(mem, 3, testBits)
	require.NoError(t, err)
	require.Empty(t, rd.LastText(name))
	r, err := New(mem, 0, 3, testBits)
	require.NoError(t, err)
	require.Empty(t, rd.LastText(name))

	world := r.Comm(0, "world")
	barrier, send := r.Op("Barrier", false), r.Op("Send", false)
	for i := range int32(3) {
		r.Messages.Sent(world, 1, i, 8, Eager, 0)
		r.Messages.Received(world, 2, i, 4, Collective, 0)
		r.Call(&Event{Op: barrier, Comm: world, Peer: -1, Tag: i}, false)
	}
	r.Messages.Received(world, 2, 9, 16, Rendezvous, 0)
	require.Equal(t, "Barrier 2 of world; Barrier 1 of world; received 16 B from rank 2 (tag 9); sent 8 B to rank 1 (tag 2)", rd.LastText(name))
	r.Call(&Event{Op: send, Comm: 77, Peer: 1, Tag: 3, Bytes: 5}, true)
	r.Enter(barrier, world, 3)
	require.Equal(t, "in Barrier 3 of world; Send (5 B, with rank 1 of a communicator); Barrier 2 of world; received 16 B from rank 2 (tag 9); sent 8 B to rank 1 (tag 2)", rd.LastText(name))
}

// FuzzReader: no content of the memory makes a reader panic or read for ever.
func FuzzReader(f *testing.F) {
	const ranks, bits = 2, MinBits
	mem := make([]byte, Size(ranks, bits))
	r, err := New(mem, 0, ranks, bits)
	require.NoError(f, err)
	r.Messages.Sent(r.Comm(0, "world"), 1, 2, 3, Eager, 4)
	r.Call(&Event{Op: r.Op("Barrier", false)}, false)
	f.Add(mem[:512], mem[opsAt:opsAt+512], mem[len(mem)-2*eventSize<<bits:], true)
	f.Fuzz(func(t *testing.T, header, ops, rings []byte, ended bool) {
		mem := make([]byte, Size(ranks, bits))
		copy(mem[:headerSize], header)
		copy(mem[opsAt:commsAt], ops)
		copy(mem[len(mem)-2*eventSize<<bits:], rings)
		rd, err := NewReader(mem, ranks, bits)
		require.NoError(t, err)
		rd.Begun()
		rd.Times()
		for i := range tableMax {
			rd.CommName(uint16(i))
			rd.OpName(Op(i))
		}
		rd.CommName(math.MaxUint16)
		rd.Figures(0, true, false)
		rd.Sizes()
		rd.inside()
		for _, o := range rd.Ops() {
			require.LessOrEqual(t, len(o.Name), 3*nameMax)
		}
		for range 2 {
			n := 0
			rd.Read(ended, func(e Event) {
				n++
				require.GreaterOrEqual(t, e.Duration, time.Duration(0))
				require.GreaterOrEqual(t, e.Bytes, int64(0))
			})
			require.LessOrEqual(t, n, 2<<bits)
		}
		rd.Last(10, ended)
		rd.LastText(func(int) string { return "rank" })
	})
}

// TestExactAtOnce: a recorder whose level was set before it began must know that before its first event, because the
// engine records a message with exact times before it leaves.
func TestExactAtOnce(t *testing.T) {
	for _, detail := range []bool{true, false} {
		mem := make([]byte, Size(2, MinBits))
		rd, err := NewReader(mem, 2, MinBits)
		require.NoError(t, err)
		rd.SetDetail(detail)
		r, err := New(mem, 0, 2, MinBits)
		require.NoError(t, err)
		require.Equal(t, detail, r.Messages.Exact())
		before := r.Clock()
		r.Messages.Sent(0, 1, 0, 8, Eager, 1)
		r.Messages.Idle()
		rd.Read(false, func(e Event) { require.GreaterOrEqual(t, e.Start, before) })
	}
}
