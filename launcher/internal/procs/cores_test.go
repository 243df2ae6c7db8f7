//go:build linux

package procs

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// ownNames makes the claims of this test use socket names that no other process uses.
func ownNames(t *testing.T) {
	was := coreNames
	t.Cleanup(func() { coreNames = was })
	coreNames = fmt.Sprintf("@weft-test-%d-%s-", os.Getpid(), t.Name())
}

// claimant returns a process manager that has run claimCores on a host with these cores. It has one
// rank for each element of cpus: a list of the hardware threads to which the rank is bound.
func claimant(t *testing.T, cores [][]int, rebind bool, cpus ...[]int) *Manager {
	c := &Manager{job: proto.Prepare{Rebind: rebind}}
	c.topology.Do(func() { c.here = place.Topology{Cores: cores} })
	for _, list := range cpus {
		c.ranks = append(c.ranks, rank{cpus: list})
	}
	t.Cleanup(c.endClaims)
	c.claimCores()
	return c
}

func boundTo(c *Manager) (list [][]int) {
	for _, r := range c.ranks {
		list = append(list, r.cpus)
	}
	return list
}

// TestJobsTakeDifferentCores checks that a rank whose planned core another job has claimed moves to
// a free core, that it stays on its planned core if no core is free, and that the cores of a job
// that has ended are free again.
func TestJobsTakeDifferentCores(t *testing.T) {
	ownNames(t)
	four := [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}
	first := claimant(t, four, true, four[0], four[1])
	require.Equal(t, [][]int{four[0], four[1]}, boundTo(first))

	// Two of the three ranks are bound to the same core.
	second := claimant(t, four, true, four[0], four[0], four[1])
	require.Equal(t, [][]int{four[2], four[2], four[3]}, boundTo(second))
	require.True(t, second.ranks[0].rebound)

	third := claimant(t, four, true, four[0]) // the other two jobs have claimed all cores
	require.Equal(t, [][]int{four[0]}, boundTo(third))
	require.False(t, third.ranks[0].rebound)

	second.endClaims()
	require.Equal(t, [][]int{four[2]}, boundTo(claimant(t, four, true, four[0])))
	first.endClaims()
	require.Equal(t, [][]int{four[0], four[1]}, boundTo(claimant(t, four, true, four[0], four[1])))
}

// TestClaimsStayWithinTheHost checks that a rank whose core another job has claimed moves only to a
// core that ranks may use on this host and that no other rank of its own job may use.
func TestClaimsStayWithinTheHost(t *testing.T) {
	ownNames(t)
	claimant(t, [][]int{{0}, {1}, {2}, {3}}, true, []int{2})
	require.Equal(t, [][]int{{2}}, boundTo(claimant(t, [][]int{{2}}, true, []int{2})), "a set of one core")
	require.Equal(t, [][]int{{2}, {3}}, boundTo(claimant(t, [][]int{{2}, {3}}, true, []int{2}, []int{3})), "all cores are used")
	require.Equal(t, [][]int{{2}, {0, 1, 3}}, boundTo(claimant(t, [][]int{{0}, {1}, {2}, {3}}, true, []int{2}, []int{0, 1, 3})))
	require.Equal(t, [][]int{{9}}, boundTo(claimant(t, [][]int{{0}}, true, []int{9})), "an unknown core")
}

// TestRankfileIsKept checks that ranks stay on the cores that a rankfile names (Rebind is false),
// even if another job has claimed these cores, and that other jobs avoid the cores of such ranks.
func TestRankfileIsKept(t *testing.T) {
	ownNames(t)
	two := [][]int{{0}, {1}}
	require.Equal(t, [][]int{{0}}, boundTo(claimant(t, two, false, two[0])))
	require.Equal(t, [][]int{{0}}, boundTo(claimant(t, two, false, two[0])))
	require.Equal(t, [][]int{{1}}, boundTo(claimant(t, two, true, two[0])))
}

// TestSeveralCoresAreNotClaimed checks that a rank that may run on several cores claims none.
func TestSeveralCoresAreNotClaimed(t *testing.T) {
	ownNames(t)
	two := [][]int{{0}, {1}}
	require.Empty(t, claimant(t, two, true, []int{0, 1}, nil).claims)
	require.Equal(t, [][]int{{0}}, boundTo(claimant(t, two, true, two[0])))
}

// TestJobsAtOnce checks that jobs that start at the same time get different cores, if there are
// enough.
func TestJobsAtOnce(t *testing.T) {
	ownNames(t)
	cores := [][]int{{0}, {1}, {2}, {3}, {4}, {5}}
	for range 50 {
		managers := make([]*Manager, len(cores)/2)
		var begin, end sync.WaitGroup
		begin.Add(1)
		for i := range managers {
			c := &Manager{job: proto.Prepare{Rebind: true}, ranks: []rank{{cpus: cores[0]}, {cpus: cores[1]}}}
			c.topology.Do(func() { c.here = place.Topology{Cores: cores} })
			managers[i] = c
			end.Go(func() { // ends when claimCores returns; end waits for it
				begin.Wait()
				c.claimCores()
			})
		}
		begin.Done()
		end.Wait()
		used := make(map[int]bool)
		for _, c := range managers {
			for _, cpus := range boundTo(c) {
				used[cpus[0]] = true
			}
			c.endClaims()
		}
		require.Len(t, used, len(cores))
	}
}

// TestTwoJobsRunOnDifferentCores checks that the ranks of two jobs run on different cores, and that
// the process managers report these cores.
func TestTwoJobsRunOnDifferentCores(t *testing.T) {
	cores := place.Here().Cores
	if len(cores) < 2 {
		t.Skip("this host has one core; TestJobsAtOnce simulates more")
	}
	ownNames(t)
	var lists, starts [2][]int
	for i := range 2 {
		var out bytes.Buffer
		c, emitted := testManager(t, 1, "grep ^Cpus_allowed_list: /proc/self/status", func(cfg *Config, m *proto.Prepare) {
			m.Plans[0].Ranks[0].CPUs, m.Rebind = cores[0], true
			cfg.Output = func(o proto.Output) error {
				_, err := out.Write(o.Data)
				return err
			}
		})
		c.Do(proto.Start{})
		starts[i] = await[proto.Started](t, emitted).Ranks[0].CPUs
		// The process manager, and with it the claim, stays until the test ends.
		await[proto.Ended](t, emitted)
		lists[i] = place.ParseCPUs(strings.Fields(out.String())[1])
	}
	require.Equal(t, [2][]int{cores[0], cores[1]}, lists)
	require.Equal(t, [2][]int{nil, cores[1]}, starts)
}
