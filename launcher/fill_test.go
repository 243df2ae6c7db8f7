package launcher

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/job"
)

// TestFilledAllocation: the user gives no number of ranks, so the slots of the allocation do. In an
// allocation of the user, fillNote must return nothing. In an allocation that gorun has got for the
// two named hosts, fillNote must return a note with the number of ranks, unless the user gives that
// number.
func TestFilledAllocation(t *testing.T) {
	r := newRun(&session{job: &job.Job{Apps: []job.App{{}}, Hosts: []hosts.Host{{Name: "a"}, {Name: "b"}}}}, "id")
	r.allocated, r.hostOrder = true, []int{0, 1}
	placed := &place.Result{Ranks: make([]place.Rank, 2)}
	t.Setenv(envAllocated, "")
	require.Empty(t, r.fillNote(placed))
	t.Setenv(envAllocated, "3")
	require.Equal(t, "note: no number of ranks is given: 2 ranks on 2 hosts; -n N sets another number", r.fillNote(placed))
	r.job.NPGiven = true
	require.Empty(t, r.fillNote(placed))
}
