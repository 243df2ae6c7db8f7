//go:build linux

package launcher

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// TestStates gives checkState the reports of hosts. The job must fail as soon as the reports show
// that a rank waits in a fence that another rank will not enter, or that a rank has ended without
// Init while other ranks have called Init. It must not fail before.
func TestStates(t *testing.T) {
	r := testRun(3)
	// It is as if host 9 had reported before, so [run.checkState] sends no Watch.
	r.states.of[9] = proto.State{Left: -1, Absent: -1}
	report := func(index, waiting int, begun bool, left, absent int) {
		r.checkState(proto.State{Index: index, Waiting: waiting, Begun: begun, Left: left, Absent: absent})
	}
	report(0, 0, true, -1, -1)
	report(1, 1, true, -1, -1)
	r.released = 1
	report(2, 0, true, 2, -1)
	require.Nil(t, r.outcome, "fence 1 was released, so no rank waits in it")
	report(1, 0, true, -1, -1)
	report(0, 2, true, -1, -1)
	require.Equal(t, "rank 2 did not start: ended while other ranks wait for it in a fence", r.outcome.Error())

	r = testRun(2)
	r.states.of[9] = proto.State{Left: -1, Absent: -1}
	report(0, 0, false, 0, 0)
	require.Nil(t, r.outcome)
	report(1, 0, true, -1, -1)
	require.Equal(t, "ended without Init, which other ranks have called", r.outcome.Reason)
}
