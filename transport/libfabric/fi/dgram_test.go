//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDatagrams sends datagrams over the loopback interface, one at a time, so that none is lost.
// Each must arrive unchanged.
func TestDatagrams(t *testing.T) {
	for _, prov := range []string{"udp", "sockets"} {
		t.Run(prov, func(t *testing.T) {
			a, b := openPair(t, setup{prov: prov, ep: EPDgram, caps: CapMsg})
			size := min(a.info.EP.MaxMsgSize, 1<<16)
			require.Greater(t, size, 1000)
			out, in := make([]byte, size), make([]byte, size)
			send, recv := NewContext("send"), NewContext("recv")
			for i, n := range []int{1, 64, 1000, size} {
				for _, pair := range [][2]*node{{a, b}, {b, a}} {
					from, to := pair[0], pair[1]
					pattern(out, i)
					to.post(func() error { return to.ep.Recv(in, Desc{}, AddrUnspec, recv) })
					from.post(func() error { return from.ep.Send(out[:n], Desc{}, from.peer, send) })
					from.wait(send)
					require.EqualValues(t, n, to.wait(recv).Len)
					require.Equal(t, out[:n], in[:n])
				}
			}
			if prov == "sockets" {
				return // sockets does not refuse the operations below
			}
			ctx := NewContext("rma")
			require.ErrorIs(t, a.ep.Write(out[:8], Desc{}, a.peer, 0, 1, ctx), ErrNotSupported)
			require.False(t, ctx.InFlight())
			_, err := a.ep.AtomicValid(TypeUint64, AtomicSum)
			require.ErrorIs(t, err, ErrNotSupported)
		})
	}
}

// TestTaggedDatagrams checks that calls for tagged messages return ErrNotSupported if the
// provider's table of functions for them is null.
func TestTaggedDatagrams(t *testing.T) {
	a, _ := openPair(t, setup{prov: "udp", ep: EPDgram, caps: CapMsg})
	buf, ctx := make([]byte, 8), NewContext("tagged")
	msg := &TMsg{Msg: Msg{Bufs: [][]byte{buf}, Addr: a.peer, Context: ctx}}
	for name, err := range map[string]error{
		"TSend":       a.ep.TSend(buf, Desc{}, a.peer, 1, ctx),
		"TSendV":      a.ep.TSendV(msg.Bufs, nil, a.peer, 1, ctx),
		"TSendData":   a.ep.TSendData(buf, Desc{}, 1, a.peer, 1, ctx),
		"TSendMsg":    a.ep.TSendMsg(msg, 0),
		"TInject":     a.ep.TInject(buf, a.peer, 1),
		"TInjectData": a.ep.TInjectData(buf, 1, a.peer, 1),
		"TRecv":       a.ep.TRecv(buf, Desc{}, a.peer, 1, 0, ctx),
		"TRecvV":      a.ep.TRecvV(msg.Bufs, nil, a.peer, 1, 0, ctx),
		"TRecvMsg":    a.ep.TRecvMsg(msg, 0),
	} {
		require.ErrorIs(t, err, ErrNotSupported, name)
	}
	require.False(t, ctx.InFlight())
}

// TestMulticast checks that endpoints can join and leave a group and send to it. It does not check
// that the datagram arrives, which depends on the routes of the machine and on the address of the
// endpoint.
func TestMulticast(t *testing.T) {
	var queues []*EQ
	s := setup{prov: "udp", ep: EPDgram, caps: CapMsg | CapMulticast, open: func(n *node) {
		q, err := n.fabric.OpenEQ(EQAttr{})
		require.NoError(n.t, err)
		require.NoError(n.t, n.ep.BindEQ(q))
		n.t.Cleanup(func() { require.NoError(n.t, n.ep.Close()); require.NoError(n.t, q.Close()) })
		queues = append(queues, q)
	}}
	a, b := openPair(t, s)
	name, err := b.ep.Name()
	require.NoError(t, err)
	group := append([]byte(nil), name...)
	copy(group[4:8], []byte{239, 255, 7, 7})

	ma, err := a.ep.Join(group, FlagSend)
	require.NoError(t, err)
	mb, err := b.ep.Join(group, 0)
	require.NoError(t, err)
	for i, m := range []*Multicast{ma, mb} {
		ev, err := queues[i].Read(0)
		require.NoError(t, err)
		require.Equal(t, EventJoinComplete, ev.Type)
		require.Equal(t, m.FID(), ev.FID)
		require.NotEqual(t, AddrUnspec, m.Addr())
	}
	require.ErrorIs(t, b.ep.Close(), ErrBusy)

	send := NewContext("send")
	a.post(func() error {
		return a.ep.SendMsg(&Msg{Bufs: [][]byte{[]byte("to all")}, Addr: ma.Addr(), Context: send},
			FlagMulticast|FlagCompletion)
	})
	a.wait(send)

	require.NoError(t, ma.Close())
	require.NoError(t, mb.Close())
	require.Equal(t, AddrUnspec, ma.Addr())
	_, err = a.ep.Join(nil, 0)
	require.ErrorIs(t, err, ErrInvalid)
}
