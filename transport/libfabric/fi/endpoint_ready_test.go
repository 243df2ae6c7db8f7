//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An endpoint may be closed whatever it has got so far.
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

// Before an endpoint is enabled, rxm would follow a null pointer to its vector.
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
