package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// A call of each kind that waits for rank 2, or could.
var waitsForTwo = map[string]func(c *Context) error{
	"recv": func(c *Context) error {
		_, err := c.Recv(background, make([]byte, 8), Env{Peer: 2, Tag: 1})
		return err
	},
	"recv from any": func(c *Context) error {
		_, err := c.Recv(background, make([]byte, 8), Env{Peer: AnySource, Tag: 1})
		return err
	},
	"ssend": func(c *Context) error {
		return c.Send(background, make([]byte, 8), Env{Peer: 2, Tag: 1, Mode: Synchronous})
	},
	"large send": func(c *Context) error { return c.Send(background, make([]byte, 1<<20), Env{Peer: 2, Tag: 1}) },
	"probe":      func(c *Context) error { _, err := c.Probe(background, Env{Peer: 2, Tag: 1}); return err },
	"irecv": func(c *Context) error {
		_, err := c.Irecv(make([]byte, 8), Env{Peer: 2, Tag: 1}).Wait(background)
		return err
	},
	"wait any": func(c *Context) error {
		r := c.Irecv(make([]byte, 8), Env{Peer: 2, Tag: 1})
		if _, err := WaitAny(background, 1, func(int) Request { return r }); err != nil {
			return err
		}
		_, err := r.Wait(background)
		return err
	},
	"await": func(c *Context) error {
		var word atomic.Uint64
		return c.Await(background, 2, &word, 1)
	},
	"task": func(c *Context) error {
		_, err := c.e.Go(func() error {
			_, err := c.Recv(background, make([]byte, 8), Env{Peer: 2, Tag: 1})
			return err
		}).Wait(background)
		return err
	},
}

// endDuring runs every waiting call on rank 0 while end happens on the other
// side, and wants each to fail with an error.
func endDuring(t *testing.T, want error, end func(engines []*Engine, cs []*Context)) {
	for name, call := range waitsForTwo {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", name, early), func(t *testing.T) {
				everyFlavour(t, 3, func(t *testing.T, engines []*Engine, cs []*Context) {
					if early {
						end(engines, cs)
					}
					failed := make(chan error, 1)
					go func() { failed <- call(cs[0]) }() // ends with the call
					if !early {
						end(engines, cs)
					}
					ranks(t, cs[:1], func(*Context, int) error { return wantErr(<-failed, want) })
				})
			})
		}
	}
}

func TestAPeerThatDiesEndsEveryCall(t *testing.T) {
	endDuring(t, ErrProcFailed, func(engines []*Engine, _ []*Context) { engines[2].Kill() })
}

func TestRevokeEndsEveryCall(t *testing.T) {
	endDuring(t, ErrRevoked, func(_ []*Engine, cs []*Context) { cs[1].Revoke(errors.New("tired")) })
}

func TestCloseEndsEveryCall(t *testing.T) {
	endDuring(t, ErrClosed, func(engines []*Engine, _ []*Context) { engines[0].Kill() })
}

func TestWhatADeadPeerSentCanStillBeReceived(t *testing.T) {
	engines := openJob(t, 2, inproc.NewFabric(), nil)
	cs := world(engines)
	require.NoError(t, cs[1].Send(background, pattern(100, 1), Env{Peer: 0, Tag: 1}))
	_, err := cs[0].Probe(background, Env{Peer: 1, Tag: 1})
	require.NoError(t, err)
	engines[1].Kill()
	_, err = cs[0].Recv(background, nil, Env{Peer: 1, Tag: 2})
	require.ErrorIs(t, err, ErrProcFailed)
	require.Equal(t, []int{1}, engines[0].Failed())
	buf := make([]byte, 100)
	_, err = cs[0].Recv(background, buf, Env{Peer: 1, Tag: 1})
	require.NoError(t, err)
	require.NoError(t, check(buf, pattern(100, 1)))
}

func TestRevokedMessagesAreRefused(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			if rank == 0 {
				return wantErr(c.Send(background, make([]byte, 1<<20), Env{Peer: 1, Tag: 1, Mode: Synchronous}), ErrRevoked)
			}
			if _, err := c.Probe(background, Env{Peer: 0, Tag: 1}); err != nil {
				return err
			}
			c.Revoke(errors.New("enough"))
			_, err := c.Recv(background, make([]byte, 1<<20), Env{Peer: 0, Tag: 1})
			return wantErr(err, ErrRevoked)
		})
	})
}

func TestAnotherCollectiveIsAMismatch(t *testing.T) {
	everyFlavour(t, 2, func(t *testing.T, _ []*Engine, cs []*Context) {
		ranks(t, cs, func(c *Context, rank int) error {
			for _, n := range []int{8, 100000} {
				env := Env{Peer: 1 - rank, Tag: n, Sig: uint16(rank + 1)}
				s := c.Isend(make([]byte, n), env)
				_, err := c.Recv(background, make([]byte, n), env)
				if err := wantErr(err, ErrMismatch); err != nil {
					return err
				}
				if _, err := s.Wait(background); err != nil && !errors.Is(err, ErrMismatch) {
					return err
				}
			}
			return nil
		})
	})
}

func TestAPeerThatBreaksTheProtocolIsGivenUp(t *testing.T) {
	for name, b := range map[string][]byte{
		"noise":           {1, 2, 3},
		"nothing":         {},
		"lost message":    encode(wire.Message{Kind: wire.MsgEager, Seq: 2}),
		"negative tag":    encode(wire.Message{Kind: wire.MsgEager, Seq: 1, Tag: -1}),
		"credit":          encode(wire.Message{Kind: wire.MsgCredit, Seq: 1, Credit: math.MaxUint32}),
		"no such fin":     encode(wire.Message{Kind: wire.MsgFin, Seq: 1, Handle: 1 << 40}),
		"no such request": encode(wire.Message{Kind: wire.MsgCTS, Seq: 1, Handle: 0, Length: math.MaxInt}),
		"data for a recv": encode(wire.Message{Kind: wire.MsgData, Seq: 1, Handle: 0, Length: 1}, 7),
		"ack of a recv":   encode(wire.Message{Kind: wire.MsgAck, Seq: 1, Handle: 0}),
	} {
		t.Run(name, func(t *testing.T) {
			c, s := againstStranger(t)
			r := c.Irecv(make([]byte, 8), Env{Peer: 1, Tag: 5}) // its slot is 0
			s.send(t, b)
			_, err := r.Wait(background)
			require.ErrorIs(t, err, ErrProcFailed)
			require.ErrorIs(t, err, transport.ErrProtocol)
		})
	}
}

func TestAHugeRendezvousTouchesOnlyTheBuffer(t *testing.T) {
	c, s := againstStranger(t)
	var b [wire.MessageLong]byte
	m := wire.Message{Kind: wire.MsgRTS, Seq: 1, Length: math.MaxInt, Key: 12345}
	n := m.Put(b[:])
	r := c.Irecv(make([]byte, 8), Env{Peer: 1, Tag: 0})
	s.send(t, b[:n])
	_, err := r.Wait(background)
	require.ErrorIs(t, err, transport.ErrKey)
}

// FuzzPeer throws messages with plausible headers at an engine that has a
// receive and a send of each kind under way.
func FuzzPeer(f *testing.F) {
	for k := range 10 {
		var b [wire.MessageLong]byte
		m := wire.Message{Kind: wire.MessageKind(k), Seq: 1, Handle: 1, Key: 2}
		f.Add(b[:m.Put(b[:])], uint32(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, seq uint32) {
		c, s := againstStranger(t)
		rs := []Request{
			c.Irecv(make([]byte, 64), Env{Peer: 1, Tag: 0}),
			c.Isend(make([]byte, 1<<20), Env{Peer: 1, Tag: 0}),
			c.Isend(make([]byte, 8), Env{Peer: 1, Tag: 0, Mode: Synchronous}),
			c.Irecv(make([]byte, 64), Env{Peer: AnySource, Tag: AnyTag}),
		}
		b = b[:min(len(b), 4000)]
		if len(b) > 24 {
			b[20], b[21], b[22], b[23] = byte(seq), 0, 0, 0
		}
		s.send(t, b)
		s.send(t, b)
		for range 4 {
			for _, r := range rs {
				_, _, _ = r.Test()
			}
		}
	})
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	for _, size := range []int{8, 4096, 100000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			engines := openJob(t, 2, inproc.NewFabric(), nil)
			cs := world(engines)
			const rounds = 500
			done := make(chan error, 1)
			echo := func(c *Context, n int) error {
				buf := make([]byte, size)
				for range n {
					if _, err := c.Recv(background, buf, Env{Peer: 0, Tag: 1}); err != nil {
						return err
					}
					if err := c.Send(background, buf, Env{Peer: 0, Tag: 1}); err != nil {
						return err
					}
				}
				return nil
			}
			go func() { done <- echo(cs[1], 2*(rounds+1)) }() // ends after its rounds
			buf := make([]byte, size)
			require.Zero(t, testing.AllocsPerRun(rounds, func() {
				if err := cs[0].Send(background, buf, Env{Peer: 1, Tag: 1}); err != nil {
					panic(err)
				}
				if _, err := cs[0].Recv(background, buf, Env{Peer: 1, Tag: 1}); err != nil {
					panic(err)
				}
			}))
			require.Zero(t, testing.AllocsPerRun(rounds, func() {
				r := cs[0].Irecv(buf, Env{Peer: 1, Tag: 1})
				s := cs[0].Isend(buf[:], Env{Peer: 1, Tag: 1})
				if _, err := s.Wait(background); err != nil {
					panic(err)
				}
				WaitEach(1, func(int) (Request, context.Context) { return r, background },
					func(_ int, _ Status, _ bool, err error) {
						if err != nil {
							panic(err)
						}
					})
			}))
			require.NoError(t, <-done)
		})
	}
}
