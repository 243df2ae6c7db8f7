//go:build linux

package procs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// TestNotifyWait checks that a rank that does not read for a while still gets all failure
// notifications, that the channel of a rank that never reads is closed, and that the channel of
// another rank stays open meanwhile.
func TestNotifyWait(t *testing.T) {
	poller, err := sys.NewPoller()
	require.NoError(t, err)
	defer poller.Close()
	c := &Manager{poller: poller, plan: proto.Plan{Ranks: []proto.Rank{{Rank: 7}, {Rank: 8}}}, ranks: make([]rank, 2)}
	var ends [2]int
	for i := range ends {
		c.ranks[i].ctl = -1
		c.ranks[i].notify, ends[i], err = socketpair()
		require.NoError(t, err)
		defer func() { _ = unix.Close(ends[i]) }()
		defer c.closeNotify(i)
	}
	var want []byte
	tell := func() {
		// Rank 8 gets no notification, because it has failed itself.
		m := proto.RanksFailed{Ranks: []int{8, 100, 102, 104}, Reason: fmt.Sprintf("%0999d", len(want))}
		want = wire.AppendFailures(want, "", m.Ranks, m.Reason)
		c.notify(m)
	}
	for c.ranks[0].unsent == nil {
		tell()
	}
	for range 100 {
		tell()
	}
	require.Nil(t, c.ranks[1].unsent)

	var got []byte
	buf := make([]byte, 1000)
	for len(got) < len(want) {
		n, err := unix.Read(ends[0], buf)
		require.NoError(t, err)
		got = append(got, buf[:n]...)
		var events [4]sys.Event
		n, err = poller.Now(events[:])
		if n > 0 && err == nil {
			require.Equal(t, notifyIndex(0), events[0].ID())
			c.sendNotify(0)
		}
	}
	require.Equal(t, string(want), string(got))
	require.Nil(t, c.ranks[0].unsent)

	for len(want) < len(got)+2*notifyLimit {
		tell()
	}
	require.Negative(t, c.ranks[0].notify)
	require.GreaterOrEqual(t, c.ranks[1].notify, 0)
}
