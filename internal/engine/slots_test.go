package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/inproc"
)

// TestSlotsOfABurstAreGivenBack: a program has many requests under way at once, and completes them.
// After that the engine's table keeps at most slotsKept unused slots. Copies of the Requests, and
// handles that peers have of them, never identify the requests that later use the same indices.
func TestSlotsOfABurstAreGivenBack(t *testing.T) {
	c := world(openJob(t, 1, inproc.NewFabric(), nil))[0]
	e := c.e
	slots := func() (n int) {
		e.mu.Lock()
		defer e.mu.Unlock()
		free := 0
		for r := e.free; r != nil; r = r.next {
			free++
		}
		require.Equal(t, e.unused, free)
		require.LessOrEqual(t, free, slotsKept)
		for i, r := range e.slots {
			if r != nil {
				require.EqualValues(t, i, r.index)
				n++
			}
		}
		require.Equal(t, len(e.slots)-n, len(e.vacant))
		return n
	}
	const burst = 3*slotsKept + 5
	most := 0
	var stale []Request
	for range 3 {
		reqs := make([]Request, burst)
		for i := range reqs {
			reqs[i] = c.Irecv(nil, Env{Peer: 0, Tag: i})
		}
		for _, q := range stale {
			require.True(t, q.Done())
			got, err := e.slot(uint64(q.r.index)<<32|uint64(q.gen), kindRecv, 0)
			require.NoError(t, err)
			require.Nil(t, got, "a handle of an earlier request identifies a later one")
		}
		require.GreaterOrEqual(t, slots(), burst)
		require.LessOrEqual(t, slots(), burst+slotsAtOnce+8)
		for i := range reqs {
			require.NoError(t, c.Send(background, nil, Env{Peer: 0, Tag: i}))
			_, err := reqs[i].Wait(background)
			require.NoError(t, err)
		}
		require.LessOrEqual(t, slots(), slotsKept+8)
		if most == 0 {
			most = len(e.slots)
		}
		require.Len(t, e.slots, most, "indices are used again")
		require.Empty(t, e.Leftovers())
		e.Settle(background)
		require.False(t, e.Snapshot().Moves)
		stale = reqs
	}
}
