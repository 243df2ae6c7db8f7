package engine

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// runWithTimeout runs f, and fails the test if f does not return within testTimeout.
func runWithTimeout(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // ends when f returns
		defer close(done)
		f()
	}()
	receiveOrFail(t, done)
}

// receiveOrFail receives from ch. If nothing arrives within testTimeout, it fails the test.
func receiveOrFail[T any](t *testing.T, ch <-chan T) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(testTimeout):
		require.FailNow(t, "hang")
	}
}

func (e *Engine) queuedFor(peer int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.peers[peer]
	return p.control.head != nil || p.data.head != nil || p.streams.head != nil
}

func (e *Engine) slotsInUse() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, r := range e.slots {
		if r != nil && r.kind != kindFree {
			n++
		}
	}
	return n
}

// TestAPeerThatDiesEndsTransfersThatWaitForRoom: a transfer waits in a queue because the endpoint
// has no room. When the peer dies, the request fails, the queue is empty, and the slot of the
// request is free.
func TestAPeerThatDiesEndsTransfersThatWaitForRoom(t *testing.T) {
	for name, opts := range map[string][]inproc.Option{"read": nil, "pump": {inproc.WithoutRMA()}} {
		t.Run(name, func(t *testing.T) {
			h := &hooks{}
			c, s := openHooked(t, h, noAsync, opts...)
			var r Request
			if name == "read" {
				r = c.Irecv(make([]byte, 8), Env{Peer: 1, Tag: 1})
				s.sendMessage(t, wire.Message{Kind: wire.MsgRTS, Tag: 1, Length: 8})
			} else {
				r = c.Isend(make([]byte, 1<<20), Env{Peer: 1, Tag: 1})
				s.sendMessage(t, wire.Message{Kind: wire.MsgCTS, Length: 1 << 20}) // Handle is 0, which is the handle of r
			}
			h.again = true
			_, done, err := r.Test()
			require.NoError(t, err)
			require.False(t, done)
			require.True(t, c.e.queuedFor(1))
			s.sendRaw(t, nil)
			_, err = r.Wait(background)
			require.ErrorIs(t, err, ErrProcFailed)
			require.False(t, c.e.queuedFor(1))
			require.Zero(t, c.e.slotsInUse())
		})
	}
}

// TestRetrySleepsGrowUntilThereIsRoom: the time limit of a sleep grows with the time for which an
// endpoint has had no room, from firstRetry to lastRetry. For a peer that has not started yet there
// is no limit, because its start causes an event.
func TestRetrySleepsGrowUntilThereIsRoom(t *testing.T) {
	h := &hooks{}
	c, _ := openHooked(t, h, noAsync)
	p := &c.e.peers[1]
	h.again = true
	r := c.Isend([]byte("x"), Env{Peer: 1, Tag: 1})
	require.Equal(t, firstRetry, c.e.napTime())
	c.e.start = c.e.start.Add(-4 * time.Millisecond) // as if 4 ms had passed
	nap := c.e.napTime()
	require.GreaterOrEqual(t, nap, time.Millisecond)
	c.e.start = c.e.start.Add(-time.Second)
	require.Equal(t, lastRetry, c.e.napTime())
	p.noteNoRoom(transport.ErrAbsent)
	require.Negative(t, c.e.napTime())
	p.noteNoRoom(transport.ErrAgain)
	require.Equal(t, lastRetry, c.e.napTime())
	h.again = false
	_, err := r.Wait(background)
	require.NoError(t, err)
	require.Zero(t, p.noRoomSince)
}

// TestAnAnswerMayOvertakeACompletion: the fabric reports that a message has left only after the
// peer's answer to the message has arrived. The send completes without an error.
func TestAnAnswerMayOvertakeACompletion(t *testing.T) {
	h := &hooks{hold: true}
	c, s := openHooked(t, h, noAsync, inproc.WithoutRMA(), inproc.WithInjectSize(0), inproc.WithEagerLimit(0))
	r := c.Isend(make([]byte, 1000), Env{Peer: 1, Tag: 1})
	s.sendMessage(t, wire.Message{Kind: wire.MsgCTS, Length: 1000}) // the handle 0 identifies r
	_, done, err := r.Test()
	require.NoError(t, err)
	require.False(t, done)
	h.hold = false
	_, err = r.Wait(background)
	require.NoError(t, err)
	require.Empty(t, c.e.Failed())
}

// TestStreamsTakeTurns: the endpoint has no room for the segments of two rendezvous without RMA, so
// both requests wait in the queue of their peer. Engine.retry moves the request that it has tried
// to the end of the queue.
func TestStreamsTakeTurns(t *testing.T) {
	h := &hooks{}
	c, s := openHooked(t, h, noAsync, inproc.WithoutRMA(), inproc.WithEagerLimit(0))
	first := c.Isend(make([]byte, 1000), Env{Peer: 1, Tag: 1})
	second := c.Isend(make([]byte, 1000), Env{Peer: 1, Tag: 2})
	h.again = true
	s.sendMessage(t, wire.Message{Kind: wire.MsgCTS, Length: 1000, Handle: first.r.handle()})
	s.sendMessage(t, wire.Message{Kind: wire.MsgCTS, Length: 1000, Handle: second.r.handle()})
	_, done, err := first.Test()
	require.NoError(t, err)
	require.False(t, done)
	c.e.mu.Lock()
	before := c.e.peers[1].streams.head.req
	c.e.retry()
	after := c.e.peers[1].streams.head.req
	c.e.mu.Unlock()
	require.NotSame(t, before, after)
	h.again = false
	for _, r := range []Request{first, second} {
		_, err = r.Wait(background)
		require.NoError(t, err)
	}
}

// TestSelfMessagesEndWithTheEngine: the data of a synchronous message of a rank to itself stays in
// the buffer of its send. When the engine is killed or fails, the send fails with ErrClosed. A
// later receive also fails, and does not get data from a slot that a new send uses.
func TestSelfMessagesEndWithTheEngine(t *testing.T) {
	broken := errors.New("broken")
	for name, end := range map[string]func(c *Context, h *hooks){
		"kill": func(c *Context, _ *hooks) { c.e.Kill() },
		"fail": func(c *Context, h *hooks) {
			h.read = func() (int, error) { return 0, broken }
			_, _, _ = c.Iprobe(Env{Peer: 1, Tag: 1})
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := &hooks{}
			c, _ := openHooked(t, h, noAsync)
			env := Env{Peer: 0, Tag: 1, Mode: Synchronous}
			first, second := c.Isend([]byte{1}, env), c.Isend([]byte{2}, env)
			m, _, ok, err := c.Improbe(env)
			require.NoError(t, err)
			require.True(t, ok)
			end(c, h)
			for _, s := range []Request{first, second} {
				_, err := s.Wait(background)
				require.ErrorIs(t, err, ErrClosed)
			}
			_, err = m.Recv(background, make([]byte, 1))
			require.ErrorIs(t, err, ErrClosed)
			_, err = c.Recv(background, make([]byte, 1), env)
			require.ErrorIs(t, err, ErrClosed)
			runWithTimeout(t, func() { err = c.Send(background, []byte{3}, env) })
			require.ErrorIs(t, err, ErrClosed)
		})
	}
}

// TestRevokeFreesASelfMessage: a synchronous send of a rank to itself uses the slot of an earlier
// rendezvous. A revocation ends the send, and no slot stays in use.
func TestRevokeFreesASelfMessage(t *testing.T) {
	c, s := openHooked(t, &hooks{}, noAsync)
	r := c.Isend(make([]byte, 1<<20), Env{Peer: 1, Tag: 1})
	s.sendMessage(t, wire.Message{Kind: wire.MsgFin}) // Handle is 0, which is the handle of r
	_, err := r.Wait(background)
	require.NoError(t, err)
	// The request uses the slot of the first send, which has sent an RTS.
	r = c.Isend([]byte{1}, Env{Peer: 0, Tag: 1, Mode: Synchronous})
	c.Revoke(errors.New("test"))
	_, err = r.Wait(background)
	require.ErrorIs(t, err, ErrRevoked)
	require.Zero(t, c.e.slotsInUse())
}

// TestATakenMessageEndsWithARevocation: Mprobe has taken a message out of matching, and then the
// communicator is revoked. A later receive of the message fails with ErrRevoked, and does not wait
// for data that the sender no longer sends.
func TestATakenMessageEndsWithARevocation(t *testing.T) {
	for name, m := range map[string]wire.Message{
		"rendezvous": {Kind: wire.MsgRTS, Tag: 1, Length: cutSize, Handle: 7},
		"eager":      {Kind: wire.MsgEager, Tag: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := openHooked(t, &hooks{}, noAsync, inproc.WithoutRMA())
			s.sendMessage(t, m)
			taken, _, err := c.Mprobe(background, Env{Peer: 1, Tag: 1})
			require.NoError(t, err)
			c.Revoke(errors.New("test"))
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			_, err = taken.Recv(ctx, make([]byte, cutSize))
			require.ErrorIs(t, err, ErrRevoked)
			_, err = taken.Recv(ctx, make([]byte, cutSize))
			require.ErrorIs(t, err, ErrClosed)
			require.Zero(t, c.e.slotsInUse())
		})
	}
}

// TestATakenSelfMessageEndsWithARevocation: Improbe has taken a large message of this rank to itself
// out of matching, and then the communicator is revoked. The send ends with ErrRevoked, although no
// receive follows. A later receive also fails.
func TestATakenSelfMessageEndsWithARevocation(t *testing.T) {
	for _, mode := range []Mode{Standard, Synchronous} {
		c, _ := openHooked(t, &hooks{}, noAsync)
		send := c.Isend(make([]byte, 2<<20), Env{Peer: 0, Tag: 1, Mode: mode})
		m, _, ok, err := c.Improbe(Env{Peer: 0, Tag: 1})
		require.NoError(t, err)
		require.True(t, ok)
		c.Revoke(errors.New("test"))
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		_, err = send.Wait(ctx)
		require.ErrorIs(t, err, ErrRevoked)
		_, err = m.Recv(ctx, make([]byte, 2<<20))
		require.ErrorIs(t, err, ErrRevoked)
		require.Zero(t, c.e.slotsInUse())
	}
}

// TestARevokedSendCannotBeReadAnyMore: after a revocation has ended a send, the program may write
// to its buffer again. So a peer that has the RTS of the send can no longer read from the buffer.
func TestARevokedSendCannotBeReadAnyMore(t *testing.T) {
	c, s := openHooked(t, &hooks{}, noAsync)
	buf := make([]byte, 1<<20)
	r := c.Isend(buf, Env{Peer: 1, Tag: 1})
	var ready wire.Message
	s.receiveOne(t, func(x *transport.Completion) {
		_, err := ready.Parse(x.Msg)
		require.NoError(t, err)
	})
	c.Revoke(errors.New("test"))
	_, err := r.Wait(background)
	require.ErrorIs(t, err, ErrRevoked)
	require.Zero(t, c.e.slotsInUse())
	op := &transport.Op{Peer: 0, Data: make([]byte, len(buf)), RemoteKey: ready.Key, RemoteAddr: ready.Addr}
	require.NoError(t, s.ep.(transport.RMAEndpoint).Read(op))
	for done := false; !done; {
		s.receiveOne(t, func(x *transport.Completion) {
			if done = x.Kind == transport.OpDone; done {
				err = x.Err
			}
		})
	}
	require.ErrorIs(t, err, transport.ErrKey)
	// The send that the MsgFin is for has ended, but that is no protocol error.
	s.sendMessage(t, wire.Message{Kind: wire.MsgFin, Handle: ready.Handle, Length: 1}, finCode(ErrRevoked))
	_, _, err = c.Iprobe(Env{Peer: 0, Tag: 1})
	require.ErrorIs(t, err, ErrRevoked)
	require.Empty(t, c.e.Failed())
}

// TestAWithdrawnMessageIsRevoked: a peer has sent an RTS with the key of a region that does not
// exist any more. The receive of the message fails with ErrRevoked.
func TestAWithdrawnMessageIsRevoked(t *testing.T) {
	c, s := openHooked(t, &hooks{}, noAsync)
	s.sendMessage(t, wire.Message{Kind: wire.MsgRTS, Tag: 1, Length: 8, Key: 12345})
	_, err := c.Recv(background, make([]byte, 8), Env{Peer: 1, Tag: 1})
	require.ErrorIs(t, err, ErrRevoked)
	require.ErrorIs(t, err, transport.ErrKey)
}

// TestAMessageOfANonMemberIsAProtocolError: rank 1 sends a message in a context whose group
// contains only rank 0. Rank 0 marks rank 1 as failed when a receive or probe from any source finds
// the message.
func TestAMessageOfANonMemberIsAProtocolError(t *testing.T) {
	for _, how := range []string{"posted", "unexpected", "probed"} {
		t.Run(how, func(t *testing.T) {
			world, s := openHooked(t, &hooks{}, noAsync)
			c := world.e.OpenContext(2, []int{0})
			env := Env{Peer: AnySource, Tag: 1}
			var r Request
			if how == "posted" {
				r = c.Irecv(make([]byte, 1), env)
			}
			s.sendMessage(t, wire.Message{Kind: wire.MsgEager, Context: 2, Tag: 1, Length: 1}, 7)
			// Iprobe makes the engine poll the transport, and so read the message.
			_, _, err := world.Iprobe(Env{Peer: 0, Tag: 1})
			require.NoError(t, err)
			if how == "probed" {
				_, ok, err := c.Iprobe(env)
				require.NoError(t, err)
				require.False(t, ok)
				require.Equal(t, []int{1}, c.e.Failed())
				return
			}
			if how == "unexpected" {
				r = c.Irecv(make([]byte, 1), env)
			}
			_, err = r.Wait(background)
			require.ErrorIs(t, err, transport.ErrProtocol)
			require.Equal(t, []int{1}, c.e.Failed())
		})
	}
}

func TestTheCauseOfARevokeIsBounded(t *testing.T) {
	c, s := openHooked(t, &hooks{}, noAsync)
	data := make([]byte, 2*maxCause)
	s.sendMessage(t, wire.Message{Kind: wire.MsgRevoke, Length: len(data)}, data...)
	_, _, err := c.Iprobe(Env{Peer: 1, Tag: 1})
	require.ErrorIs(t, err, ErrRevoked)
	require.LessOrEqual(t, strings.Count(err.Error(), "\x00"), maxCause)
}

func TestKillDuringCloseEndsOnce(t *testing.T) {
	flushing := make(chan struct{}, 1)
	h := &hooks{hold: true}
	c, _ := openHooked(t, h, noAsync, inproc.WithInjectSize(0))
	// The send never completes, because its completion is held, so Close waits for it.
	_ = c.Isend([]byte{1}, Env{Peer: 1, Tag: 1})
	h.shutdown = func() { t.Error("shut down after Kill") }
	h.read = func() (int, error) {
		select {
		case flushing <- struct{}{}:
		default:
		}
		return 0, nil
	}
	closed := make(chan error, 1)
	go func() { closed <- c.e.Close(background) }() // ends when Kill is called
	receiveOrFail(t, flushing)
	c.e.Kill()
	receiveOrFail(t, closed)
	require.EqualValues(t, 1, h.closes.Load())
}

// TestNothingIsPostedDuringShutdown: while Close is in the Shutdown of a transport, receives of
// messages that have arrived before fail with ErrClosed, and post nothing to the transport.
func TestNothingIsPostedDuringShutdown(t *testing.T) {
	h := &hooks{}
	c, s := openHooked(t, h, noAsync)
	for tag := range int32(3) {
		s.sendMessage(t, wire.Message{Kind: wire.MsgRTS, Tag: tag, Length: 8})
	}
	s.sendMessage(t, wire.Message{Kind: wire.MsgEagerSync, Tag: 3, Length: 1}, 1)
	m, _, err := c.Mprobe(background, Env{Peer: 1, Tag: 0})
	require.NoError(t, err)
	h.shutdown = func() {
		h.posted = func() { t.Error("posted") }
		buf := make([]byte, 8)
		_, err := c.Recv(background, buf, Env{Peer: 1, Tag: 1})
		require.ErrorIs(t, err, ErrClosed)
		_, err = c.Recv(background, buf, Env{Peer: 1, Tag: 3})
		require.ErrorIs(t, err, ErrClosed)
		_, err = m.Recv(background, buf)
		require.ErrorIs(t, err, ErrClosed)
		c.Close()
	}
	require.NoError(t, c.e.Close(background))
}

// TestAPollWakesTheSleeperForTheRest: the background goroutine sleeps on the transport, and another
// goroutine polls. Its Read returns a message and leaves others that no event reports. So the other
// goroutine wakes the background goroutine.
func TestAPollWakesTheSleeperForTheRest(t *testing.T) {
	for name, poll := range map[string]func(c *Context) error{
		"test": func(c *Context) error { _, _, err := c.Iprobe(Env{Peer: 1, Tag: 2}); return err },
		"lead": func(c *Context) error { _, err := c.Recv(background, nil, Env{Peer: 1, Tag: 2}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			asleep, woken := make(chan struct{}, 100), make(chan struct{}, 100)
			h := &hooks{entries: []transport.Completion{
				{Kind: transport.RecvDone, Peer: 1, Msg: encode(wire.Message{Kind: wire.MsgEager, Seq: 1, Tag: 2})},
			}}
			h.wait = func(done bool) {
				if done {
					woken <- struct{}{}
				} else {
					asleep <- struct{}{}
				}
			}
			c, _ := openHooked(t, h, nil)
			_ = c.Irecv(nil, Env{Peer: 1, Tag: 1}) // makes the background goroutine poll, and then sleep
			receiveOrFail(t, asleep)
			c.e.mu.Lock()
			h.read = func() (int, error) {
				if h.left.Swap(!h.left.Load()) {
					h.read = nil // the next Read asks the real queue, as if all messages were read
					return 0, nil
				}
				return 1, nil
			}
			c.e.mu.Unlock()
			require.NoError(t, poll(c))
			receiveOrFail(t, woken)
		})
	}
}

// TestAContextEndsACallDespiteTraffic: every Read returns a completion that is not for the receive.
// The receive still returns when its context.Context ends.
func TestAContextEndsACallDespiteTraffic(t *testing.T) {
	h := &hooks{entries: []transport.Completion{{Kind: transport.PeerNotice, Peer: -1}}}
	c, _ := openHooked(t, h, noAsync)
	ctx, cancel := context.WithCancel(background)
	reads := 0
	h.read = func() (int, error) {
		if reads++; reads == 3 {
			cancel()
		}
		return 1, nil
	}
	var err error
	runWithTimeout(t, func() { _, err = c.Recv(ctx, make([]byte, 1), Env{Peer: 1, Tag: 1}) })
	require.ErrorIs(t, err, context.Canceled)
}

func TestATaskRunsWhenTheEngineIsClosed(t *testing.T) {
	c, _ := openRawPeer(t)
	c.e.Kill()
	_, err := c.e.Go(func() error { return io.EOF }).Wait(background)
	require.ErrorIs(t, err, io.EOF)
}

// TestRendezvousWithoutRoomForRegions: the transport of rank 0 has no room for memory regions. The
// data of a rendezvous then travels in messages: the send answers a MsgCTS with MsgData, and the
// receive asks for the data by a MsgCTS. mode says whether an RMA read needs a region for its local
// buffer too (MRLocal).
func TestRendezvousWithoutRoomForRegions(t *testing.T) {
	for _, mode := range []transport.MRMode{0, transport.MRLocal} {
		c, s := openHooked(t, &hooks{full: true}, noAsync, inproc.WithMRMode(mode))
		send := c.Isend(pattern(10000, 1), Env{Peer: 1, Tag: 1})
		var rts wire.Message
		s.receiveOne(t, func(x *transport.Completion) {
			_, err := rts.Parse(x.Msg)
			require.NoError(t, err)
		})
		require.Equal(t, wire.MsgRTS, rts.Kind)
		require.Equal(t, uint64(wire.NoRegion), rts.Addr)
		s.sendMessage(t, wire.Message{Kind: wire.MsgCTS, Handle: rts.Handle, Length: 10000})
		_, err := send.Wait(background)
		require.NoError(t, err)
		s.receiveOne(t, func(x *transport.Completion) {
			var m wire.Message
			data, err := m.Parse(x.Msg)
			require.NoError(t, err)
			require.NoError(t, check(data, pattern(10000, 1)))
		})

		m := wire.Message{Kind: wire.MsgRTS, Tag: 1, Length: 10000, Addr: wire.NoRegion}
		if mode != 0 {
			m.Addr = 0 // rank 1 offers a region, but rank 0 needs one for its own buffer, and has no room for it
		}
		s.sendMessage(t, m)
		buf := make([]byte, 10000)
		r := c.Irecv(buf, Env{Peer: 1, Tag: 1})
		_, _, err = r.Test()
		require.NoError(t, err)
		s.receiveOne(t, func(x *transport.Completion) {
			_, err := m.Parse(x.Msg)
			require.NoError(t, err)
		})
		require.Equal(t, wire.MsgCTS, m.Kind)
		s.sendMessage(t, wire.Message{Kind: wire.MsgData, Handle: m.Key, Length: 10000}, pattern(10000, 2)...)
		_, err = r.Wait(background)
		require.NoError(t, err)
		require.NoError(t, check(buf, pattern(10000, 2)))
	}
}
