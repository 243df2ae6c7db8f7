//go:build linux

package cluster

import (
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/test/cluster/run"
)

// spawner is the program whose rank 0 spawns processes.
func spawner() string { return run.Program("spawner") }

// TestSpawn spawns ranks on several hosts. They must run on the free slots of the hosts, and
// communicate in a world of their own.
func TestSpawn(t *testing.T) {
	c := hosts(t)
	for _, args := range [][]string{nil, {"-radix", "1"}, {"-transport", "tcp"}, {"-iface", "eth0"}} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			t.Parallel()
			c := c.sub(t)
			r := c.gorunOn("1:2,2:2,3:3", append(append([]string{"-np", "3", "-tag-output"}, args...), spawner(), "finalize", "4", "", run.Rank(), "hello")...).Run(t)
			require.Zero(t, r.Code, r.Stderr)
			require.Regexp(t, `(?m)^\[0@\S+\] universe 7 codes \[0 0 0 0\] error <nil>$`, r.Stdout)
			for rank, host := range []int{2, 3, 3, 3} {
				name := c.name(host)
				require.Regexp(t, `(?m)^\[1\.`+string(rune('0'+rank))+`@`+name+`\] rank `+string(rune('0'+rank))+` of 4 on `+name+` epoch 0 sum 6$`, r.Stdout)
			}
			require.Len(t, r.Report.Runs[0].Ranks, 7)
		})
	}
	// Ranks on one host of several, and more of them than it has slots.
	r := c.gorunOn("1:1,2:1,3:1", "-np", "1", spawner(), "finalize", "2", c.name(3), run.Rank(), "work").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 2, strings.Count(r.Stdout, "worked\n"), r.Stdout)
	run.RequireLines(t, r, 0, "warning: 2 ranks that ranks have spawned share 1 free slot with others: they take turns")
}

// TestSpawnErrors: a Spawn that fails on another host must return an error, and the job must go on.
func TestSpawnErrors(t *testing.T) {
	c := hosts(t)
	for _, test := range []struct {
		host, program string
		says          string
	}{
		{c.name(2), "/no/such/program", c.name(2) + `: /no/such/program: no such file`},
		{"nowhere", run.Rank(), "host nowhere is not a host of the job"},
		{c.name(4), run.Rank(), "host " + c.name(4) + " is not a host of the job"},
		{"", filepath.Dir(run.Rank()), `not a regular file`},
	} {
		r := c.gorunOn("1:2,2:2", "-np", "2", spawner(), "finalize", "2", test.host, test.program, "hello").Run(t)
		require.Zero(t, r.Code, r.Stderr)
		assert.Regexp(t, `universe 4 codes \[\] error spawn: .*`+test.says, r.Stdout)
		assert.Regexp(t, `gorun: rank 0 cannot spawn: .*`+test.says, r.Stderr)
	}
}

// TestSpawnStaged spawns the program of the job itself, which gorun has copied to the hosts.
func TestSpawnStaged(t *testing.T) {
	c := hosts(t)
	prog := run.Copy(t, run.Rank(), filepath.Join(c.Private(), "only here"))
	parent := run.Copy(t, spawner(), filepath.Join(c.Private(), "parent"))
	for _, radix := range []string{"64", "1"} {
		r := c.gorunOn("1:1,2:1,3:1", "-radix", radix, "-np", "1", "-stage", parent, "finalize", "2", "", prog, "work").Run(t)
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, 2, strings.Count(r.Stdout, "worked\n"), r.Stdout+r.Stderr)
	}
}

// TestSpawnedFails: the failure of a spawned rank on another host fails the job, and all ranks end.
func TestSpawnedFails(t *testing.T) {
	c := hosts(t)
	for _, radix := range []string{"64", "1"} {
		r := c.gorunOn("1:2,2:2,3:2", "-radix", radix, "-np", "2", spawner(), "wait", "4", "", run.Rank(), "kill", "2").Run(t)
		require.Equal(t, 137, r.Code, r.Stderr)
		require.Regexp(t, `gorun: rank 1\.2 was killed by signal 9 \(SIGKILL\): `+regexp.QuoteMeta(run.Rank())+`, pid \d+ on `+c.name(3)+`; the other 5 ranks were ended\n`, r.Stderr)
	}
}

// TestSpawnerDies kills the rank that has spawned others, then an agent whose host runs only spawned
// ranks, then gorun. Nothing may remain.
func TestSpawnerDies(t *testing.T) {
	c := hosts(t)
	for name, find := range map[string]func(p *run.Process) int{
		"rank": func(*run.Process) int {
			return c.only(1, func(p testbed.Process) bool { return filepath.Base(p.Exe) == "spawner" })
		},
		"agent": func(*run.Process) int { return c.only(3, agent) },
	} {
		p := c.gorunOn("1:1,2:1,3:1", "-np", "1", "-grace", "1s", spawner(), "wait", "2", "", run.Rank(), "wait").Start(t)
		p.AwaitStdout(2, `up on`)
		pid := find(p)
		if name == "agent" {
			run.KillWatchdog(t, pid)
		}
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		r := p.Wait()
		require.NotZero(t, r.Code, name)
		want := `gorun: rank 0 was killed by signal 9`
		if name == "agent" {
			want = "gorun: " + c.name(3) + ": "
		}
		require.Contains(t, r.Stderr, want, name)
	}
}
