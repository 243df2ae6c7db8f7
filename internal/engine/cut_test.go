package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/fault"
	"github.com/weft-hpc/weft/transport/inproc"
	"github.com/weft-hpc/weft/transport/tcp"
)

// shortRecv receives a message by calls whose contexts end at random times: by Recv or, for
// AnySource, by Mprobe and Message.Recv. It repeats them until it has a message. cuts is the number
// of attempts that a context has ended.
func shortRecv(c *Context, rng *rand.Rand, buf []byte, env Env) (st Status, cuts int, err error) {
	for ; ; cuts++ {
		ctx, cancel := context.WithTimeout(background, time.Duration(rng.IntN(100))*time.Microsecond)
		if env.Peer == AnySource {
			var m Message
			if m, st, err = c.Mprobe(ctx, env); err == nil {
				st, err = m.Irecv(buf, env.Form, 0).Finish(ctx)
			}
		} else {
			st, err = c.Recv(ctx, buf, env)
		}
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			return st, cuts, err
		}
	}
}

// TestReceivesCutShortLoseNothing: rank 1 receives messages by shortRecv, whose contexts end while
// receives are posted or matched, or have their data transferred. Two of three receives have a
// layout. Every message arrives once, whole and in order.
func TestReceivesCutShortLoseNothing(t *testing.T) {
	const messages = 300
	size := func(i int) int { return 1 + i*7919%60000 }
	exchange := func(t *testing.T, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			rng := rand.New(rand.NewPCG(3, uint64(rank)))
			if rank == 0 {
				var sends []Request
				for i := range messages {
					sends = append(sends, c.Isend(pattern(size(i), i), Env{Peer: 1, Tag: 5}))
				}
				for _, s := range sends {
					if _, err := s.Wait(background); err != nil {
						return err
					}
				}
				return nil
			}
			all := 0
			for i := range messages {
				env := Env{Peer: 0, Tag: 5}
				switch i % 4 {
				case 1:
					env.Tag = AnyTag
				case 2:
					env.Peer = AnySource
				}
				l := viewShapes(size(i))[i%3]
				env.Form = formOf(l)
				mem := memoryOf(l, size(i), 0xAA)
				st, cuts, err := shortRecv(c, rng, mem, env)
				all += cuts
				if err == nil && st.Bytes != size(i) {
					err = fmt.Errorf("%+v for %d bytes", st, size(i))
				}
				if err == nil {
					err = checkView(l, mem, pattern(size(i), i), 0xAA)
				}
				if err != nil {
					return fmt.Errorf("message %d: %w", i, err)
				}
			}
			_, ok, err := c.Iprobe(Env{Peer: 0, Tag: AnyTag})
			if ok {
				err = errors.New("a message arrived twice")
			}
			return err
		})
		var bytes int64
		for i := range messages {
			bytes += int64(size(i))
		}
		sent, received := cs[0].e.Account(), cs[1].e.Account()
		require.Equal(t, []int64{messages, bytes}, []int64{sent.MessagesSent, sent.BytesSent})
		require.Equal(t, []int64{messages, bytes}, []int64{received.MessagesReceived, received.BytesReceived})
	}
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) { exchange(t, cs) })
	t.Run("faults", func(t *testing.T) {
		for seed := range uint64(4) {
			plan := fault.Legal(seed)
			exchange(t, world(openJob(t, 2, fault.Wrap(inproc.NewFabric(inproc.WithEagerLimit(0), inproc.WithRMADelay(3)), plan), nil)))
			exchange(t, world(openJob(t, 2, fault.Wrap(inproc.NewFabric(inproc.WithoutRMA(), inproc.WithMaxMsgSize(2000)), plan), nil)))
		}
	})
	t.Run("tcp", func(t *testing.T) { exchange(t, world(openJob(t, 2, tcp.New(), nil))) })
}

// TestReceiversOfOneKeyCutShort: several goroutines of rank 1 receive messages from the same source
// with the same tag by shortRecv. Each message goes to exactly one of them.
func TestReceiversOfOneKeyCutShort(t *testing.T) {
	const messages, receivers, size = 200, 3, 20000
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			if rank == 0 {
				for i := range messages {
					if err := c.Send(background, pattern(size, i), Env{Peer: 1}); err != nil {
						return err
					}
				}
				return nil
			}
			var wg sync.WaitGroup
			var mu sync.Mutex
			seen := make(map[byte]int)
			errs := make([]error, receivers)
			left := messages
			for i := range receivers {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(4, uint64(i)))
					buf := make([]byte, size)
					for {
						mu.Lock()
						left--
						over := left < 0
						mu.Unlock()
						if over {
							return
						}
						if _, _, errs[i] = shortRecv(c, rng, buf, Env{Peer: 0}); errs[i] != nil {
							return
						}
						mu.Lock()
						seen[buf[0]]++
						mu.Unlock()
						for k := range buf[:1000] {
							if buf[k] != buf[0]+byte(k*7+k>>8) {
								errs[i] = fmt.Errorf("byte %d of message %d", k, buf[0])
								return
							}
						}
					}
				})
			}
			wg.Wait()
			for i := range messages {
				if b := pattern(1, i)[0]; seen[b] == 0 {
					errs = append(errs, fmt.Errorf("message %d has not arrived", i))
				} else {
					seen[b]--
				}
			}
			return errors.Join(errs...)
		})
	})
}

// endedContext returns a context.Context that has ended, so that a call with it does not wait.
func endedContext() context.Context {
	ctx, cancel := context.WithCancel(background)
	cancel()
	return ctx
}

// cutJob is the state in which a test starts: the engine of rank 0, and a rawPeer as rank 1. Rank 1
// has sent two messages. Rank 0 has called Recv for the first one, with a context that had ended.
// So Recv has returned, and the transfer of the message's data continues.
type cutJob struct {
	t     *testing.T
	c     *Context
	s     *rawPeer
	h     *hooks
	first error  // error that the Recv for the first message has returned
	fills bool   // rank 1 sends the data in MsgData messages; false: rank 0 reads it by RMA
	key   uint64 // handle of the receive, for the MsgData messages
}

// cutSize is the length of the first message in bytes.
const cutSize = 5000

// cutRead returns a cutJob in which rank 0 reads the data of the first message by RMA.
func cutRead(t *testing.T) *cutJob {
	h := &hooks{hold: true}
	c, s := openHooked(t, h, noAsync)
	mr, err := s.dom.RegisterMemory(pattern(cutSize, 1), transport.RemoteRead)
	require.NoError(t, err)
	s.sendMessage(t, wire.Message{Kind: wire.MsgRTS, Tag: 1, Length: cutSize, Key: mr.Key(), Handle: 7})
	return cutFirstReceive(t, c, s, h)
}

// cutFill returns a cutJob in which rank 1 sends the data of the first message in MsgData messages.
func cutFill(t *testing.T) *cutJob {
	h := &hooks{}
	c, s := openHooked(t, h, noAsync, inproc.WithoutRMA())
	s.sendMessage(t, wire.Message{Kind: wire.MsgRTS, Tag: 1, Length: cutSize, Handle: 7})
	j := cutFirstReceive(t, c, s, h)
	j.fills = true
	s.receiveOne(t, func(x *transport.Completion) {
		var m wire.Message
		_, err := m.Parse(x.Msg)
		require.NoError(t, err)
		require.Equal(t, wire.MsgCTS, m.Kind)
		j.key = m.Key
	})
	j.segment(0, 1000)
	return j
}

func cutFirstReceive(t *testing.T, c *Context, s *rawPeer, h *hooks) *cutJob {
	s.sendMessage(t, wire.Message{Kind: wire.MsgEager, Tag: 1, Length: 1}, 99)
	_, err := c.Probe(background, Env{Peer: 1, Tag: 1})
	require.NoError(t, err)
	st, err := c.Recv(endedContext(), make([]byte, cutSize), Env{Peer: 1, Tag: AnyTag})
	require.ErrorIs(t, err, context.Canceled)
	require.True(t, st.Cancelled)
	return &cutJob{t: t, c: c, s: s, h: h, first: err}
}

// segment sends, as rank 1, the bytes of the first message in the range [from, to).
func (j *cutJob) segment(from, to int) {
	j.s.sendMessage(j.t, wire.Message{Kind: wire.MsgData, Handle: j.key, Addr: uint64(from), Length: to - from}, pattern(cutSize, 1)[from:to]...)
}

// finish completes the transfer of the first message, and lets rank 0 poll.
func (j *cutJob) finish() {
	j.h.hold = false
	if j.fills {
		j.segment(1000, cutSize)
	}
	j.c.e.mu.Lock()
	j.c.e.progress()
	j.c.e.mu.Unlock()
}

// fins returns the number of MsgFin messages that rank 0 has sent for the first message.
func (j *cutJob) fins() (n int) {
	for range 10 {
		j.s.receiveOne(j.t, func(x *transport.Completion) {
			var m wire.Message
			if _, err := m.Parse(x.Msg); x.Kind == transport.RecvDone && err == nil && m.Kind == wire.MsgFin {
				require.EqualValues(j.t, 7, m.Handle)
				n++
			}
		})
	}
	return n
}

// cuts holds the functions that make a cutJob, by the way in which the data is transferred.
var cuts = map[string]func(t *testing.T) *cutJob{"read": cutRead, "fill": cutFill}

func eachCut(t *testing.T, f func(t *testing.T, j *cutJob)) {
	for name, make := range cuts {
		t.Run(name, func(t *testing.T) { f(t, make(t)) })
	}
}

// TestAMatchedMessageCanBeReceivedAgain: a receive was cut short while the data of its message was
// transferred (cutJob). A second receive gets this message, and not the later one. It may be posted
// before or after the end of the transfer, and other receives of the message may be cut short
// before it.
func TestAMatchedMessageCanBeReceivedAgain(t *testing.T) {
	for name, again := range map[string]func(j *cutJob, buf []byte) (Status, error){
		"at once": func(j *cutJob, buf []byte) (Status, error) {
			r := j.c.Irecv(buf, Env{Peer: 1, Tag: 1})
			j.finish()
			return r.Wait(background)
		},
		"later": func(j *cutJob, buf []byte) (Status, error) {
			j.finish()
			return j.c.Recv(background, buf, Env{Peer: AnySource, Tag: 1})
		},
		"cut again": func(j *cutJob, buf []byte) (Status, error) {
			for range 3 {
				_, err := j.c.Recv(endedContext(), buf, Env{Peer: 1, Tag: 1})
				require.ErrorIs(j.t, err, context.Canceled)
				var u *Unfinished
				require.False(j.t, errors.As(err, &u), "the transfer does not use this call's buffer")
			}
			r := j.c.Irecv(buf, Env{Peer: 1, Tag: 1})
			j.finish()
			return r.Wait(background)
		},
		"probed": func(j *cutJob, buf []byte) (Status, error) {
			m, st, err := j.c.Mprobe(background, Env{Peer: AnySource, Tag: AnyTag})
			require.NoError(j.t, err)
			require.Equal(j.t, cutSize, st.Bytes)
			_, err = m.Recv(endedContext(), buf)
			require.ErrorIs(j.t, err, context.Canceled)
			m, _, err = j.c.Mprobe(background, Env{Peer: AnySource, Tag: AnyTag})
			require.NoError(j.t, err)
			r := m.Irecv(buf, nil, 0)
			j.finish()
			return r.Wait(background)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachCut(t, func(t *testing.T, j *cutJob) {
				buf := make([]byte, cutSize)
				st, err := again(j, buf)
				require.NoError(t, err)
				require.Equal(t, Status{Source: 1, Tag: 1, Bytes: cutSize}, st)
				require.NoError(t, check(buf, pattern(cutSize, 1)))
				var u *Unfinished
				if errors.As(j.first, &u) {
					require.NoError(t, u.Wait(background))
				}
				_, err = j.c.Recv(background, buf, Env{Peer: 1, Tag: 1})
				require.NoError(t, err)
				require.EqualValues(t, 99, buf[0])
				want := 1
				if j.fills {
					want = 0 // the receiver sends no MsgFin if the data arrives in MsgData messages
				}
				require.Equal(t, want, j.fins())
				require.Empty(t, j.c.e.Failed())
			})
		})
	}
}

// TestWhatEndsAMessageCutShort: a receive was cut short (cutJob). Then the sender fails, the
// communicator is revoked, or the engine ends. A second receive fails with the error of this event,
// whether it is posted before or after the event.
func TestWhatEndsAMessageCutShort(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(j *cutJob)
		want error
	}{
		"the sender fails": {func(j *cutJob) { j.c.e.MarkFailed("reported", 1) }, ErrProcFailed},
		"revoked":          {func(j *cutJob) { j.c.Revoke(errors.New("cause")) }, ErrRevoked},
		"killed":           {func(j *cutJob) { j.c.e.Kill() }, ErrClosed},
		"the engine fails": {func(j *cutJob) { j.c.e.MarkFailed("reported", 0) }, ErrClosed},
	} {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/waits %v", name, waits), func(t *testing.T) {
				eachCut(t, func(t *testing.T, j *cutJob) {
					buf := make([]byte, cutSize)
					var r Request
					if waits {
						r = j.c.Irecv(buf, Env{Peer: 1, Tag: 1})
					}
					c.end(j)
					if name != "killed" {
						j.finish()
					}
					if !waits {
						r = j.c.Irecv(buf, Env{Peer: 1, Tag: 1})
					}
					_, err := r.Wait(background)
					require.ErrorIs(t, err, c.want)
				})
			})
		}
	}
	t.Run("the context closes", func(t *testing.T) {
		eachCut(t, func(t *testing.T, j *cutJob) {
			j.c.Close()
			j.finish()
			require.Zero(t, j.c.e.unexpected.n)
			require.Empty(t, j.c.e.Failed())
		})
	})
}

// TestATakenMessageCutShortIsRevoked: a receive was cut short (cutJob), and Mprobe has taken its
// message out of matching. The communicator is revoked before all data has arrived. A receive of the
// message fails with ErrRevoked, and does not return the part of the data that has arrived as the
// whole message.
func TestATakenMessageCutShortIsRevoked(t *testing.T) {
	for name, receive := range map[string]func(m Message, buf []byte) error{
		"by Recv": func(m Message, buf []byte) error {
			_, err := m.Recv(background, buf)
			return err
		},
		// Message.Irecv checks for a revocation; accept, which it calls, does not.
		"by accept": func(m Message, buf []byte) error {
			e := m.c.e
			e.mu.Lock()
			r := e.take(kindRecv)
			r.ctx, r.peer, r.mode = m.c, wild, modeProbed
			r.setData(buf, nil)
			e.accept(r, m.u)
			q := e.public(r, false)
			e.mu.Unlock()
			_, err := q.Wait(background)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachCut(t, func(t *testing.T, j *cutJob) {
				m, _, err := j.c.Mprobe(background, Env{Peer: 1, Tag: AnyTag})
				require.NoError(t, err)
				j.c.Revoke(errors.New("test"))
				j.finish()
				require.ErrorIs(t, receive(m, make([]byte, cutSize)), ErrRevoked)
			})
		})
	}
}

// TestATooLongMessageCutShort: a receive with a short buffer is cut short after it has asked the
// sender for the data. The call returns ErrTruncate and the context's error, and the message is
// lost, because the sender sends only a part of it.
func TestATooLongMessageCutShort(t *testing.T) {
	c, s := openHooked(t, &hooks{}, noAsync, inproc.WithoutRMA())
	s.sendMessage(t, wire.Message{Kind: wire.MsgRTS, Tag: 1, Length: cutSize})
	_, err := c.Probe(background, Env{Peer: 1, Tag: 1})
	require.NoError(t, err)
	_, err = c.Recv(endedContext(), make([]byte, 10), Env{Peer: 1, Tag: 1})
	require.ErrorIs(t, err, ErrTruncate)
	require.ErrorIs(t, err, context.Canceled)
	_, ok, err := c.Iprobe(Env{Peer: 1, Tag: 1})
	require.NoError(t, err)
	require.False(t, ok)
}

// TestASendCutShort: if the context of a Send ends before the message has left, the message is
// withdrawn. If the message has left, the send continues, and Unfinished.Wait returns the send's
// result.
func TestASendCutShort(t *testing.T) {
	h := &hooks{again: true}
	c, s := openHooked(t, h, noAsync)
	err := c.Send(endedContext(), make([]byte, 10), Env{Peer: 1, Tag: 1})
	require.ErrorIs(t, err, context.Canceled)
	var u *Unfinished
	require.False(t, errors.As(err, &u))
	h.again = false

	err = c.Send(endedContext(), make([]byte, 10), Env{Peer: 1, Tag: 1, Mode: Synchronous})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorAs(t, err, &u)
	require.ErrorIs(t, u.Wait(endedContext()), context.Canceled)
	var handle uint64
	for range 10 {
		s.receiveOne(t, func(x *transport.Completion) {
			var m wire.Message
			_, err := m.Parse(x.Msg)
			require.NoError(t, err)
			require.Equal(t, wire.MsgEagerSync, m.Kind, "the first message is withdrawn")
			handle = m.Handle
		})
	}
	s.sendMessage(t, wire.Message{Kind: wire.MsgAck, Handle: handle})
	require.NoError(t, u.Wait(background))

	err = c.Send(endedContext(), make([]byte, 10), Env{Peer: 1, Tag: 1, Mode: Synchronous})
	require.ErrorAs(t, err, &u)
	c.e.MarkFailed("reported", 1)
	require.ErrorIs(t, u.Wait(background), ErrProcFailed)
}

// TestAMessageCutShortInFinalize: a receive was cut short (cutJob). If the sender then calls
// Finalize, another receive still gets the message. If the receiver calls Finalize, it refuses the
// message as soon as the transfer has ended.
func TestAMessageCutShortInFinalize(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprintf("the sender/waits %v", waits), func(t *testing.T) {
			eachCut(t, func(t *testing.T, j *cutJob) {
				buf := make([]byte, cutSize)
				receive := func() Request { return j.c.Irecv(buf, Env{Peer: 1, Tag: 1}) }
				var r Request
				if waits {
					r = receive()
				}
				j.s.sendMessage(t, wire.Message{Kind: wire.MsgLeave})
				_, err := j.c.Recv(background, nil, Env{Peer: 1, Tag: 2})
				require.ErrorIs(t, err, ErrFinalized)
				j.finish()
				if !waits {
					r = receive()
				}
				_, err = r.Wait(background)
				require.NoError(t, err)
				require.NoError(t, check(buf, pattern(cutSize, 1)))
				_, err = j.c.Recv(background, buf, Env{Peer: 1, Tag: 1})
				require.NoError(t, err)
				require.EqualValues(t, 99, buf[0])
				_, err = j.c.Recv(background, buf, Env{Peer: 1, Tag: 1})
				require.ErrorIs(t, err, ErrFinalized)
			})
		})
	}
	t.Run("the receiver", func(t *testing.T) {
		eachCut(t, func(t *testing.T, j *cutJob) {
			require.NoError(t, j.c.Leave(background))
			j.finish()
			n, few := j.c.e.Unreceived()
			require.Equal(t, 2, n)
			require.Equal(t, cutSize, few[0].Bytes)
			want := 1
			if j.fills {
				want = 0 // the receiver sends no MsgFin if the data arrives in MsgData messages
			}
			require.Equal(t, want, j.fins())
			require.Empty(t, j.c.e.Failed())
		})
	})
}
