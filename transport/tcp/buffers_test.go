package tcp

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// TestIdleConnections has 39 ranks send messages of three sizes to one rank. When all have arrived,
// no connection of the receiver holds an input buffer, and the receiver keeps at most maxFreeBufs.
func TestIdleConnections(t *testing.T) {
	const n = 40
	all := openRanks(t, n)
	for size := range 3 {
		for i, x := range all[1:] {
			op := &transport.Op{HeaderLen: 2, Data: make([]byte, []int{0, 1000, 100_000}[size])}
			op.Header[0], op.Header[1] = byte(i+1), byte(size)
			_, err := x.ep.Send(op)
			require.NoError(t, err)
		}
		got := 0
		await(t, all, all[0], func(c *transport.Completion) bool {
			require.Equal(t, transport.RecvDone, c.Kind)
			require.Equal(t, []byte{byte(c.Peer), byte(size)}, c.Msg[:2])
			got++
			return got == n-1
		})
	}
	for end := time.Now().Add(testTimeout); len(all[0].dom.drained) > 0; {
		require.True(t, time.Now().Before(end))
		all[0].read(t)
	}
	for _, c := range all[0].dom.live {
		require.Nil(t, c.buf)
	}
	require.Len(t, all[0].dom.live, n-1)
	require.LessOrEqual(t, len(all[0].dom.freeBufs), maxFreeBufs)
}
