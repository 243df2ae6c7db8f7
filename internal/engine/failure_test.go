package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/inproc"
)

// callsThatWait has one function for each kind of call that waits for rank 2, or that may wait for
// it because it accepts messages from any rank.
var callsThatWait = map[string]func(c *Context) error{
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

// endDuring runs every call of callsThatWait on rank 0. The function end runs before the call, and
// in a second run at the same time as the call. In both runs the call must fail with the error
// want.
func endDuring(t *testing.T, want error, end func(engines []*Engine, cs []*Context)) {
	for name, call := range callsThatWait {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/%v", name, early), func(t *testing.T) {
				everyFlavour(t, 3, func(t *testing.T, engines []*Engine, cs []*Context) {
					if early {
						end(engines, cs)
					}
					failed := make(chan error, 1)
					go func() { failed <- call(cs[0]) }() // ends when the call returns
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
	endDuring(t, ErrRevoked, func(_ []*Engine, cs []*Context) { cs[1].Revoke(errors.New("test")) })
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
			c.Revoke(errors.New("test"))
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

func TestAPeerThatBreaksTheProtocolIsMarkedAsFailed(t *testing.T) {
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
			c, s := openRawPeer(t)
			r := c.Irecv(make([]byte, 8), Env{Peer: 1, Tag: 5}) // its handle is 0
			s.sendRaw(t, b)
			_, err := r.Wait(background)
			require.ErrorIs(t, err, ErrProcFailed)
			require.ErrorIs(t, err, transport.ErrProtocol)
		})
	}
}

func TestAHugeRendezvousTouchesOnlyTheBuffer(t *testing.T) {
	c, s := openRawPeer(t)
	var b [wire.MessageLong]byte
	m := wire.Message{Kind: wire.MsgRTS, Seq: 1, Length: math.MaxInt, Key: 12345}
	n := m.Put(b[:])
	r := c.Irecv(make([]byte, 8), Env{Peer: 1, Tag: 0})
	s.sendRaw(t, b[:n])
	_, err := r.Wait(background)
	require.ErrorIs(t, err, transport.ErrKey)
}

// FuzzPeer sends arbitrary messages, as rank 1, to the engine of rank 0, which has receives and
// sends of each kind under way. All requests end at the latest when the engine is killed, and
// nothing outside of the receives' buffers changes. The input is a sequence of messages:
//
//	│ length │ how │ bytes … │    how: bit 0: the header has the right sequence number
//	                                   bit 1: its handle is that of the request rs[how>>4&3]
//	                                   bit 2: its length is that of its data
func FuzzPeer(f *testing.F) {
	part := func(how byte, m wire.Message, data ...byte) []byte {
		b := encode(m, data...)
		return append([]byte{byte(len(b)), how}, b...)
	}
	var all [][]byte
	for k := wire.MsgEager; k <= wire.MsgReady+1; k++ {
		for _, m := range []wire.Message{{Kind: k}, {Kind: k, Key: 2, Length: 100}, {Kind: k, Sig: 7, Credit: 1}} {
			all = append(all, part(1, m))
			for r := range byte(6) {
				f.Add(part(3|r<<4, m))
				f.Add(append(part(3|r<<4, m), part(7|r<<4, wire.Message{Kind: wire.MsgData}, 1, 2, 3)...))
			}
		}
	}
	f.Add(bytes.Join(all, nil))
	f.Add(slices.Concat(part(1, wire.Message{Kind: wire.MsgRTS, Tag: 2, Length: 64}), part(1, wire.Message{Kind: wire.MsgReady, Handle: 1, Addr: 1, Key: 2})))
	// Another seed is each of these messages after a MsgLeave, after which a correct peer sends no
	// message of its program.
	for _, b := range all {
		f.Add(slices.Concat(part(1, wire.Message{Kind: wire.MsgLeave}), b))
	}
	f.Add(bytes.Repeat(part(5, wire.Message{Kind: wire.MsgEager}, 1, 2, 3), 3))
	f.Add([]byte{3, 0, 1, 2, 3})
	f.Fuzz(func(t *testing.T, in []byte) {
		c, s := openRawPeer(t)
		bufs := [2][]byte{bytes.Repeat([]byte{0xa5}, 96), bytes.Repeat([]byte{0xa5}, 96)}
		rs := []Request{
			c.Irecv(bufs[0][16:80:80], Env{Peer: 1, Tag: 0}),
			c.Isend(make([]byte, 1<<20), Env{Peer: 1, Tag: 0}),
			c.Isend(make([]byte, 8), Env{Peer: 1, Tag: 0, Mode: Synchronous}),
			c.Irecv(bufs[1][16:80:80], Env{Peer: AnySource, Tag: AnyTag}),
			c.IsendPartitioned(make([]byte, 64), Env{Peer: 1, Tag: 2}, NewPartitions(4, 16)),
			c.IrecvPartitioned(make([]byte, 64), Env{Peer: 1, Tag: 2}, NewPartitions(4, 16)),
		}
		rs[4].Ready(1)
		for len(in) >= 2 {
			how, n := in[1], min(int(in[0]), len(in)-2)
			b := bytes.Clone(in[2 : 2+n])
			in = in[2+n:]
			if how&1 != 0 && len(b) >= wire.MessageShort {
				s.seq++
				binary.LittleEndian.PutUint32(b[20:], s.seq)
			}
			if how&2 != 0 && len(b) >= wire.MessageLong {
				binary.LittleEndian.PutUint64(b[32:], rs[int(how>>4)%len(rs)].r.handle())
			}
			if how&4 != 0 && len(b) >= wire.MessageShort {
				binary.LittleEndian.PutUint64(b[24:], uint64(max(0, len(b)-wire.MessageKind(b[0]).HeaderLen())))
			}
			if _, err := s.ep.Send(&transport.Op{Peer: 0, Data: b}); err != nil { // rank 0 has marked rank 1 as failed
				break
			}
			for _, r := range rs {
				_, _, _ = r.Test()
			}
		}
		c.e.Kill()
		for _, r := range rs {
			_, _ = r.Wait(background)
		}
		for _, b := range bufs {
			require.Equal(t, bytes.Repeat([]byte{0xa5}, 16), b[:16])
			require.Equal(t, bytes.Repeat([]byte{0xa5}, 16), b[80:])
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
