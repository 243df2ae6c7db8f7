package launcher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
	"github.com/weft-hpc/weft/launcher/place"
)

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
			require.Equal(t, where, place.ParseCPUs(got[2]), lines[r])
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
