package mpi_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/internal/params"
)

// TestJob checks the description of a job of two hosts.
func TestJob(t *testing.T) {
	t.Setenv("WEFT_STAGE_DIR", "/stage")
	own, err := os.Hostname()
	require.NoError(t, err)
	nodes := []int{0, 1, 0, 1, 1}
	var ids [5]string
	ranks(t, 5, func(c *comm.Comm) error {
		half, err := c.Split(c.Rank()%2, 0)
		if err != nil {
			return err
		}
		j := half.Job()
		ids[c.Rank()] = j.ID
		want := comm.Job{
			ID: j.ID, Launcher: "commtest", Rank: c.Rank(), Size: 5, LocalRank: []int{0, 0, 1, 1, 2}[c.Rank()],
			LocalSize: []int{2, 3}[nodes[c.Rank()]], Epoch: 3, Slots: 5, HostOf: nodes, StageDir: "/stage", Hosts: make([]string, 2),
		}
		want.Hosts[nodes[c.Rank()]] = own
		if fmt.Sprint(j) != fmt.Sprint(want) {
			return fmt.Errorf("%+v, not %+v", j, want)
		}
		if j.Host(c.Rank()) != own || j.Host(-1) != "" || j.Host(5) != "" {
			return fmt.Errorf("hosts of %+v", j)
		}
		j.HostOf[0], j.Hosts[0] = 7, "changed"
		if k := c.Job(); !slices.Equal(k.HostOf, nodes) || k.Hosts[0] == "changed" {
			return fmt.Errorf("the caller's change of a Job has changed another one: %+v", k)
		}
		return nil
	}, commtest.WithNodes(nodes...), commtest.WithEpoch(3))
	for _, id := range ids {
		require.NotEmpty(t, id)
		require.Equal(t, ids[0], id)
	}
	require.Equal(t, comm.Job{}, (*comm.Comm)(nil).Job())
}

// TestJobOfGorun: the names and slots are those that gorun gives.
func TestJobOfGorun(t *testing.T) {
	c, err := mpi.Init(t.Context(), mpi.Setup{World: &bootstrap.World{
		Size: 1, HostOf: []int{0}, Names: []string{"node7"}, Slots: 12, AppNum: 2, JobID: "id", Launcher: "gorun", Params: &params.Set{}, KVS: goodKVS{},
	}})
	require.NoError(t, err)
	j := (*comm.Comm)(c).Job()
	require.Equal(t, comm.Job{ID: "id", Launcher: "gorun", Size: 1, LocalSize: 1, App: 2, Slots: 12, Hosts: []string{"node7"}, HostOf: []int{0}}, j)
	require.Equal(t, "node7", j.Host(0))
	require.NoError(t, c.Finalize())
}
