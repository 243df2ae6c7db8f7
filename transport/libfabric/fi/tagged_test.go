//go:build libfabric

package fi

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTaggedPingPong combines each call that sends a tagged message with each call that receives
// one, in both directions. Every message must arrive unchanged.
func TestTaggedPingPong(t *testing.T) {
	const data = 77
	sends := []func(n *node, buf []byte, tag uint64, ctx *Context) error{
		func(n *node, buf []byte, tag uint64, ctx *Context) error {
			return n.ep.TSend(buf, Desc{}, n.peer, tag, ctx)
		},
		func(n *node, buf []byte, tag uint64, ctx *Context) error {
			return n.ep.TSendV(halves(buf), nil, n.peer, tag, ctx)
		},
		func(n *node, buf []byte, tag uint64, ctx *Context) error {
			return n.ep.TSendMsg(&TMsg{Msg: Msg{Bufs: halves(buf), Addr: n.peer, Context: ctx}, Tag: tag}, FlagCompletion)
		},
		func(n *node, buf []byte, tag uint64, ctx *Context) error {
			return n.ep.TSendData(buf, Desc{}, data, n.peer, tag, ctx)
		},
		func(n *node, buf []byte, tag uint64, _ *Context) error { return n.ep.TInject(buf, n.peer, tag) },
		func(n *node, buf []byte, tag uint64, _ *Context) error {
			return n.ep.TInjectData(buf, data, n.peer, tag)
		},
	}
	const firstInject = 4
	recvs := []func(n *node, buf []byte, tag uint64, ctx *Context) error{
		func(n *node, buf []byte, tag uint64, ctx *Context) error {
			return n.ep.TRecv(buf, Desc{}, n.peer, tag, 0, ctx)
		},
		func(n *node, buf []byte, tag uint64, ctx *Context) error {
			return n.ep.TRecvV(halves(buf), nil, n.peer, tag, 0, ctx)
		},
		func(n *node, buf []byte, tag uint64, ctx *Context) error {
			return n.ep.TRecvMsg(&TMsg{Msg: Msg{Bufs: halves(buf), Addr: n.peer, Context: ctx}, Tag: tag}, FlagCompletion)
		},
	}
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		recv, send := NewContext(nil), NewContext(nil)
		for i, tsend := range sends {
			for j, trecv := range recvs {
				for _, size := range []int{0, 8, 2000, 80000} {
					if i >= firstInject && size > a.info.Tx.InjectSize {
						continue
					}
					what := fmt.Sprintf("send %d, receive %d, %d bytes", i, j, size)
					tag := uint64(1000*i + j)
					for from, to := range map[*node]*node{a: b, b: a} {
						in, out := make([]byte, size), pattern(make([]byte, size), i)
						to.post(func() error { return trecv(to, in, tag, recv) })
						from.post(func() error { return tsend(from, out, tag, send) })
						e := to.wait(recv)
						require.EqualValues(t, size, e.Len, what)
						require.Equal(t, tag, e.Tag, what)
						require.Equal(t, out, in, what)
						// sockets sets FlagMsg, too.
						require.Equal(t, FlagTagged|FlagRecv, e.Flags&(FlagTagged|FlagRecv|FlagSend), what)
						if e.Flags&FlagRemoteCQData != 0 {
							require.EqualValues(t, data, e.Data, what)
						}
						if i < firstInject {
							from.wait(send)
						}
					}
				}
			}
		}
		a.quiet()
	})
}

// TestIgnore posts a receive for one tag, and a second receive that ignores some bits of the same
// tag. A message whose tag differs in these bits must go to the second receive.
func TestIgnore(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		exact, loose, send := NewContext("exact"), NewContext("loose"), NewContext(nil)
		b.post(func() error { return b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 0x1200, 0, exact) })
		b.post(func() error { return b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 0x1200, 0xff, loose) })
		a.post(func() error { return a.ep.TSend(make([]byte, 8), Desc{}, a.peer, 0x1234, send) })
		e := b.next()
		require.NoError(t, b.fail(e))
		require.Equal(t, "loose", e.Context.User)
		require.EqualValues(t, 0x1234, e.Tag)
		a.wait(send)
		a.post(func() error { return a.ep.TSend(make([]byte, 8), Desc{}, a.peer, 0x1200, send) })
		b.wait(exact)
	})
}

// TestUnexpected sends four tagged messages before a receive is posted, and receives them in the
// reverse order.
func TestUnexpected(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		const count, size = 4, 128 // net does not buffer more than that
		a, b := openPair(t, setup{prov: prov})
		var sends, recvs [count]*Context
		for i := range count {
			sends[i], recvs[i] = NewContext(i), NewContext(i)
			out := pattern(make([]byte, size), i)
			a.post(func() error { return a.ep.TSend(out, Desc{}, a.peer, uint64(i), sends[i]) })
		}
		b.quiet()
		for i := count - 1; i >= 0; i-- {
			in := make([]byte, size)
			b.post(func() error { return b.ep.TRecv(in, Desc{}, b.peer, uint64(i), 0, recvs[i]) })
			b.wait(recvs[i])
			require.Equal(t, pattern(make([]byte, size), i), in)
			a.wait(sends[i])
		}
	})
}

// TestFlood sends messages until the endpoint is full, before the first receive is posted. All 200
// messages must arrive in order.
func TestFlood(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		const count, size = 200, 64
		a, b := openPair(t, setup{prov: prov, caps: CapMsg})
		type transfer struct {
			ctx *Context
			buf []byte
		}
		sends, recvs := make([]transfer, count), make([]transfer, count)
		posted := 0
		for i := range sends {
			sends[i] = transfer{NewContext(i), pattern(make([]byte, size), i)}
			recvs[i] = transfer{NewContext(i), make([]byte, size)}
		}
		// more sends until the endpoint is full: here ErrAgain is no failure.
		more := func() {
			for ; posted < count; posted++ {
				err := a.ep.Send(sends[posted].buf, Desc{}, a.peer, sends[posted].ctx)
				if errors.Is(err, ErrAgain) {
					return
				}
				require.NoError(t, err)
			}
		}
		a.until("the first message is taken", func() bool { more(); return posted > 0 })
		for range 100 {
			more()
			a.progress()
		}
		for i, r := range recvs {
			b.post(func() error {
				more()
				return b.ep.Recv(r.buf, Desc{}, b.peer, r.ctx)
			})
			a.until("a message", func() bool { more(); return len(b.events) > 0 })
			require.Equal(t, i, b.wait(r.ctx).Context.User)
			require.Equal(t, sends[i].buf, r.buf)
		}
		for _, s := range sends {
			a.wait(s.ctx)
		}
	})
}
