//go:build libfabric

package fi

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// rdm are the providers of Debian's libfabric that have endpoints of type EPRDM and need no special
// hardware.
var rdm = []string{"shm", xnet, "tcp;ofi_rxm", "udp;ofi_rxd", "sockets"}

// eachRDM runs a test with each provider in rdm.
func eachRDM(t *testing.T, test func(t *testing.T, prov string)) {
	t.Helper()
	for _, prov := range rdm {
		t.Run(prov, func(t *testing.T) { test(t, prov) })
	}
}

// halves splits a buffer in two.
func halves(buf []byte) [][]byte { return [][]byte{buf[:len(buf)/2], buf[len(buf)/2:]} }

// TestMessages combines each call that sends a message with each call that receives one, for sizes
// from 0 to more than a packet. Every message must arrive unchanged.
func TestMessages(t *testing.T) {
	const data = 0x1234
	type send struct {
		name    string
		inject  bool // the call sends only small messages, and has no completion
		hasData bool
		do      func(n *node, buf []byte, ctx *Context) error
	}
	sends := []send{
		{"Send", false, false, func(n *node, buf []byte, ctx *Context) error {
			return n.ep.Send(buf, Desc{}, n.peer, ctx)
		}},
		{"SendV", false, false, func(n *node, buf []byte, ctx *Context) error {
			return n.ep.SendV(halves(buf), nil, n.peer, ctx)
		}},
		{"SendMsg", false, false, func(n *node, buf []byte, ctx *Context) error {
			return n.ep.SendMsg(&Msg{Bufs: halves(buf), Addr: n.peer, Context: ctx}, FlagCompletion)
		}},
		{"SendMsg with data", false, true, func(n *node, buf []byte, ctx *Context) error {
			return n.ep.SendMsg(&Msg{Bufs: [][]byte{buf}, Descs: []Desc{{}}, Addr: n.peer, Context: ctx, Data: data},
				FlagCompletion|FlagRemoteCQData|FlagTransmitComplete)
		}},
		{"SendData", false, true, func(n *node, buf []byte, ctx *Context) error {
			return n.ep.SendData(buf, Desc{}, data, n.peer, ctx)
		}},
		{"Inject", true, false, func(n *node, buf []byte, _ *Context) error {
			return n.ep.Inject(buf, n.peer)
		}},
		{"InjectData", true, true, func(n *node, buf []byte, _ *Context) error {
			return n.ep.InjectData(buf, data, n.peer)
		}},
	}
	recvs := []func(n *node, buf []byte, ctx *Context) error{
		func(n *node, buf []byte, ctx *Context) error { return n.ep.Recv(buf, Desc{}, AddrUnspec, ctx) },
		func(n *node, buf []byte, ctx *Context) error { return n.ep.RecvV(halves(buf), nil, AddrUnspec, ctx) },
		func(n *node, buf []byte, ctx *Context) error {
			return n.ep.RecvMsg(&Msg{Bufs: halves(buf), Addr: AddrUnspec, Context: ctx}, FlagCompletion)
		},
	}
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov, caps: CapMsg | CapSource})
		sending, receiving := NewContext("send"), NewContext("recv")
		for i, s := range sends {
			for j, recv := range recvs {
				for _, size := range []int{0, 1, 64, 5000, 100000} {
					if s.inject && size > a.info.Tx.InjectSize {
						continue
					}
					what := fmt.Sprintf("%s %d, %d bytes", s.name, j, size)
					in, out := make([]byte, size), pattern(make([]byte, size), i+j)
					b.post(func() error { return recv(b, in, receiving) })
					a.post(func() error { return s.do(a, out, sending) })
					e := b.wait(receiving)
					require.EqualValues(t, size, e.Len, what)
					require.Equal(t, out, in, what)
					require.Equal(t, b.peer, e.from, what)
					require.Equal(t, FlagMsg|FlagRecv, e.Flags&(FlagMsg|FlagRecv|FlagTagged|FlagSend), what)
					require.Equal(t, s.hasData, e.Flags&FlagRemoteCQData != 0, what)
					if s.hasData {
						require.EqualValues(t, data, e.Data, what)
					}
					require.False(t, receiving.InFlight(), what)
					if !s.inject {
						e = a.wait(sending)
						require.Equal(t, "send", e.Context.User, what)
						require.Equal(t, FlagMsg|FlagSend, e.Flags&(FlagMsg|FlagRecv|FlagTagged|FlagSend), what)
					}
				}
			}
		}
		a.quiet() // injected messages must not write completions
		b.quiet()
	})
}

// TestTruncated receives a message that is longer than the buffer. The receive must fail, except
// with rxd, and must not write beyond the buffer. Providers differ in what else they report.
func TestTruncated(t *testing.T) {
	silent := map[string]bool{"udp;ofi_rxd": true} // the receive succeeds with the bytes that fit
	rest := map[string]int{"sockets": 40, "shm": 0, xnet: 0, "tcp;ofi_rxm": in2(40, 0)}
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		in, recv, send := make([]byte, 100), NewContext(nil), NewContext(nil)
		b.post(func() error { return b.ep.TRecv(in[:60], Desc{}, b.peer, 7, 0, recv) })
		a.post(func() error { return a.ep.TSend(pattern(make([]byte, 100), 1), Desc{}, a.peer, 7, send) })
		if e := b.ended(recv); silent[prov] {
			require.NoError(t, b.fail(e))
			require.EqualValues(t, 60, e.Len)
		} else {
			require.ErrorIs(t, b.fail(e), ErrTruncated)
			require.EqualValues(t, rest[prov], e.err.OLen)
			require.Contains(t, e.err.Error(), "Truncation error")
		}
		require.False(t, recv.InFlight())
		require.Equal(t, make([]byte, 40), in[60:])
	})
}

// TestMultiRecv checks that a multi-receive stays in flight until less than OptMinMultiRecv bytes
// of its buffer are free.
func TestMultiRecv(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov, caps: CapMsg | CapMultiRecv, open: func(n *node) {
			require.NoError(t, n.ep.SetOpt(OptMinMultiRecv, 256))
		}})
		least, err := b.ep.GetOpt(OptMinMultiRecv)
		require.NoError(t, err)
		require.Equal(t, 256, least)
		recv, send := NewContext(nil), NewContext(nil)
		for round := range 3 {
			in := make([]byte, 1024)
			b.post(func() error {
				return b.ep.RecvMsg(&Msg{Bufs: [][]byte{in}, Addr: AddrUnspec, Context: recv}, FlagMultiRecv|FlagCompletion)
			})
			for i := range 4 { // after these four messages, 224 bytes of the buffer are free
				require.True(t, recv.InFlight())
				out := pattern(make([]byte, 200), round+i)
				a.post(func() error { return a.ep.Send(out, Desc{}, a.peer, send) })
				a.wait(send)
				e := b.wait(recv)
				require.Equal(t, out, e.Within(in))
				require.Equal(t, 200*i, len(in)-cap(e.Within(in)), "messages have no gaps")
				if i == 3 && e.Flags&FlagMultiRecv == 0 { // shm reports the end by a completion without a message
					e = b.wait(recv)
					require.Zero(t, e.Len)
					require.Equal(t, FlagMultiRecv, e.Flags&FlagMultiRecv)
				}
			}
			require.False(t, recv.InFlight())
		}
	})
}

// TestCancel cancels a receive before a message has come. The receive that was posted after it must
// get the message.
func TestCancel(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		first, second, send := NewContext(1), NewContext(2), NewContext(3)
		in := make([]byte, 64)
		require.ErrorIs(t, b.ep.Cancel(first), ErrNoEntry)
		b.post(func() error { return b.ep.TRecv(make([]byte, 64), Desc{}, b.peer, 5, 0, first) })
		b.post(func() error { return b.ep.TRecv(in, Desc{}, b.peer, 5, 0, second) })
		require.NoError(t, b.ep.Cancel(first))
		e := b.ended(first)
		require.ErrorIs(t, e.err, ErrCanceled)
		require.False(t, first.InFlight())

		out := pattern(make([]byte, 64), 1)
		a.post(func() error { return a.ep.TSend(out, Desc{}, a.peer, 5, send) })
		b.wait(second)
		require.Equal(t, out, in)
	})
}
