package place

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

// nodes returns n hosts with the names node001, node002 and so on. Each has as many slots as slots
// says, and the topology topo.
func nodes(n, slots int, topo Topology) []Machine {
	machines := make([]Machine, n)
	for i := range machines {
		machines[i] = Machine{Name: fmt.Sprintf("node%03d", i+1), Slots: slots, Topology: topo}
	}
	return machines
}

func TestRender(t *testing.T) {
	two, four := twoSockets.read(t), fourNodes.read(t)
	mixed := append(nodes(3, 8, two), Machine{Name: "gpu1", Slots: 4, MaxSlots: 6, Topology: four}, Machine{Name: "gpu2", Slots: 4, MaxSlots: 6, Topology: four})
	for _, c := range []struct {
		name     string
		machines []Machine
		appNP    []int
		p        Policy
		want     string
	}{
		{"one host", []Machine{{Name: "localhost", Slots: 2}}, []int{2}, Policy{}, `
RANKS  HOST       SLOTS  PER HOST  BINDING
0-1    localhost  2      2         none
`},
		{"one rank", []Machine{{Name: "localhost", Topology: twoCores.read(t)}}, []int{1}, Policy{Bind: job.BindCore}, `
RANKS  HOST       SLOTS  PER HOST  BINDING
0      localhost  2      1         cpus 0-1
`},
		{"slot", nodes(4, 8, two), []int{20}, Policy{Bind: job.BindCore}, `
RANKS  HOST           SLOTS  PER HOST  BINDING
0-15   node[001-002]  8      8         cpus 0,8 | 1,9 | … | 7,15
16-19  node003        8      4         cpus 0-1,8-9 | 2-3,10-11 | 4-5,12-13 | 6-7,14-15
-      node004        8      0         -
`},
		{"node", nodes(4, 8, two), []int{20}, Policy{MapBy: "node", Bind: job.BindNUMA}, `
RANKS  HOST           SLOTS  PER HOST        BINDING
0-19   node[001-004]  8      5, 1 at a time  cpus 0-1,8-9 | 0-1,8-9 | … | 6-7,14-15
`},
		{"node, odd", nodes(4, 8, two), []int{10}, Policy{MapBy: "node"}, `
RANKS  HOST           SLOTS  PER HOST        BINDING
0-7    node[001-004]  8      2, 1 at a time  none
8-9    node[001-002]  8      1               none
`},
		{"too few slots", nodes(2, 2, two), []int{6}, Policy{}, `
RANKS  HOST           SLOTS  PER HOST  BINDING
0-3    node[001-002]  2      2         none
4-5    node[001-002]  2      1         none
`},
		{"different hosts", mixed, []int{30}, Policy{Bind: job.BindNUMA}, `
RANKS  HOST           SLOTS         PER HOST  BINDING
0-23   node[001-003]  8             8         cpus 0-1,8-9 | 0-1,8-9 | … | 6-7,14-15
24-27  gpu1           4, at most 6  4         cpus 0-3,16-19 | 4-7,20-23 | 8-11,24-27 | 12-15,28-31
28-29  gpu2           4, at most 6  2         cpus 0-3,16-19 | 8-11,24-27
`},
		{"apps", nodes(3, 4, two), []int{5, 0, 6}, Policy{}, `
RANKS  APP  HOST           SLOTS  PER HOST  BINDING
0-3    0    node001        4      4         none
4      0    node002        4      1         none
5-10   2    node[002-003]  4      3         none
`},
		{"thousands", nodes(500, 128, two), []int{40000}, Policy{Bind: job.BindCore}, `
RANKS        HOST           SLOTS  PER HOST  BINDING
0-39935      node[001-312]  128    128       cpus 0,8 | 0,8 | … | 7,15
39936-39999  node313        128    64        cpus 0,8 | 0,8 | … | 7,15
-            node[314-500]  128    0         -
`},
		{"thousands by node", nodes(500, 128, two), []int{40000}, Policy{MapBy: "node", Bind: job.BindCore}, `
RANKS    HOST           SLOTS  PER HOST         BINDING
0-39999  node[001-500]  128    80, 1 at a time  cpus 0,8 | 0,8 | … | 7,15
`},
		{"thousands too many", nodes(500, 64, two), []int{64000}, Policy{}, `
RANKS    HOST           SLOTS  PER HOST           BINDING
0-63999  node[001-500]  64     128, 64 at a time  none
`},
		{"thousands of apps", nodes(500, 128, two), []int{30000, 30000}, Policy{RankBy: "node"}, `
RANKS        APP  HOST           SLOTS  PER HOST         BINDING
0-11279      0    node[001-235]  128    48, 1 at a time  none
11280-29999  0    node[001-234]  128    80, 1 at a time  none
30000-48799  1    node[235-469]  128    80, 1 at a time  none
48800-52543  1    node[236-469]  128    16, 1 at a time  none
52544-59999  1    node[236-468]  128    32, 1 at a time  none
-            -    node[470-500]  128    0                -
`},
	} {
		r, err := Map(c.machines, c.appNP, c.p)
		require.NoError(t, err, c.name)
		var b strings.Builder
		require.NoError(t, Render(&b, c.machines, r))
		require.Equal(t, strings.TrimPrefix(c.want, "\n"), b.String(), c.name)
	}
}

var errPipe = errors.New("nobody reads")

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errPipe }

func TestRenderErrors(t *testing.T) {
	machines := nodes(1, 1, Topology{})
	require.ErrorIs(t, Render(brokenPipe{}, machines, &Result{Ranks: make([]Rank, 1)}), errPipe)
	for _, h := range []int{-1, 1} {
		err := Render(brokenPipe{}, machines, &Result{Ranks: []Rank{{}, {Host: h}}})
		require.EqualError(t, err, fmt.Sprintf("rank 1 is on host %d of 1", h))
	}
	var b strings.Builder
	require.NoError(t, Render(&b, []Machine{{Name: "a\tb\nc"}}, &Result{Ranks: make([]Rank, 1)}))
	require.Equal(t, 2, strings.Count(b.String(), "\n"))
	require.Contains(t, b.String(), `a\tb\nc`)
}

// checkTable reads text, a table that Render has printed for r. It fails the test unless each rank
// is in exactly one line, and each host has as many ranks as the lines say. If the table leaves out
// ranks by an ellipsis, a rank may be in no line. The names of the hosts are the letters from a on.
func checkTable(t testing.TB, text string, machines []Machine, r *Result) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	column := func(line, name string) string {
		runes, at := []rune(line), strings.Index(lines[0], name)
		require.GreaterOrEqual(t, at, 0)
		cell, _, _ := strings.Cut(string(runes[at:]), "  ")
		return cell
	}
	seen := make([]int, len(r.Ranks))
	counts := make([]int, len(machines))
	for _, line := range lines[1:] {
		digits, _, _ := strings.Cut(column(line, "PER HOST"), ",")
		n, ok := number(digits, job.MaxRanks)
		require.True(t, ok, line)
		for host := range strings.SplitSeq(column(line, "HOST"), ",") {
			counts[host[0]-'a'] += n
		}
		if column(line, "RANKS") == "-" {
			require.Zero(t, n)
			continue
		}
		for part := range strings.SplitSeq(column(line, "RANKS"), ",") {
			span, step, _ := strings.Cut(part, ":")
			lo, hi, isSpan := strings.Cut(span, "-")
			if lo == "…" {
				continue
			}
			a, err := strconv.Atoi(lo)
			require.NoError(t, err)
			b := a
			if isSpan {
				b, err = strconv.Atoi(hi)
				require.NoError(t, err)
			}
			by, _ := strconv.Atoi("0" + step)
			for i := a; i <= b; i += max(by, 1) {
				seen[i]++
			}
		}
	}
	for _, rk := range r.Ranks {
		counts[rk.Host]--
	}
	require.Equal(t, make([]int, len(machines)), counts, text)
	for rank, n := range seen {
		require.True(t, n == 1 || n == 0 && strings.Contains(text, "…,"), "rank %d of\n%s", rank, text)
	}
}
