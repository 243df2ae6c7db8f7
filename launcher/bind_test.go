//go:build linux

package launcher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/job"
)

func TestBinding(t *testing.T) {
	cpus := place.Allowed()
	if len(cpus) < 2 {
		t.Skip("one core")
	}
	topo := place.Here()
	for _, bind := range []job.Bind{job.BindCore, job.BindNUMA, job.BindNone} {
		j := testJob(3, "place")
		j.Bind = bind
		res, out, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, stderr)
		lines := sortedLines(out)
		for r := range 3 {
			where := topo.Place(bind, r, 3)
			got := strings.Fields(lines[r]) // a line is: RANK cpus LIST procs N
			if where == nil {
				where = cpus
			}
			require.Equal(t, where, place.ParseCPUs(got[2]), lines[r])
			require.Equal(t, fmt.Sprint(topo.MaxProcs(topo.Place(bind, r, 3), 3)), got[4])
		}
	}
	require.Equal(t, cpus, place.Allowed(), "binding ranks binds only them")
}

func TestGOMAXPROCS(t *testing.T) {
	for _, c := range []struct {
		inherited, app string
		job            int
		want           string
	}{
		{"", "", 0, fmt.Sprint(max(2, len(place.Allowed())))},
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
