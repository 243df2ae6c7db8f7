package launcher

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

// machine makes a /sys/devices/system of cores with two threads each, c and
// c+cores, shared out to nodes in order.
func machine(t *testing.T, cores, nodes int) string {
	t.Helper()
	sys := t.TempDir()
	write := func(text string, path ...string) {
		name := filepath.Join(append([]string{sys}, path...)...)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text+"\n"), 0o644))
	}
	for c := range 2 * cores {
		write(fmt.Sprintf("%d,%d", c%cores, c%cores+cores), "cpu", fmt.Sprintf("cpu%d", c), "topology", "thread_siblings_list")
	}
	for n := range nodes {
		lo, hi := n*cores/nodes, (n+1)*cores/nodes-1
		write(fmt.Sprintf("%d-%d,%d-%d", lo, hi, lo+cores, hi+cores), "node", fmt.Sprintf("node%d", n), "cpulist")
	}
	return sys
}

func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

func TestTopology(t *testing.T) {
	topo := readTopology(machine(t, 4, 2), upTo(8))
	require.Equal(t, [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}, topo.cores)
	require.Equal(t, [][]int{{0, 1, 4, 5}, {2, 3, 6, 7}}, topo.numa)

	some := readTopology(machine(t, 4, 2), []int{1, 2, 6}) // a cpuset
	require.Equal(t, [][]int{{1}, {2, 6}}, some.cores)
	require.Equal(t, [][]int{{1}, {2, 6}}, some.numa)

	none := readTopology("/nonexistent", upTo(2))
	require.Equal(t, [][]int{{0}, {1}}, none.cores)
	require.Equal(t, [][]int{{0, 1}}, none.numa)
}

func TestPlace(t *testing.T) {
	topo := readTopology(machine(t, 4, 2), upTo(8))
	for _, c := range []struct {
		bind job.Bind
		np   int
		want [][]int
	}{
		{job.BindNone, 2, [][]int{nil, nil}},
		{job.BindCore, 1, [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}},
		{job.BindCore, 2, [][]int{{0, 1, 4, 5}, {2, 3, 6, 7}}},
		{job.BindCore, 3, [][]int{{0, 4}, {1, 5}, {2, 3, 6, 7}}},
		{job.BindCore, 4, [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
		{job.BindCore, 8, [][]int{{0, 4}, {0, 4}, {1, 5}, {1, 5}, {2, 6}, {2, 6}, {3, 7}, {3, 7}}},
		{job.BindNUMA, 1, [][]int{{0, 1, 4, 5}}},
		{job.BindNUMA, 3, [][]int{{0, 1, 4, 5}, {0, 1, 4, 5}, {2, 3, 6, 7}}},
	} {
		for r, want := range c.want {
			require.Equal(t, want, topo.place(c.bind, r, c.np), "%s rank %d of %d", c.bind, r, c.np)
		}
	}
	require.Equal(t, 4, topo.maxprocs(nil, 2))
	require.Equal(t, 2, topo.maxprocs(nil, 8))
	require.Equal(t, 2, topo.maxprocs([]int{3}, 1))
	require.Equal(t, 4, topo.maxprocs([]int{0, 1, 2, 3}, 8))
}

func TestCPUList(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 8, 10, 11}, parseCPUList("0-2,8,10-11"))
	for _, text := range []string{"", "a", "3-1", "-1", "1-", "0-99999999999", "0,,1"} {
		require.Nil(t, parseCPUList(text), text)
	}
}

func TestBinding(t *testing.T) {
	cpus := allowedCPUs()
	if len(cpus) < 2 {
		t.Skip("one core")
	}
	topo := readTopology("/sys/devices/system", cpus)
	for _, bind := range []job.Bind{job.BindCore, job.BindNUMA, job.BindNone} {
		j := testJob(3, "place")
		j.Bind = bind
		res, out, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, stderr)
		lines := sortedLines(out)
		for r := range 3 {
			where := topo.place(bind, r, 3)
			got := strings.Fields(lines[r]) // rank cpus LIST procs N
			if where == nil {
				where = cpus
			}
			require.Equal(t, where, parseCPUList(got[2]), lines[r])
			require.Equal(t, fmt.Sprint(topo.maxprocs(topo.place(bind, r, 3), 3)), got[4])
		}
	}
	require.Equal(t, cpus, allowedCPUs(), "binding ranks binds only them")
}

func TestGOMAXPROCS(t *testing.T) {
	for _, c := range []struct {
		inherited, app string
		job            int
		want           string
	}{
		{"", "", 0, fmt.Sprint(max(2, len(allowedCPUs())))},
		{"1", "", 0, "1"},
		{"", "7", 0, "7"},
		{"1", "7", 0, "7"},
		{"1", "7", 5, "5"},
		{"", "", 1, "1"},
	} {
		t.Setenv("GOMAXPROCS", c.inherited)
		j := testJob(1, "place")
		j.GOMAXPROCS = c.job
		if c.app != "" {
			j.Apps[0].Env = []job.EnvVar{{Name: "GOMAXPROCS", Value: c.app}}
		}
		_, out, stderr := runJob(t, j)
		require.True(t, strings.HasSuffix(out, " procs "+c.want+"\n"), "%v: %s%s", c, out, stderr)
	}
}

func TestLayout(t *testing.T) {
	l, err := newLayout(16, false)
	require.NoError(t, err)
	require.GreaterOrEqual(t, l.base, firstPort)
	require.Less(t, l.base+15, ephemeralFloor())
	require.Len(t, l.fds, 16)
	var many []*layout
	for range 8 { // no two have a port in common
		m, err := newLayout(16, true)
		require.NoError(t, err)
		many = append(many, m)
	}
	for _, m := range many {
		m.close()
	}
	l.close()
	l.close()

	l, err = scatteredLayout(4, true)
	require.NoError(t, err)
	require.Zero(t, l.base)
	require.Len(t, l.addrs, 4)
	l.close()
}
