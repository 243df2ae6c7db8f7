package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestWaitAnyBesideOthers: several goroutines wait for the same requests, by WaitAny with different
// slices, and by Wait. One of them may collect a request that another one waits for, or change its
// hint (see several.go). All calls return.
func TestWaitAnyBesideOthers(t *testing.T) {
	c := world(openJob(t, 1, inproc.NewFabric(), nil))[0]
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for range 200 {
		q := c.Irecv(make([]byte, 1), Env{Peer: 0, Tag: 1})
		other := c.Irecv(make([]byte, 1), Env{Peer: 0, Tag: 2})
		ended := make(chan error, 3)
		for _, rs := range [][]Request{{q}, {other, q}} {
			go func() {
				_, err := WaitAny(ctx, len(rs), func(i int) Request { return rs[i] })
				ended <- err
			}()
		}
		go func() { _, err := q.Wait(ctx); ended <- err }()
		require.Eventually(t, func() bool { // two of the goroutines wait: parked, polling or asleep
			c.e.mu.Lock()
			defer c.e.mu.Unlock()
			return len(c.e.completionWaiters) >= 2
		}, testTimeout, 10*time.Microsecond)
		require.NoError(t, c.Send(ctx, []byte{1}, Env{Peer: 0, Tag: 1}))
		require.NoError(t, c.Send(ctx, []byte{1}, Env{Peer: 0, Tag: 2}))
		for range 3 {
			require.NoError(t, <-ended)
		}
		_, err := other.Wait(ctx)
		require.NoError(t, err)
	}
}
