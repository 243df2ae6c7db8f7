package place

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

// check fails the test unless r, the result of Map for these arguments, has the properties that
// every Result of Map must have.
func check(t testing.TB, machines []Machine, appNP []int, p Policy, r *Result) {
	t.Helper()
	var apps []int
	for app, np := range appNP {
		apps = append(apps, slices.Repeat([]int{app}, np)...)
	}
	require.Len(t, r.Ranks, len(apps))
	counts := make([]int, len(machines))
	for i, rk := range r.Ranks {
		require.Equal(t, apps[i], rk.App)
		require.Less(t, rk.Host, len(machines))
		require.Equal(t, counts[rk.Host], rk.Local)
		counts[rk.Host]++
	}
	oversubscribed, total := false, 0
	for h := range machines {
		require.LessOrEqual(t, counts[h], machines[h].limit())
		oversubscribed = oversubscribed || counts[h] > machines[h].slots()
		total += machines[h].slots()
	}
	require.Equal(t, oversubscribed, r.Warning != "")
	require.NotContains(t, r.Warning, "\n")
	require.False(t, oversubscribed && p.Strict)
	if p.Rankfile == nil && !strings.HasPrefix(p.MapBy, "ppr:") && len(apps) <= total {
		require.False(t, oversubscribed, "there are enough slots")
	}
	for h := range machines {
		var ranks []Rank
		for _, rk := range r.Ranks {
			if rk.Host == h {
				ranks = append(ranks, rk)
			}
		}
		checkBinding(t, &machines[h].Topology, ranks, p)
	}
}

// checkBinding fails the test unless the bindings of the ranks of one host, with topology topo,
// have the properties that every Result of Map must have.
func checkBinding(t testing.TB, topo *Topology, ranks []Rank, p Policy) {
	t.Helper()
	binds := p.Bind != "" && p.Bind != job.BindNone
	core, node := topo.unitOf(topo.Cores), topo.unitOf(topo.NUMA)
	users := make([]int, topo.bound())
	for _, rk := range ranks {
		if p.Rankfile == nil {
			units := topo.Cores
			if p.Bind == job.BindNUMA && !strings.HasSuffix(p.MapBy, "core") || strings.HasSuffix(p.MapBy, "numa") {
				units = topo.NUMA
			}
			require.Equal(t, binds && len(units) > 0, len(rk.CPUs) > 0)
		}
		require.True(t, slices.IsSorted(rk.CPUs))
		has := make(map[int]int)
		for _, c := range rk.CPUs {
			require.Contains(t, topo.CPUs, c)
			users[c]++
			has[core[c]]++
			if p.Rankfile == nil && p.Bind == job.BindNUMA {
				require.Equal(t, node[rk.CPUs[0]], node[c])
			}
		}
		for u, n := range has {
			require.True(t, u < 0 || n == len(topo.Cores[u]), "whole cores")
		}
		if len(ranks) >= len(topo.Cores) && p.Bind == job.BindCore && strings.HasSuffix(p.MapBy, "core") {
			require.LessOrEqual(t, len(has), 1)
		}
	}
	shares := strings.HasPrefix(p.MapBy, "ppr:") && !strings.HasPrefix(p.MapBy, "ppr:1:") && !strings.HasSuffix(p.MapBy, "node")
	own := p.Rankfile == nil && !shares
	cores := len(topo.Cores)
	if strings.HasSuffix(p.MapBy, "numa") { // ranks do not get cores that are in no NUMA node
		cores = 0
		for _, l := range topo.coresOfNodes() {
			cores += len(l)
		}
	}
	if own && p.Bind == job.BindCore && len(ranks) <= cores {
		for c, n := range users {
			require.LessOrEqual(t, n, 1, "there is a core for each rank, but core %d is shared", c)
		}
	}
	if own && p.Bind == job.BindCore && p.MapBy != "numa" && p.MapBy != "ppr:1:numa" && len(ranks) > 0 {
		least, most := len(ranks), 0
		for _, c := range topo.Cores {
			least, most = min(least, users[c[0]]), max(most, users[c[0]])
		}
		require.LessOrEqual(t, most-least, 1, "the numbers of ranks on cores differ by at most one")
	}
}

var rules = []string{"", "slot", "node", "core", "numa", "ppr:1:node", "ppr:2:node", "ppr:1:core", "ppr:2:core", "ppr:1:numa", "ppr:2:numa"}

// randomJob returns random arguments of Map: a job of few ranks on few hosts. The topologies of the
// hosts are from topos.
func randomJob(rng *rand.Rand, topos []Topology) (machines []Machine, appNP []int, p Policy) {
	for range 1 + rng.IntN(5) {
		m := Machine{Name: string(rune('a' + len(machines))), Topology: topos[rng.IntN(len(topos))]}
		if rng.IntN(2) == 0 {
			m.Slots = 1 + rng.IntN(6)
		}
		if rng.IntN(3) == 0 {
			m.MaxSlots = 1 + rng.IntN(8)
		}
		machines = append(machines, m)
	}
	appNP = []int{1 + rng.IntN(12)}
	for range rng.IntN(3) {
		appNP = append(appNP, rng.IntN(12))
	}
	return machines, appNP, Policy{
		MapBy:  rules[rng.IntN(len(rules))],
		RankBy: []string{"", "slot", "node", "fill"}[rng.IntN(4)],
		Bind:   []job.Bind{"", job.BindNone, job.BindCore, job.BindNUMA}[rng.IntN(4)],
		Strict: rng.IntN(4) == 0,
	}
}

// someTopologies returns topologies of different kinds. One of them is that of a host whose
// hardware is not known.
func someTopologies(t testing.TB) []Topology {
	quota := twoSockets.read(t)
	quota.Quota = 3
	part := twoSockets // ranks may use only some of its threads, so its NUMA nodes have different sizes
	return []Topology{
		{}, twoCores.read(t), twoSockets.read(t), fourNodes.read(t), holes.read(t), quota,
		ReadTopology(part.sys(t), []int{0, 1, 2, 3, 4, 9, 10}),
		{CPUs: upTo(3)}, {CPUs: upTo(4), NUMA: [][]int{{0, 1}, {3}}},
		{CPUs: upTo(4), Cores: [][]int{{0, 1}, {2}, {3}}, NUMA: [][]int{{0, 1, 2}}},
	}
}

// TestMapProperties calls Map for many random jobs. Each result must have the properties that check
// tests. A second call of Map must return the same, and neither call may change the machines. A
// failure names the seed of the job.
func TestMapProperties(t *testing.T) {
	topos := someTopologies(t)
	mapped := 0
	for seed := range uint64(4000) {
		machines, appNP, p := randomJob(rand.New(rand.NewPCG(seed, 0)), topos)
		before := slices.Clone(machines)
		r, err := Map(machines, appNP, p)
		again, err2 := Map(machines, appNP, p)
		require.Equal(t, err, err2, "seed %d", seed)
		require.Equal(t, r, again, "seed %d", seed)
		require.Equal(t, before, machines, "seed %d", seed)
		if err != nil {
			require.Nil(t, r)
			require.NotContains(t, err.Error(), "\n")
			continue
		}
		mapped++
		check(t, machines, appNP, p, r)
		if t.Failed() {
			t.Fatalf("seed %d: %+v of %v on %+v", seed, p, appNP, machines)
		}
		var b strings.Builder
		require.NoError(t, Render(&b, machines, r))
		checkTable(t, b.String(), machines, r)
	}
	require.Greater(t, mapped, 1000)
}

// TestMapFails checks, for many random jobs without a rule ppr:N:UNIT, that Map returns an error if
// and only if the ranks do not fit.
func TestMapFails(t *testing.T) {
	for seed := range uint64(2000) {
		machines, appNP, p := randomJob(rand.New(rand.NewPCG(seed, 1)), []Topology{{}})
		np, slots, limits := 0, 0, 0
		for _, n := range appNP {
			np += n
		}
		for i := range machines {
			slots += machines[i].slots()
			limits += min(machines[i].limit(), np)
		}
		if strings.HasPrefix(p.MapBy, "ppr:") {
			continue
		}
		_, err := Map(machines, appNP, p)
		require.Equal(t, np > limits || p.Strict && np > slots, err != nil, "seed %d: %v", seed, err)
	}
}

// TestSpread compares the result of spread with that of a simple loop, which places one rank after
// the other on the host with the lowest load.
func TestSpread(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var machines []Machine
		for range 1 + rng.IntN(6) {
			m := Machine{Slots: 1 + rng.IntN(9)}
			if rng.IntN(2) == 0 {
				m.MaxSlots = m.Slots + rng.IntN(20)
			}
			machines = append(machines, m)
		}
		n := 1 + rng.IntN(200)
		m := mapper{machines: machines, most: job.MaxRanks}
		require.NoError(t, m.check([]int{n}, Policy{}))
		want := make([]int, len(machines))
		fits := true
		for range n {
			best := -1
			for h := range machines {
				room := machines[h].Slots+want[h] < machines[h].limit()
				if room && (best < 0 || (want[h]+1)*machines[best].Slots < (want[best]+1)*machines[h].Slots) {
					best = h
				}
			}
			if best < 0 {
				fits = false
				break
			}
			want[best]++
		}
		got, ok := m.spread(n)
		require.Equal(t, fits, ok, "seed %d", seed)
		if fits {
			require.Equal(t, want, got, "seed %d", seed)
		}
	}
}
