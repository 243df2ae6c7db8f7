//go:build libfabric

package fi

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAllocations sends a message from a to b by each pair of posting calls, first once and then
// 200 times, and checks that the 200 do not allocate. The first time may allocate, because a
// Context then gets its arrays for calls with several buffers.
func TestAllocations(t *testing.T) {
	ways := map[string]struct {
		send func(n *node, buf []byte, msg *TMsg) error
		recv func(n *node, buf []byte, msg *TMsg) error
	}{
		"Send": {
			func(n *node, buf []byte, msg *TMsg) error { return n.ep.Send(buf, Desc{}, n.peer, msg.Context) },
			func(n *node, buf []byte, msg *TMsg) error { return n.ep.Recv(buf, Desc{}, n.peer, msg.Context) },
		},
		"SendMsg": {
			func(n *node, _ []byte, msg *TMsg) error { return n.ep.SendMsg(&msg.Msg, FlagCompletion) },
			func(n *node, _ []byte, msg *TMsg) error { return n.ep.RecvMsg(&msg.Msg, FlagCompletion) },
		},
		"TSend": {
			func(n *node, buf []byte, msg *TMsg) error { return n.ep.TSend(buf, Desc{}, n.peer, 1, msg.Context) },
			func(n *node, buf []byte, msg *TMsg) error {
				return n.ep.TRecv(buf, Desc{}, n.peer, 1, 0, msg.Context)
			},
		},
		"TSendData": {
			func(n *node, buf []byte, msg *TMsg) error {
				return n.ep.TSendData(buf, Desc{}, 3, n.peer, 1, msg.Context)
			},
			func(n *node, buf []byte, msg *TMsg) error {
				return n.ep.TRecv(buf, Desc{}, n.peer, 1, 0, msg.Context)
			},
		},
		"SendV": {
			func(n *node, _ []byte, msg *TMsg) error { return n.ep.SendV(msg.Bufs, nil, n.peer, msg.Context) },
			func(n *node, _ []byte, msg *TMsg) error { return n.ep.RecvV(msg.Bufs, nil, n.peer, msg.Context) },
		},
		"SendData": {
			func(n *node, buf []byte, msg *TMsg) error { return n.ep.SendData(buf, Desc{}, 3, n.peer, msg.Context) },
			func(n *node, buf []byte, msg *TMsg) error { return n.ep.Recv(buf, Desc{}, n.peer, msg.Context) },
		},
		"TSendV": {
			func(n *node, _ []byte, msg *TMsg) error { return n.ep.TSendV(msg.Bufs, nil, n.peer, 1, msg.Context) },
			func(n *node, _ []byte, msg *TMsg) error {
				return n.ep.TRecvV(msg.Bufs, nil, n.peer, 1, 0, msg.Context)
			},
		},
		"TSendMsg": {
			func(n *node, _ []byte, msg *TMsg) error { return n.ep.TSendMsg(msg, FlagCompletion) },
			func(n *node, _ []byte, msg *TMsg) error { return n.ep.TRecvMsg(msg, FlagCompletion) },
		},
	}
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		for name, way := range ways {
			in, out := make([]byte, 1000), pattern(make([]byte, 1000), 1)
			send := &TMsg{Msg: Msg{Bufs: halves(out), Addr: a.peer, Context: NewContext(nil)}, Tag: 1}
			recv := &TMsg{Msg: Msg{Bufs: halves(in), Addr: b.peer, Context: NewContext(nil)}, Tag: 1}
			once := func() {
				for errors.Is(way.recv(b, in, recv), ErrAgain) {
					drain(a, b)
				}
				for errors.Is(way.send(a, out, send), ErrAgain) {
					drain(a, b)
				}
				for send.Context.InFlight() || recv.Context.InFlight() {
					drain(a, b)
				}
			}
			once()
			require.Equal(t, out, in, name)
			require.Zero(t, testing.AllocsPerRun(200, once), name)
		}
		small, ctx := make([]byte, 8), NewContext(nil)
		recv := func() error { return b.ep.Recv(small, Desc{}, b.peer, ctx) }
		trecv := func() error { return b.ep.TRecv(small, Desc{}, b.peer, 1, 0, ctx) }
		for name, way := range map[string]struct{ inject, recv func() error }{
			"Inject":      {func() error { return a.ep.Inject(small, a.peer) }, recv},
			"InjectData":  {func() error { return a.ep.InjectData(small, 3, a.peer) }, recv},
			"TInject":     {func() error { return a.ep.TInject(small, a.peer, 1) }, trecv},
			"TInjectData": {func() error { return a.ep.TInjectData(small, 3, a.peer, 1) }, trecv},
		} {
			require.Zero(t, testing.AllocsPerRun(200, func() {
				for errors.Is(way.recv(), ErrAgain) {
					drain(a, b)
				}
				for errors.Is(way.inject(), ErrAgain) {
					drain(a, b)
				}
				for ctx.InFlight() {
					drain(a, b)
				}
			}), name)
		}
	})
}

// drain reads and discards completions from the queues of both nodes.
func drain(a, b *node) {
	_, _ = a.cq.Read(a.entries[:])
	_, _ = b.cq.ReadFrom(b.entries[:], b.from[:])
}
