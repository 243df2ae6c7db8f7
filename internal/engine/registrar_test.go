package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc/pintest"
)

// slowly registers after a short random time.
func slowly() error {
	time.Sleep(rand.N(200 * time.Microsecond))
	return nil
}

// roundTrips sends n messages of one byte from a to b and back.
func roundTrips(a, b *Context, n int) error {
	one := make([]byte, 1)
	for range n {
		for _, c := range [][2]*Context{{a, b}, {b, a}} {
			if err := c[0].Send(background, one, Env{Peer: c[1].me(), Tag: 7}); err != nil {
				return err
			}
			if _, err := c[1].Recv(background, one, Env{Peer: c[0].me(), Tag: 7}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Context) me() int { return c.rank(int32(c.e.rank)) }

// TestRegistrationBlocksNoOtherMessage: while the buffer of a send, and then that of its receive, is
// being registered, both ranks exchange messages with another rank, and a later message to the same
// rank keeps its place. At the end no region is open.
func TestRegistrationBlocksNoOtherMessage(t *testing.T) {
	g := pintest.NewGates()
	sender, receiver := g.Next(), g.Next()
	f := pintest.New(g.Pass)
	cs := world(openJob(t, 3, f, nil))
	data, in := pattern(100_000, 3), make([]byte, 100_000)
	send := cs[0].Isend(data, Env{Peer: 1, Tag: 1})
	small := cs[0].Isend([]byte{9}, Env{Peer: 1, Tag: 1})
	recv := cs[1].Irecv(in, Env{Peer: 0, Tag: 1})
	next := make([]byte, 1)
	recvSmall := cs[1].Irecv(next, Env{Peer: 0, Tag: 1})
	both := func() {
		require.NoError(t, roundTrips(cs[0], cs[2], 20))
		require.NoError(t, roundTrips(cs[1], cs[2], 20))
	}
	both()
	require.False(t, small.Done())
	close(sender)
	_, err := recvSmall.Wait(background)
	require.NoError(t, err)
	require.Equal(t, []byte{9}, next)
	both()
	require.False(t, send.Done())
	require.False(t, recv.Done())
	close(receiver)
	for _, q := range []Request{send, small, recv} {
		_, err := q.Wait(background)
		require.NoError(t, err)
	}
	require.NoError(t, check(in, data))
	require.Eventually(t, func() bool { return f.Regions.Load() == 0 }, testTimeout, time.Millisecond)
}

// TestRegistrationFails: if the fabric refuses the buffer of the sender or of the receiver, the call
// fails with the cause; if it has no room for a region, the message arrives by messages.
func TestRegistrationFails(t *testing.T) {
	errPin := errors.New("no page can be pinned")
	for _, of := range []string{"sender", "receiver"} {
		for _, result := range []error{errPin, transport.ErrAgain} {
			t.Run(fmt.Sprint(of, "/", result), func(t *testing.T) {
				calls := 0
				f := pintest.New(func() error {
					if calls++; (calls == 1) == (of == "sender") && calls < 3 {
						return result
					}
					return nil
				})
				cs := world(openJob(t, 2, f, nil))
				data, in := pattern(50_000, 4), make([]byte, 50_000)
				send := cs[0].Isend(data, Env{Peer: 1})
				ctx, cancel := context.WithCancel(background)
				recv := cs[1].Irecv(in, Env{Peer: 0})
				_, sent := send.Wait(background)
				if sent != nil && of == "sender" {
					cancel() // the message was never sent
				}
				_, received := recv.Finish(ctx)
				cancel()
				switch {
				case errors.Is(result, transport.ErrAgain):
					require.NoError(t, sent)
					require.NoError(t, received)
					require.NoError(t, check(in, data))
				case of == "sender":
					require.ErrorIs(t, sent, errPin)
				default:
					require.ErrorIs(t, received, errPin)
					require.Error(t, sent)
				}
				require.NoError(t, roundTrips(cs[0], cs[1], 1))
			})
		}
	}
}

// TestCutWhileRegistering: a send or receive whose context ends while its buffer is being registered
// gives the buffer back at once, and no message is lost.
func TestCutWhileRegistering(t *testing.T) {
	g := pintest.NewGates()
	f := pintest.New(g.Pass)
	cs := world(openJob(t, 2, f, nil))
	data, in := pattern(20_000, 5), make([]byte, 20_000)
	short, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()

	gate := g.Next()
	err := cs[0].Send(short, data, Env{Peer: 1})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var u *Unfinished
	require.False(t, errors.As(err, &u), "the message was withdrawn")
	close(gate)

	send := cs[0].Isend(data, Env{Peer: 1})
	require.NoError(t, roundTrips(cs[0], cs[1], 1)) // the RTS has arrived
	gate = g.Next()
	again, cancel := context.WithTimeout(background, 20*time.Millisecond)
	defer cancel()
	_, err = cs[1].Recv(again, in, Env{Peer: 0})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.False(t, errors.As(err, &u), "the message is unexpected again")
	recv := cs[1].Irecv(in, Env{Peer: 0})
	close(gate)
	for _, q := range []Request{send, recv} {
		_, err := q.Wait(background)
		require.NoError(t, err)
	}
	require.NoError(t, check(in, data))
	require.Eventually(t, func() bool { return f.Regions.Load() == 0 }, testTimeout, time.Millisecond)
}

// TestMessageBehindACutSend: a message that waits behind a send, whose buffer is being registered, leaves
// when that send is withdrawn, although its rank sleeps on the transports.
func TestMessageBehindACutSend(t *testing.T) {
	g := pintest.NewGates()
	cs := world(openJob(t, 2, pintest.New(g.Pass), noAsync))
	woken := make(chan error)
	go func() { // ends when rank 1 sends below
		_, err := cs[0].Recv(background, make([]byte, 1), Env{Peer: 1, Tag: 4})
		woken <- err
	}()
	gate := g.Next()
	defer close(gate)
	send := cs[0].Isend(pattern(20_000, 5), Env{Peer: 1})
	<-g.Entered
	behind := cs[0].Isend([]byte{8}, Env{Peer: 1, Tag: 3})
	require.Eventually(t, func() bool {
		e := cs[0].e
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.asleep && e.nap < 0
	}, testTimeout, time.Millisecond)
	_, err := send.Retract(context.Canceled)
	require.ErrorIs(t, err, context.Canceled)
	one := make([]byte, 1)
	_, err = cs[1].Recv(background, one, Env{Peer: 0, Tag: 3})
	require.NoError(t, err)
	require.Equal(t, []byte{8}, one)
	require.NoError(t, cs[1].Send(background, one, Env{Peer: 0, Tag: 4}))
	require.NoError(t, <-woken)
	_, err = behind.Wait(background)
	require.NoError(t, err)
}

// TestCloseWhileRegistering: Close ends requests whose buffers are being registered, and waits for
// the registration.
func TestCloseWhileRegistering(t *testing.T) {
	g := pintest.NewGates()
	gate := g.Next()
	engines := openJob(t, 2, pintest.New(g.Pass), nil)
	cs := world(engines)
	send := cs[0].Isend(pattern(20_000, 5), Env{Peer: 1})
	<-g.Entered
	closed := make(chan error)
	go func() { closed <- engines[0].Close(background) }() // ends with Close; received below
	_, err := send.Wait(background)
	require.ErrorIs(t, err, ErrClosed)
	select {
	case err := <-closed:
		t.Fatal("Close has ended during a registration: ", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(gate)
	require.NoError(t, <-closed)
}
