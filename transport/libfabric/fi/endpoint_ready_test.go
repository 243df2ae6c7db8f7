//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCloseUnbound closes endpoints that are not enabled: one that is not bound to any object, one
// that is bound to a queue, and one that is bound to a queue and an address vector.
func TestCloseUnbound(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		n, _ := openPair(t, setup{prov: prov})
		for i := range 3 {
			ep, err := n.domain.OpenEndpoint(n.info)
			require.NoError(t, err)
			if i > 0 {
				require.NoError(t, ep.BindCQ(n.cq, FlagTransmit|FlagRecv))
			}
			if i > 1 {
				require.NoError(t, ep.BindAV(n.av))
			}
			require.NoError(t, ep.Close())
			require.NoError(t, ep.Close())
		}
	})
}

// TestInfoOfAnotherProvider checks that calls refuse an Info of another provider, and that a nil or
// empty Info does not crash them.
func TestInfoOfAnotherProvider(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		n, _ := openPair(t, setup{prov: prov})
		for _, other := range []string{"shm", "tcp;ofi_rxm", "sockets"} {
			if other == prov {
				continue
			}
			info := localInfo(t, setup{prov: other, ep: EPRDM, caps: CapMsg})
			_, err := n.fabric.OpenDomain(info)
			require.ErrorIs(t, err, ErrInvalid)
			_, err = n.fabric.OpenPassiveEP(info)
			require.ErrorIs(t, err, ErrInvalid)
			_, err = n.domain.OpenEndpoint(info)
			require.ErrorIs(t, err, ErrInvalid)
			_, err = n.domain.OpenScalableEP(info)
			require.ErrorIs(t, err, ErrInvalid)
		}
		_, err := n.domain.OpenEndpoint(nil)
		require.ErrorIs(t, err, ErrInvalid)
		if ep, err := n.domain.OpenEndpoint(NewInfo()); err == nil {
			require.NoError(t, ep.Close())
		}
	})
}

// TestNoAddress checks that operations to AddrNotAvail, the result of a failed insertion, return
// ErrInvalid, and that a second Enable does nothing.
func TestNoAddress(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		a, _ := openPair(t, setup{prov: prov})
		require.NoError(t, a.ep.Enable())
		ctx, buf, none := NewContext(nil), make([]byte, 8), AddrNotAvail
		bufs := [][]byte{buf}
		msg := &TMsg{Msg: Msg{Bufs: bufs, Addr: none, Context: ctx}}
		for name, err := range map[string]error{
			"Send":            a.ep.Send(buf, Desc{}, none, ctx),
			"SendV":           a.ep.SendV(bufs, nil, none, ctx),
			"SendData":        a.ep.SendData(buf, Desc{}, 1, none, ctx),
			"SendMsg":         a.ep.SendMsg(&msg.Msg, 0),
			"Inject":          a.ep.Inject(buf, none),
			"InjectData":      a.ep.InjectData(buf, 1, none),
			"TSend":           a.ep.TSend(buf, Desc{}, none, 1, ctx),
			"TSendV":          a.ep.TSendV(bufs, nil, none, 1, ctx),
			"TSendData":       a.ep.TSendData(buf, Desc{}, 1, none, 1, ctx),
			"TSendMsg":        a.ep.TSendMsg(msg, 0),
			"TInject":         a.ep.TInject(buf, none, 1),
			"TInjectData":     a.ep.TInjectData(buf, 1, none, 1),
			"Read":            a.ep.Read(buf, Desc{}, none, 0, 1, ctx),
			"ReadV":           a.ep.ReadV(bufs, nil, none, 0, 1, ctx),
			"ReadMsg":         a.ep.ReadMsg(&RMAMsg{Bufs: bufs, Addr: none, Context: ctx}, 0),
			"Write":           a.ep.Write(buf, Desc{}, none, 0, 1, ctx),
			"WriteV":          a.ep.WriteV(bufs, nil, none, 0, 1, ctx),
			"WriteData":       a.ep.WriteData(buf, Desc{}, 1, none, 0, 1, ctx),
			"InjectWrite":     a.ep.InjectWrite(buf, none, 0, 1),
			"InjectWriteData": a.ep.InjectWriteData(buf, 1, none, 0, 1),
			"Atomic":          a.ep.Atomic(buf, Desc{}, none, 0, 1, TypeUint64, AtomicSum, ctx),
			"AtomicV":         a.ep.AtomicV(Vector{Bufs: bufs}, none, 0, 1, TypeUint64, AtomicSum, ctx),
			"AtomicMsg":       a.ep.AtomicMsg(&AtomicMsg{Addr: none, Context: ctx}, 0),
		} {
			require.Equal(t, ErrInvalid, err, name)
		}
		require.False(t, ctx.InFlight())
	})
}

// TestNotEnabled checks that operations on an endpoint that is not enabled return ErrOpBadState. If
// they reached rxm, it would dereference the endpoint's address vector, which is NULL.
func TestNotEnabled(t *testing.T) {
	eachRDM(t, func(t *testing.T, prov string) {
		n, _ := openPair(t, setup{prov: prov})
		ep, err := n.domain.OpenEndpoint(n.info)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ep.Close()) })
		ctx, buf := NewContext(nil), make([]byte, 8)
		for name, err := range map[string]error{
			"Send":        ep.Send(buf, Desc{}, 0, ctx),
			"SendV":       ep.SendV([][]byte{buf}, nil, 0, ctx),
			"Inject":      ep.Inject(buf, 0),
			"TRecv":       ep.TRecv(buf, Desc{}, 0, 1, 0, ctx),
			"TSendMsg":    ep.TSendMsg(&TMsg{Msg: Msg{Context: ctx}}, 0),
			"Write":       ep.Write(buf, Desc{}, 0, 0, 1, ctx),
			"InjectWrite": ep.InjectWrite(buf, 0, 0, 1),
			"Atomic":      ep.Atomic(buf, Desc{}, 0, 0, 1, TypeUint64, AtomicSum, ctx),
			"AtomicV":     ep.AtomicV(Vector{Bufs: [][]byte{buf}}, 0, 0, 1, TypeUint64, AtomicSum, ctx),
		} {
			require.Equal(t, ErrOpBadState, err, name)
		}
		require.False(t, ctx.InFlight())
	})
}
