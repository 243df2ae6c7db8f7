package tcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// TestManyConnections polls more connections than are asked one by one, with
// messages, full completion queues and a peer that ends among them.
func TestManyConnections(t *testing.T) {
	const n, count = 7, 50
	all := nodes(t, n)
	all[0].comp = all[0].comp[:1] // leaves frames in buffers
	for _, x := range all[1:] {
		for i := range count {
			op := &transport.Op{HeaderLen: 1, Data: make([]byte, i*100)}
			op.Header[0] = byte(i)
			_, err := x.ep.Send(op)
			require.NoError(t, err)
		}
	}
	var got [n]int
	total := 0
	await(t, all, all[0], func(c *transport.Completion) bool {
		require.Equal(t, transport.RecvDone, c.Kind)
		require.Equal(t, byte(got[c.Peer]), c.Msg[0])
		require.Len(t, c.Msg, 1+100*got[c.Peer])
		got[c.Peer]++
		total++
		return total == (n-1)*count
	})
	require.NoError(t, all[n-1].dom.Close())
	c := await(t, all[:1], all[0], kind(transport.PeerDown))
	require.Equal(t, transport.Addr(n-1), c.Peer)
	require.ErrorIs(t, c.Err, transport.ErrPeerDown)
}
