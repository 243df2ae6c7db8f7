//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEndpoint checks the methods for names, options and sizes on an enabled endpoint, and that all
// methods return ErrClosed after Close.
func TestEndpoint(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		name, err := a.ep.Name()
		require.NoError(t, err)
		seen, err := b.av.Lookup(b.peer)
		if prov == "udp;ofi_rxd" { // rxd looks up only peers that it has exchanged messages with
			require.ErrorIs(t, err, ErrNoData)
		} else {
			require.NoError(t, err)
			require.Equal(t, b.av.StrAddr(seen), b.av.StrAddr(lookedUp(avFacts{prov: prov}, name)))
		}

		_, err = a.ep.GetOpt(OptBufferedMin)
		if prov == "tcp;ofi_rxm" {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrNotSupported)
		}
		require.Error(t, a.ep.SetOpt(OptMinMultiRecv, -1))
		require.Error(t, a.ep.SetOpt(OptFirewallAddr, 1), "libfabric 1.17 does not know the option")
		_, err = a.ep.GetOptBytes(-1<<20, make([]byte, 8))
		require.Error(t, err)

		for _, left := range []func() (int, error){a.ep.TxSizeLeft, a.ep.RxSizeLeft} {
			n, err := left()
			if prov == "sockets" {
				require.NoError(t, err)
				require.Positive(t, n)
			} else {
				require.ErrorIs(t, err, ErrNotSupported)
			}
		}

		ctx, buf := NewContext(nil), make([]byte, 8)
		require.NoError(t, a.ep.Close())
		require.NoError(t, a.ep.Close())
		for _, err := range []error{
			a.ep.Enable(), a.ep.BindAV(a.av), a.ep.BindCQ(a.cq, FlagRecv), a.ep.SetOpt(OptMinMultiRecv, 1),
			a.ep.Send(buf, Desc{}, a.peer, ctx), a.ep.SendV(nil, nil, a.peer, ctx), a.ep.SendMsg(&Msg{}, 0),
			a.ep.SendData(buf, Desc{}, 0, a.peer, ctx), a.ep.Inject(buf, a.peer), a.ep.InjectData(buf, 0, a.peer),
			a.ep.Recv(buf, Desc{}, a.peer, ctx), a.ep.RecvV(nil, nil, a.peer, ctx), a.ep.RecvMsg(&Msg{}, 0),
			a.ep.TSend(buf, Desc{}, a.peer, 0, ctx), a.ep.TSendV(nil, nil, a.peer, 0, ctx), a.ep.TSendMsg(&TMsg{}, 0),
			a.ep.TSendData(buf, Desc{}, 0, a.peer, 0, ctx), a.ep.TInject(buf, a.peer, 0),
			a.ep.TInjectData(buf, 0, a.peer, 0), a.ep.TRecv(buf, Desc{}, a.peer, 0, 0, ctx),
			a.ep.TRecvV(nil, nil, a.peer, 0, 0, ctx), a.ep.TRecvMsg(&TMsg{}, 0), a.ep.Cancel(ctx),
		} {
			require.ErrorIs(t, err, ErrClosed)
		}
		_, err = a.ep.Name()
		require.ErrorIs(t, err, ErrClosed)
		_, err = a.ep.Alias(FlagTransmit)
		require.ErrorIs(t, err, ErrClosed)
		_, err = a.ep.TxSizeLeft()
		require.ErrorIs(t, err, ErrClosed)
	})
}

// TestAlias sends a message through an alias with other default flags. Of the providers in rdm only
// sockets supports aliases.
func TestAlias(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov})
		alias, err := a.ep.Alias(FlagTransmit | FlagDeliveryComplete)
		if prov != "sockets" {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		recv, send := NewContext(nil), NewContext(nil)
		b.post(func() error { return b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 1, 0, recv) })
		a.post(func() error { return alias.TSend(make([]byte, 8), Desc{}, a.peer, 1, send) })
		b.wait(recv)
		a.wait(send)
		require.ErrorIs(t, a.ep.Close(), ErrBusy)
		require.NoError(t, alias.Close())
		require.NoError(t, alias.Close())
		require.ErrorIs(t, alias.TSend(nil, Desc{}, a.peer, 1, send), ErrClosed)
	})
}

// TestCloseOrder checks that Close of an object returns ErrBusy as long as another open object
// needs it.
func TestCloseOrder(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, b := openPair(t, setup{prov: prov, sep: true})
		recv := NewContext(nil)
		b.post(func() error { return b.ep.TRecv(make([]byte, 8), Desc{}, b.peer, 1, 0, recv) })
		for _, n := range []*node{a, b} {
			require.ErrorIs(t, n.fabric.Close(), ErrBusy)
			require.ErrorIs(t, n.domain.Close(), ErrBusy)
			require.ErrorIs(t, n.cq.Close(), ErrBusy)
			require.ErrorIs(t, n.av.Close(), ErrBusy)
		}
		require.True(t, recv.InFlight())
		require.NoError(t, b.ep.Close())
		require.False(t, recv.InFlight())
		require.NoError(t, b.av.Close())
		require.NoError(t, b.cq.Close())
		require.NoError(t, b.domain.Close())
		require.ErrorIs(t, b.fabric.Close(), ErrBusy)
		_, err := b.domain.OpenCQ(CQAttr{})
		require.ErrorIs(t, err, ErrClosed)
		_, err = b.domain.OpenEndpoint(b.info)
		require.ErrorIs(t, err, ErrClosed)
		_, err = b.domain.OpenCounter(CntrAttr{})
		require.ErrorIs(t, err, ErrClosed)
	})
}
