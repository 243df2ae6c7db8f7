package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
)

// loopback is a fabric of two ranks of which only rank 0 exists: what rank 0 sends comes back to
// rank 0 as messages of rank 1. It costs almost no time, so a benchmark over it measures the
// engine.
type loopback struct {
	transport.Domain
	eager int
	ring  [64]struct {
		n int
		b [128]byte
	}
	head, tail uint
}

func (m *loopback) Attr() transport.Attr {
	return transport.Attr{Provider: "loopback", MaxMsgSize: 128, EagerLimit: m.eager}
}
func (m *loopback) Close() error                     { return nil }
func (m *loopback) Address() transport.Address       { return "" }
func (m *loopback) Shutdown(context.Context) error   { return nil }
func (m *loopback) Arm() bool                        { return true }
func (m *loopback) Wait(timeout time.Duration) error { return nil }
func (m *loopback) Signal()                          {}
func (m *loopback) FD() (int, bool)                  { return -1, false }

func (m *loopback) Send(op *transport.Op) (bool, error) {
	if m.tail-m.head == uint(len(m.ring)) {
		return false, transport.ErrAgain
	}
	s := &m.ring[m.tail%uint(len(m.ring))]
	m.tail++
	s.n = op.HeaderLen + copy(s.b[op.HeaderLen:], op.Data)
	copy(s.b[:op.HeaderLen], op.Header[:])
	return true, nil
}

func (m *loopback) Read(c []transport.Completion) (int, error) {
	n := 0
	for ; n < len(c) && m.head != m.tail; n++ {
		s := &m.ring[m.head%uint(len(m.ring))]
		m.head++
		c[n].Kind, c[n].Peer, c[n].Msg = transport.RecvDone, 1, s.b[:s.n]
	}
	return n, nil
}

func openLoopback(b testing.TB) *Context {
	m := &loopback{eager: 64}
	set := &params.Set{}
	require.NoError(b, set.Set("engine.async_progress", "false", params.FromFlag))
	e, err := New(Config{Rank: 0, Size: 2, Params: set, Rails: []Rail{{m, m, m}}, LocalRanks: 2})
	require.NoError(b, err)
	b.Cleanup(func() { _ = e.Close(background) })
	return e.OpenContext(0, []int{0, 1})
}

// BenchmarkEngine measures the time that the engine adds to a message: that of the send and that of
// the receive together, without a transport.
func BenchmarkEngine(b *testing.B) {
	buf, in := make([]byte, 8), make([]byte, 8)
	env := Env{Peer: 1, Tag: 3}
	b.Run("send and receive", func(b *testing.B) {
		c := openLoopback(b)
		for b.Loop() {
			_ = c.Send(background, buf, env)
			_, _ = c.Recv(background, in, env)
		}
	})
	b.Run("isend irecv and wait", func(b *testing.B) {
		c := openLoopback(b)
		for b.Loop() {
			r := c.Irecv(in, env)
			s := c.Isend(buf, env)
			_, _ = s.Wait(background)
			_, _ = r.Wait(background)
		}
	})
	b.Run("window of 32", func(b *testing.B) {
		c := openLoopback(b)
		var r, s [32]Request
		for b.Loop() {
			for i := range r {
				r[i] = c.Irecv(in, Env{Peer: 1, Tag: 3, Attended: true})
			}
			for i := range s {
				s[i] = c.Isend(buf, env)
			}
			for i := range r {
				_, _ = s[i].Wait(background)
				_, _ = r[i].Wait(background)
			}
		}
	})
	b.Run("unexpected 32", func(b *testing.B) {
		c := openLoopback(b)
		for b.Loop() {
			for range 32 {
				_ = c.Send(background, buf, env)
			}
			_, _, _ = c.Iprobe(env)
			for range 32 {
				_, _ = c.Recv(background, in, env)
			}
		}
	})
	b.Run("empty poll", func(b *testing.B) {
		c := openLoopback(b)
		for b.Loop() {
			c.e.mu.Lock()
			c.e.poll()
			c.e.mu.Unlock()
		}
	})
	b.Run("transport", func(b *testing.B) {
		c := openLoopback(b)
		m := c.e.rails[0].Endpoint
		op := &transport.Op{HeaderLen: 32, Data: buf}
		for b.Loop() {
			_, _ = m.Send(op)
			_, _ = c.e.rails[0].CQ.Read(c.e.entries[:])
		}
	})
	b.Run("lock", func(b *testing.B) {
		var mu mutex
		mu.init()
		for b.Loop() {
			mu.Lock()
			mu.Unlock() //nolint:staticcheck // the empty section is what is measured
		}
	})
}
