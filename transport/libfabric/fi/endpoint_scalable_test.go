//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScalableEndpoint sends a message from each transmit context of one scalable endpoint to each
// receive context of another. Of the providers that need no special hardware, only sockets supports
// scalable endpoints.
func TestScalableEndpoint(t *testing.T) {
	const contexts, bits = 2, 1
	info := localInfo(t, setup{prov: "sockets", ep: EPRDM, caps: CapTagged | CapNamedRxCtx, hints: func(i *Info) {
		i.EP.TxCtxCnt, i.EP.RxCtxCnt = contexts, contexts
	}})
	fabric, err := OpenFabric(info)
	require.NoError(t, err)
	defer func() { require.NoError(t, fabric.Close()) }()
	domain, err := fabric.OpenDomain(info)
	require.NoError(t, err)
	defer func() { require.NoError(t, domain.Close()) }()
	av, err := domain.OpenAV(AVAttr{Type: AVTable, RxCtxBits: bits})
	require.NoError(t, err)
	defer func() { require.NoError(t, av.Close()) }()

	type side struct {
		tx, rx [contexts]*node
	}
	open := func(t *testing.T) (s side, name []byte) {
		t.Helper()
		ep, err := domain.OpenScalableEP(info)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ep.Close()) })
		require.NoError(t, ep.BindAV(av))
		for i := range contexts {
			tx, err := ep.TxContext(i, nil)
			require.NoError(t, err)
			rx, err := ep.RxContext(i, nil)
			require.NoError(t, err)
			for c, flags := range map[*Endpoint]Flags{tx: FlagTransmit, rx: FlagRecv} {
				q, err := domain.OpenCQ(CQAttr{})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, q.Close()) })
				t.Cleanup(func() { require.NoError(t, c.Close()) })
				require.NoError(t, c.BindCQ(q, flags))
				require.NoError(t, c.Enable())
				n := &node{t: t, info: info, fabric: fabric, domain: domain, av: av, cq: q, ep: c}
				if c == tx {
					s.tx[i] = n
				} else {
					s.rx[i] = n
				}
			}
		}
		require.NoError(t, ep.Enable())
		require.ErrorIs(t, ep.Close(), ErrBusy, "its contexts are open")
		name, err = ep.Name()
		require.NoError(t, err)
		return s, name
	}
	t.Run("attributes", func(t *testing.T) {
		info := info.Dup()
		info.Rx.OpFlags |= FlagMultiRecv
		ep, err := domain.OpenScalableEP(info)
		require.NoError(t, err)
		for range 100 {
			// If the endpoint's info has been freed too early, NewInfo may overwrite that memory.
			NewInfo()
		}
		tx, err := ep.TxContext(0, &info.Tx)
		require.NoError(t, err, "sockets compares it with the endpoint's info")
		one, err := ep.RxContext(0, &RxAttr{Caps: info.Rx.Caps, Size: info.Rx.Size})
		require.NoError(t, err)
		several, err := ep.RxContext(1, nil)
		require.NoError(t, err)
		require.False(t, one.multi)
		require.True(t, several.multi, "like the endpoint")
		require.Equal(t, several.limits, one.limits)
		for _, c := range []*Endpoint{tx, one, several} {
			require.NoError(t, c.Close())
		}
		require.NoError(t, ep.Close())
	})
	t.Run("contexts", func(t *testing.T) {
		a, _ := open(t)
		b, name := open(t)
		out := make([]Addr, 1)
		_, err := av.Insert([][]byte{name}, out, 0, 0)
		require.NoError(t, err)
		for i := range contexts {
			for j := range contexts {
				in, sent := make([]byte, 32), pattern(make([]byte, 32), 2*i+j)
				recv, send := NewContext(nil), NewContext(nil)
				b.rx[j].post(func() error { return b.rx[j].ep.TRecv(in, Desc{}, AddrUnspec, 7, 0, recv) })
				a.tx[i].other = b.rx[j]
				a.tx[i].post(func() error { return a.tx[i].ep.TSend(sent, Desc{}, RxAddr(out[0], j, bits), 7, send) })
				a.tx[i].wait(send)
				b.rx[j].wait(recv)
				require.Equal(t, sent, in)
			}
		}
	})
}

// TestSharedContexts checks that receives posted to a shared receive context take the messages for
// each endpoint that is bound to it.
func TestSharedContexts(t *testing.T) {
	const peers = 2
	info := localInfo(t, setup{prov: "sockets", ep: EPRDM, caps: CapTagged, hints: func(i *Info) {
		i.EP.TxCtxCnt, i.EP.RxCtxCnt = SharedContext, SharedContext
	}})
	fabric, err := OpenFabric(info)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fabric.Close()) })
	domain, err := fabric.OpenDomain(info)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, domain.Close()) })
	tx, err := domain.OpenSharedTx(&info.Tx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tx.Close()) })
	rx, err := domain.OpenSharedRx(&info.Rx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rx.Close()) })

	var nodes [peers]*node
	for i := range nodes {
		nodes[i] = openNode(t, setup{bind: FlagTransmit | FlagRecv, open: func(n *node) {
			require.NoError(t, n.ep.BindSharedTx(tx))
			require.NoError(t, n.ep.BindSharedRx(rx))
		}}, info, fabric, domain)
	}
	require.ErrorIs(t, tx.Close(), ErrBusy)
	require.ErrorIs(t, rx.Close(), ErrBusy)
	nodes[0].meet(nodes[1])
	nodes[1].meet(nodes[0])
	for i, n := range nodes {
		in, out := make([]byte, 32), pattern(make([]byte, 32), i)
		recv, send := NewContext(nil), NewContext(nil)
		n.post(func() error { return rx.TRecv(in, Desc{}, AddrUnspec, uint64(i), 0, recv) })
		n.post(func() error { return n.ep.TSend(out, Desc{}, n.peer, uint64(i), send) })
		n.wait(send)
		n.other.wait(recv)
		require.Equal(t, out, in)
	}
	left := NewContext(nil)
	nodes[0].post(func() error { return rx.TRecv(make([]byte, 8), Desc{}, AddrUnspec, 9, 0, left) })
	for _, n := range nodes {
		require.NoError(t, n.ep.Close())
	}
	require.True(t, left.InFlight())
	require.NoError(t, rx.Close())
	require.False(t, left.InFlight())
}
