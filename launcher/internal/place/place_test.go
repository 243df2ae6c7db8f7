package place

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

// hostsOf returns machines with the names a, b and so on. text has a word for each machine: its
// Slots and, after a slash, its MaxSlots, as in "4 2/3 0".
func hostsOf(t testing.TB, text string) []Machine {
	t.Helper()
	var machines []Machine
	for i, f := range strings.Fields(text) {
		slots, most, limited := strings.Cut(f, "/")
		m := Machine{Name: string(rune('a' + i))}
		var ok bool
		m.Slots, ok = number(slots, 1000)
		require.True(t, ok, text)
		if limited {
			m.MaxSlots, ok = number(most, 1000)
			require.True(t, ok, text)
		}
		machines = append(machines, m)
	}
	return machines
}

// letters returns a text with a letter for each rank: its host, where a means host 0. There is a
// blank between apps.
func letters(r *Result) string {
	var b strings.Builder
	for i, rk := range r.Ranks {
		if i > 0 && rk.App != r.Ranks[i-1].App {
			b.WriteByte(' ')
		}
		b.WriteByte(byte('a' + rk.Host))
	}
	return b.String()
}

func TestMapHosts(t *testing.T) {
	for _, c := range []struct {
		hosts   string
		by      string // Policy.MapBy and, after a blank, Policy.RankBy
		appNP   []int
		want    string
		warning string
	}{
		{"2 2", "", []int{4}, "aabb", ""},
		{"2 2", "slot", []int{3}, "aab", ""},
		{"2 2", "slot", []int{1}, "a", ""},
		{"0 0", "slot", []int{2}, "ab", ""},
		{"3 1 2", "slot", []int{6}, "aaabcc", ""},
		{"2 2", "slot", []int{1, 2}, "a ab", ""},
		{"2 2", "slot", []int{0, 2, 0, 1}, "aa b", ""},
		{"9/2 2", "slot", []int{4}, "aabb", ""},

		// If there are more ranks than slots, hosts get ranks in proportion to their slots, as far
		// as MaxSlots allows.
		{"2", "slot", []int{5}, "aaaaa", "5 ranks share the 2 slots of a"},
		{"1", "slot", []int{2}, "aa", "2 ranks share the 1 slot of a"},
		{"2 2", "slot", []int{6}, "aabbab", "6 ranks share the 4 slots of 2 hosts"},
		{"4 2", "slot", []int{12}, "aaaabbaaaabb", "12 ranks share the 6 slots of 2 hosts"},
		{"4 2", "slot", []int{9}, "aaaabbaab", "9 ranks share the 6 slots of 2 hosts"},
		{"4 2", "slot", []int{6, 2}, "aaaabb aa", "8 ranks share the 6 slots of 2 hosts"},
		{"2/3 2", "slot", []int{8}, "aabbabbb", "8 ranks share the 4 slots of 2 hosts"},
		{"2/2 1", "slot", []int{5}, "aabbb", "5 ranks share the 3 slots of 2 hosts"},
		{"2/3 2/3", "slot", []int{6}, "aabbab", "6 ranks share the 4 slots of 2 hosts"},

		{"2 2", "node", []int{3}, "aba", ""},
		{"2 2", "node", []int{4}, "abab", ""},
		{"1 3 2", "node", []int{6}, "abcbcb", ""},
		{"2 2", "node", []int{1, 2}, "a ba", ""},
		{"1 3", "node", []int{7}, "abbbaba", "7 ranks share the 4 slots of 2 hosts"},
		{"1/1 3", "node", []int{6}, "abbbbb", "6 ranks share the 4 slots of 2 hosts"},
		{"1/2 1/2 1/9", "node", []int{8}, "abcabccc", "8 ranks share the 3 slots of 3 hosts"},

		{"9 9 9", "ppr:2:node", []int{5}, "aabbc", ""},
		{"9 9 9", "ppr:2:node", []int{1, 3}, "a abb", ""},
		{"1 9", "ppr:2:node", []int{4}, "aabb", "2 ranks share the 1 slot of a"},
		{"1 1 9", "ppr:2:node", []int{6}, "aabbcc", "4 ranks share the 2 slots of 2 hosts"},
		{"1 1", "ppr:2:node", []int{4}, "aabb", "4 ranks share the 2 slots of 2 hosts"},
		{"2/1 2", "ppr:1:node", []int{2}, "ab", ""},

		// RankBy numbers the ranks round-robin over the hosts (node), or host by host (fill).
		{"2 2", "slot slot", []int{4}, "aabb", ""},
		{"2 2", "slot node", []int{4}, "abab", ""},
		{"3 1 2", "slot node", []int{6}, "abcaca", ""},
		{"3 3", "slot node", []int{2, 4}, "aa abbb", ""},
		{"2 2", "slot node", []int{7}, "abababa", "7 ranks share the 4 slots of 2 hosts"},
		{"9 9", "ppr:2:node node", []int{4}, "abab", ""},
		{"1 3", "node fill", []int{4}, "abbb", ""},
		{"2 2", "node fill", []int{3}, "aab", ""},
		{"2 2", "node fill", []int{2, 2}, "ab ab", ""},
		{"2 2", "slot fill", []int{6}, "aaabbb", "6 ranks share the 4 slots of 2 hosts"},
		{"2 2", "node slot", []int{3}, "aba", ""},
	} {
		machines := hostsOf(t, c.hosts)
		by, rankBy, _ := strings.Cut(c.by, " ")
		p := Policy{MapBy: by, RankBy: rankBy}
		r, err := Map(machines, c.appNP, p)
		require.NoError(t, err, "%+v", c)
		require.Equal(t, c.want, letters(r), "%+v", c)
		require.Equal(t, c.warning, r.Warning, "%+v", c)
		check(t, machines, c.appNP, p, r)

		p.Strict = true
		r, err = Map(machines, c.appNP, p)
		if c.warning == "" {
			require.NoError(t, err, "%+v", c)
			require.Equal(t, c.want, letters(r), "%+v", c)
		} else {
			require.EqualError(t, err, strings.Replace(c.warning, "share", "do not fit into", 1))
		}
	}
}

// TestFill checks the number of ranks that a job gets if the user gives none.
func TestFill(t *testing.T) {
	two := twoSockets.read(t)
	machines := []Machine{{Name: "a", Topology: two}, {Name: "b", Slots: 3}, {Name: "c", MaxSlots: 5, Topology: two}, {Name: "d"}}
	for by, want := range map[string]int{"": 25, "slot": 25, "node": 25, "core": 25, "ppr:2:node": 8, "ppr:1:core": 16, "ppr:3:numa": 24} {
		require.Equal(t, want, Fill(machines, Policy{MapBy: by}), by)
	}
	require.Zero(t, Fill(machines[1:2], Policy{MapBy: "ppr:1:core"}))
	f, err := ReadRankfile("f", strings.NewReader("rank 0=a slot=0\nrank 1=b slot=0\n"))
	require.NoError(t, err)
	require.Equal(t, 2, Fill(machines, Policy{Rankfile: f}))
}

// TestMapOnTooFewCores: if the slots of a host follow from its hardware, the warning about too many
// ranks must call them cores.
func TestMapOnTooFewCores(t *testing.T) {
	r, err := Map([]Machine{{Name: "a", Topology: twoCores.read(t)}}, []int{4}, Policy{})
	require.NoError(t, err)
	require.Equal(t, "4 ranks on 2 cores: they take turns", r.Warning)
	_, err = Map([]Machine{{Name: "a", Topology: twoCores.read(t)}}, []int{4}, Policy{Strict: true})
	require.EqualError(t, err, "4 ranks do not fit into the 2 slots of a")
}

// TestMapDifferentHosts: each host must get as many ranks as follow from its own topology: from its
// number of slots or, with the rules ppr:N:core and ppr:N:numa, from its number of cores or NUMA
// nodes.
func TestMapDifferentHosts(t *testing.T) {
	two := twoSockets.read(t)
	quota := two
	quota.Quota = 3
	machines := []Machine{
		{Name: "a", Topology: twoCores.read(t)}, {Name: "b", Topology: holes.read(t)},
		{Name: "c", Topology: quota}, {Name: "d", MaxSlots: 5, Topology: two}, {Name: "e"},
	}
	for _, c := range []struct {
		hosts   int
		p       Policy
		np      int
		want    string
		warning string
	}{
		{5, Policy{}, 19, "aabbbbbbbbcccddddde", ""},
		{5, Policy{MapBy: "node"}, 19, "abcdeabcdbcdbdbdbbb", ""},
		{5, Policy{MapBy: "core"}, 19, "aabbbbbbbbcccddddde", ""},
		{3, Policy{}, 16, "aabbbbbbbbcccbbc", "16 ranks on the 13 cores of 3 hosts: they take turns"},
		{2, Policy{MapBy: "ppr:1:core"}, 6, "aabbbb", ""},
		{2, Policy{MapBy: "ppr:1:numa"}, 3, "abb", ""},
		{3, Policy{MapBy: "ppr:1:numa"}, 7, "abbcccc", "4 ranks on the 3 cores of c: they take turns"},
		{3, Policy{MapBy: "ppr:3:numa"}, 10, "aaabbbbbbc", "3 ranks on the 2 cores of a: they take turns"},
		{5, Policy{MapBy: "ppr:1:numa"}, 7, "abbcccc", "4 ranks on the 3 cores of c: they take turns"},
	} {
		r, err := Map(machines[:c.hosts], []int{c.np}, c.p)
		require.NoError(t, err, "%+v", c)
		require.Equal(t, c.want, letters(r), "%+v", c)
		require.Equal(t, c.warning, r.Warning, "%+v", c)
		check(t, machines[:c.hosts], []int{c.np}, c.p, r)
	}
}

func TestMapBinding(t *testing.T) {
	two, small, gaps := twoSockets.read(t), twoCores.read(t), holes.read(t)
	// This host has four cores, with the threads 0; 1 and 9; 2 and 10; 4, in NUMA nodes of 2, 1 and
	// 1 cores.
	odd := ReadTopology(twoSockets.sys(t), []int{0, 1, 2, 4, 9, 10})
	require.Equal(t, "0;1,9;2,10;4", formatUnits(odd.Cores))
	require.Equal(t, "0-1,9;2,10;4", formatUnits(odd.NUMA))
	for _, c := range []struct {
		name string
		topo Topology
		by   string
		bind job.Bind
		np   int
		want string
	}{
		{"none", two, "slot", job.BindNone, 2, "-|-"},
		{"left open", two, "core", "", 2, "-|-"},
		{"unknown", Topology{}, "core", job.BindCore, 2, "-|-"},
		{"unknown", Topology{}, "numa", job.BindNUMA, 2, "-|-"},
		{"no cores", Topology{CPUs: upTo(2)}, "slot", job.BindCore, 1, "-"},

		{"slot", two, "slot", job.BindCore, 2, "0-3,8-11|4-7,12-15"},
		{"slot", two, "slot", job.BindCore, 3, "0-1,8-9|2-4,10-12|5-7,13-15"},
		{"slot", two, "slot", job.BindNUMA, 3, "0-1,8-9|2-3,10-11|4-5,12-13"},
		{"node", two, "node", job.BindCore, 2, "0-3,8-11|4-7,12-15"},
		{"two cores", small, "slot", job.BindCore, 3, "0|0|1"},
		{"holes", gaps, "slot", job.BindCore, 4, "0,64|1,65|4,68|5,69"},

		{"core", two, "core", job.BindCore, 3, "0,8|1,9|2,10"},
		{"core", small, "core", job.BindCore, 3, "0|1|0"},
		{"core", two, "core", job.BindNUMA, 3, "0-1,8-9|0-1,8-9|2-3,10-11"},
		{"a core of no node", Topology{CPUs: upTo(2), Cores: [][]int{{0}, {1}}, NUMA: [][]int{{1}}}, "core", job.BindNUMA, 2, "0|1"},

		{"numa", two, "numa", job.BindNUMA, 5, "0-1,8-9|2-3,10-11|4-5,12-13|6-7,14-15|0-1,8-9"},
		{"numa", two, "numa", job.BindCore, 5, "0,8|2-3,10-11|4-5,12-13|6-7,14-15|1,9"},
		{"different nodes", odd, "numa", job.BindCore, 4, "0|2,10|4|1,9"},
		{"different nodes", odd, "numa", job.BindNUMA, 4, "0-1,9|2,10|4|0-1,9"},
		{"different nodes, more ranks", odd, "numa", job.BindCore, 6, "0|2,10|4|0|1,9|2,10"},
		{"nodes without cores", Topology{CPUs: upTo(4), NUMA: [][]int{{0, 1}, {3}}}, "numa", job.BindCore, 3, "0-1|3|0-1"},

		{"ppr", two, "ppr:2:core", job.BindCore, 3, "0,8|0,8|1,9"},
		{"ppr", two, "ppr:2:core", job.BindNUMA, 5, "0-1,8-9|0-1,8-9|0-1,8-9|0-1,8-9|2-3,10-11"},
		{"ppr", two, "ppr:1:numa", job.BindCore, 2, "0-1,8-9|2-3,10-11"},
		{"ppr", two, "ppr:2:numa", job.BindCore, 3, "0,8|1,9|2-3,10-11"},
		{"ppr", two, "ppr:3:numa", job.BindCore, 4, "0,8|0,8|1,9|2-3,10-11"},
		{"ppr", two, "ppr:2:node", job.BindCore, 2, "0-3,8-11|4-7,12-15"},
	} {
		machines, p := []Machine{{Name: "a", Topology: c.topo}}, Policy{MapBy: c.by, Bind: c.bind}
		r, err := Map(machines, []int{c.np}, p)
		require.NoError(t, err, "%+v", c)
		require.Equal(t, c.want, bindings(r), "%s, %s, %s", c.name, c.by, c.bind)
		check(t, machines, []int{c.np}, p, r)
	}
}

func bindings(r *Result) string {
	var texts []string
	for _, rk := range r.Ranks {
		if text := FormatCPUs(rk.CPUs); text != "" {
			texts = append(texts, text)
		} else {
			texts = append(texts, "-")
		}
	}
	return strings.Join(texts, "|")
}

// TestMapBindingPerHost: the binding of a rank must depend only on the topology of its host, on the
// number of ranks there, and on its number among them.
func TestMapBindingPerHost(t *testing.T) {
	small := twoCores.read(t)
	machines := []Machine{
		{Name: "a", Topology: small}, {Name: "b"}, {Name: "c", Topology: holes.read(t)},
		{Name: "d", Topology: small}, {Name: "e", Topology: small},
	}
	p := Policy{MapBy: "node", Bind: job.BindCore}
	r, err := Map(machines, []int{4, 5}, p)
	require.NoError(t, err)
	check(t, machines, []int{4, 5}, p, r)
	require.Equal(t, "abcd eacde", letters(r))
	require.Equal(t, "0|-|0-1,64-65|0|0|1|4-5,68-69|1|1", bindings(r))
}

func TestMapErrors(t *testing.T) {
	two := Topology{CPUs: upTo(2), Cores: [][]int{{0}, {1}}, NUMA: [][]int{{0, 1}}}
	for _, c := range []struct {
		machines []Machine
		np       []int
		p        Policy
		want     string
	}{
		{hostsOf(t, "1"), nil, Policy{}, "expected from 1 to 65536 ranks, found none"},
		{hostsOf(t, "1"), []int{0, 0}, Policy{}, "expected from 1 to 65536 ranks, found none"},
		{hostsOf(t, "1"), []int{2, -1}, Policy{}, "app 1: expected 0 ranks or more, found -1"},
		{hostsOf(t, "1"), []int{65537}, Policy{}, "expected from 1 to 65536 ranks, found more"},
		{hostsOf(t, "1"), []int{1, 1<<63 - 1}, Policy{}, "expected from 1 to 65536 ranks, found more"},
		{nil, []int{1}, Policy{}, "there is no host for 1 rank"},
		{nil, []int{2, 1}, Policy{}, "there is no host for 3 ranks"},
		{[]Machine{{Name: "a", Slots: -1}}, []int{1}, Policy{}, "a: expected slots of 0 or more, found -1 and at most 0"},
		{[]Machine{{Name: "a", MaxSlots: -2}}, []int{1}, Policy{}, "a: expected slots of 0 or more, found 0 and at most -2"},
		{hostsOf(t, "1"), []int{1}, Policy{MapBy: "socket"}, `map ranks: expected slot, node, core, numa or ppr:N:node|numa|core, found "socket"`},
		{hostsOf(t, "1"), []int{1}, Policy{MapBy: "ppr:0:node"}, `map ranks: expected from 1 to 65536 ranks per node, found "ppr:0:node"`},
		{hostsOf(t, "1"), []int{1}, Policy{RankBy: "core"}, `number ranks: expected slot, node or fill, found "core"`},
		{hostsOf(t, "1"), []int{1}, Policy{Bind: "socket"}, `bind ranks: expected none, core or numa, found "socket"`},

		{hostsOf(t, "4"), []int{5}, Policy{Strict: true}, "5 ranks do not fit into the 4 slots of a"},
		{hostsOf(t, "4 1"), []int{5, 1}, Policy{Strict: true, MapBy: "node"}, "6 ranks do not fit into the 5 slots of 2 hosts"},
		{[]Machine{{Name: "a", Topology: two}, {Name: "b"}}, []int{4}, Policy{Strict: true}, "4 ranks do not fit into the 3 slots of 2 hosts"},

		{hostsOf(t, "2/3"), []int{4}, Policy{}, "4 ranks do not fit onto a, which takes at most 3"},
		{hostsOf(t, "2/3 9/4"), []int{8}, Policy{}, "8 ranks do not fit onto 2 hosts, which take at most: a 3, b 4"},
		{hostsOf(t, "2/3 9/4"), []int{8}, Policy{MapBy: "node"}, "8 ranks do not fit onto 2 hosts, which take at most: a 3, b 4"},
		{hostsOf(t, "1/1 1/1 1/1 1/1 1/1"), []int{8}, Policy{}, "8 ranks do not fit onto 5 hosts, which take at most: a 1, b 1, c 1, d 1, …"},
		{hostsOf(t, "2/3"), []int{4}, Policy{MapBy: "ppr:4:node"}, "ppr:4:node puts 4 ranks on a, which takes at most 3"},

		{hostsOf(t, "9"), []int{4}, Policy{MapBy: "ppr:2:node"}, "ppr:2:node puts 2 of 4 ranks on 1 host: 1 more host is needed"},
		{hostsOf(t, "9 9"), []int{9}, Policy{MapBy: "ppr:2:node"}, "ppr:2:node puts 4 of 9 ranks on 2 hosts: 3 more hosts are needed"},
		{[]Machine{{Name: "a", Topology: two}}, []int{3}, Policy{MapBy: "ppr:1:core"}, "ppr:1:core puts 2 of 3 ranks on the 2 cores of 1 host: 1 more core is needed"},
		{[]Machine{{Name: "a", Topology: two}}, []int{9}, Policy{MapBy: "ppr:2:numa"}, "ppr:2:numa puts 2 of 9 ranks on the 1 NUMA node of 1 host: 4 more NUMA nodes are needed"},
		{[]Machine{{Name: "a", Topology: two}, {Name: "b"}}, []int{3}, Policy{MapBy: "ppr:1:core"}, "ppr:1:core: the cores of b are not known"},
	} {
		r, err := Map(c.machines, c.np, c.p)
		require.EqualError(t, err, c.want)
		require.Nil(t, r)
	}
}

func TestParseMapBy(t *testing.T) {
	require.NoError(t, ParseMapBy("ppr:2:numa"))
	require.EqualError(t, ParseMapBy(""), `expected slot, node, core, numa or ppr:N:node|numa|core, found ""`)
}
