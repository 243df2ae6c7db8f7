package place

import (
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

// largeMachine returns 10 000 hosts with 128 cores of 2 threads each, as many as the largest
// clusters have today. Each host has a Topology in memory of its own, decoded from JSON, as gorun
// gets it from the host's agent.
func largeMachine(b *testing.B, slots int) []Machine {
	const hosts = 10000
	one := shape{packages: 2, cores: 128, threads: 2, nodes: 8}.read(b)
	text, err := one.MarshalJSON()
	require.NoError(b, err)
	machines := make([]Machine, hosts)
	for i := range machines {
		machines[i] = Machine{Name: fmt.Sprintf("node%05d", i), Slots: slots}
		require.NoError(b, machines[i].Topology.UnmarshalJSON(text))
	}
	return machines
}

func BenchmarkMap(b *testing.B) {
	const ranks = 128 * 10000
	machines, few := largeMachine(b, 128), largeMachine(b, 1)
	for _, c := range []struct {
		name     string
		machines []Machine
		policy   Policy
	}{
		{"slot", machines, Policy{}},
		{"slot, bound", machines, Policy{Bind: job.BindCore}},
		{"slot, too few", few, Policy{}},
		{"node, bound", machines, Policy{MapBy: "node", Bind: job.BindCore}},
		{"numa, bound", machines, Policy{MapBy: "numa", Bind: job.BindCore}},
		{"ppr, ranked by node", machines, Policy{MapBy: "ppr:1:core", RankBy: "node", Bind: job.BindNUMA}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := mapUpTo(ranks, c.machines, []int{ranks}, c.policy)
				if err != nil || len(r.Ranks) != ranks {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRender(b *testing.B) {
	const ranks = 128 * 10000
	machines := largeMachine(b, 128)
	for _, by := range []string{"slot", "node"} {
		r, err := mapUpTo(ranks, machines, []int{ranks}, Policy{MapBy: by, Bind: job.BindCore})
		require.NoError(b, err)
		b.Run(by, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, Render(io.Discard, machines, r))
			}
		})
	}
}
