//go:build linux

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

// whereami is a command that prints the rank and the name of its host.
var whereami = []string{"sh", "-c", "echo $PMI_RANK $(hostname)"}

// where returns the numbers of the ranks' hosts in the order of ranks, such as "1 1 2". stdout is the
// output of whereami.
func (c *cluster) where(stdout string) string {
	c.t.Helper()
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	at := make([]string, len(lines))
	for _, l := range lines {
		var rank int
		var host string
		_, err := fmt.Sscan(l, &rank, &host)
		require.NoError(c.t, err, stdout)
		require.Less(c.t, rank, len(at), stdout)
		require.Empty(c.t, at[rank], stdout)
		for i, name := range c.Names() {
			if name == host {
				at[rank] = fmt.Sprint(i + 1)
			}
		}
	}
	return strings.Join(at, " ")
}

// TestPlacement runs jobs with flags that place ranks, and checks on which host each rank runs.
func TestPlacement(t *testing.T) {
	c := hosts(t)
	rankfile := filepath.Join(t.TempDir(), "ranks")
	require.NoError(t, os.WriteFile(rankfile, []byte("rank 0="+c.name(3)+" slot=0\nrank 1=+n0\nrank 2="+c.name(4)+"\n"), 0o600))
	hostfile := filepath.Join(t.TempDir(), "hosts")
	require.NoError(t, os.WriteFile(hostfile, []byte(c.name(2)+" slots=2 user=root # the first\n"+c.name(4)+":1\n"+c.name(1)+"\n"), 0o600))
	for _, test := range []struct {
		hosts string
		args  []string
		where string
		says  string
	}{
		{"1:2,2:2,3:2,4:2", []string{"-np", "7"}, "1 1 2 2 3 3 4", ""},
		{"4:2,1:2", []string{"-np", "3"}, "4 4 1", ""},
		{"1:2,2:2,3:2,4:2", []string{"-np", "6", "-map-by", "node"}, "1 2 3 4 1 2", ""},
		{"1:3,2:2", []string{"-np", "5", "-rank-by", "node"}, "1 2 1 2 1", ""},
		{"1,2,3,4", []string{"-np", "8", "-map-by", "ppr:2:node"}, "1 1 2 2 3 3 4 4", ""},
		{"1,2,3,4", []string{"-rankfile", rankfile}, "3 1 4", ""},
		{"1,2,1", []string{"-np", "3"}, "1 1 2", ""}, // a host that is named twice has two slots
		{"1,2,3", []string{"-np", "3", "-ppn", "1"}, "1 2 3", ""},
		{"1:1,2:1", []string{"-np", "3"}, "1 2 1", "warning: 3 ranks share the 2 slots of 2 hosts"},
		{"", []string{"-np", "3", "-hostfile", hostfile}, "2 2 4", ""},
		{"4,2:1", []string{"-np", "2", "-hostfile", hostfile, "-map-by", "node"}, "4 2", ""},
		{"1:2,2:1", nil, "1 1 2", "note: no number of ranks is given: 3 ranks on 2 hosts; -n N sets another number\n"},
		{"", []string{"-hostfile", hostfile, "-map-by", "ppr:1:node"}, "2 4 1", "note: no number of ranks is given: 3 ranks on 3 hosts"},
		{"1", []string{"-np", "2"}, "1 1", ""}, // one host, but not this one
	} {
		t.Run(test.hosts+" "+strings.Join(test.args, " "), func(t *testing.T) {
			t.Parallel()
			c := c.sub(t)
			args := append([]string{"-ssh", c.SSH()}, test.args...)
			if test.hosts != "" {
				args = append(args, "-host", c.list(test.hosts))
			}
			r := run.Gorun(t, append(args, whereami...)...)
			require.Zero(t, r.Code, r.Stderr)
			assert.Equal(t, test.where, c.where(r.Stdout))
			if test.says == "" {
				assert.Empty(t, r.Stderr)
			}
			assert.Contains(t, r.Stderr, test.says)
			for _, rank := range r.Report.Runs[0].Ranks {
				at := strings.Fields(test.where)[rank.Rank]
				assert.Equal(t, "w"+at, "w"+rank.Host[len(rank.Host)-1:], "report of rank %d", rank.Rank)
			}
		})
	}
}

// TestNotBound runs a job with a rankfile that gives a slot (a core) for rank 0 only. Rank 1, on the same
// host, is not bound to cores.
func TestNotBound(t *testing.T) {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	var all string
	for line := range strings.Lines(string(status)) {
		if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
			all = strings.TrimSpace(list)
		}
	}
	c := hosts(t)
	rankfile := filepath.Join(t.TempDir(), "ranks")
	require.NoError(t, os.WriteFile(rankfile, fmt.Appendf(nil, "rank 0=%s slot=0\nrank 1=%[1]s\n", c.name(1)), 0o600))
	r := c.gorunOn("1", "-rankfile", rankfile, "sh", "-c", "echo $PMI_RANK $(grep ^Cpus_allowed_list: /proc/self/status)").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	list := make(map[string]string)
	for line := range strings.Lines(r.Stdout) {
		words := strings.Fields(line)
		require.Len(t, words, 3, r.Stdout)
		list[words[0]] = words[2]
	}
	require.Len(t, list, 2)
	require.Equal(t, all, list["1"])
	if list["0"] == all {
		t.Skip("this machine has one core")
	}
}

// TestNames runs jobs whose -host names hosts by addresses, with users, or with ranges in brackets. The
// ranks run on these hosts.
func TestNames(t *testing.T) {
	c := hosts(t)
	prefix := strings.TrimSuffix(c.name(1), "1")
	one, two := c.Hosts()[0].Address(), c.Hosts()[1].Address()
	for list, want := range map[string]string{
		"root@" + c.name(1) + ":1,root@" + c.name(2) + ":2": "1 2 2",
		one + ":2," + two:               "1 1 2",
		prefix + "[2-3]:1," + c.name(4): "2 3 4",
	} {
		t.Run(list, func(t *testing.T) {
			t.Parallel()
			c := c.sub(t)
			r := run.Gorun(t, append([]string{"-ssh", c.SSH(), "-host", list, "-np", "3"}, whereami...)...)
			require.Zero(t, r.Code, r.Stderr)
			require.Equal(t, want, c.where(r.Stdout))
		})
	}
}

// TestGorunInJob runs gorun on one of the hosts on which it starts ranks.
func TestGorunInJob(t *testing.T) {
	c := hosts(t)
	for list, want := range map[string]string{"1:1,2:2": "1 2 2", "2:2,1:1": "2 2 1"} {
		cmd := c.gorunOn(list, append([]string{"-np", "3"}, whereami...)...)
		cmd.Host = c.Hosts()[0]
		r := cmd.Run(t)
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, want, c.where(r.Stdout))
		cmd = c.gorunOn(list, "-np", "5", run.Rank(), "work")
		cmd.Host = c.Hosts()[0]
		r = cmd.Run(t)
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, 5, strings.Count(r.Stdout, "worked\n"), r.Stdout)
	}
	cmd := c.gorunOn("1:2", append([]string{"-np", "2"}, whereami...)...)
	cmd.Host = c.Hosts()[0]
	r := cmd.Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, "1 1", c.where(r.Stdout))
	require.Len(t, r.Report.Runs[0].Hosts, 1)
}

// TestDryRun runs gorun with -dry-run. gorun prints the placement of the ranks and starts no process.
func TestDryRun(t *testing.T) {
	c := hosts(t)
	r := c.gorunOn("1:2,2:2,3:1,4:1", "-np", "5", "-dry-run", "-map-by", "node", "hostname").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Contains(t, r.Stdout, "\nlauncher: ssh\n")
	prefix := strings.TrimSuffix(c.name(1), "1")
	for _, line := range []string{"0-1 +%s\\[1-2\\] +2 +1 +none", "2-3 +%s\\[3-4\\] +1 +1 +none", "4 +%s1 +2 +1 +none"} {
		require.Regexp(t, "(?m)^"+fmt.Sprintf(line, prefix)+"$", r.Stdout)
	}
	require.Nil(t, r.Report)
	require.Empty(t, c.Hosts()[0].Processes(nil))
}

// TestPrograms runs two programs in one job. Each has its own environment variables and working directory,
// and the ranks of both can communicate.
func TestPrograms(t *testing.T) {
	c := hosts(t)
	r := c.gorunOn("1:2,2:2,3:2", "-tag-output",
		"-np", "2", "-x", "A=1", "sh", "-c", "echo $A $(pwd) $(hostname)", ":",
		"-np", "3", "-x", "A=2", "-wdir", "/", "sh", "-c", "echo $A $(pwd) $(hostname)").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	here, err := os.Getwd()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	sort.Strings(lines)
	var want []string
	for i, h := range []int{1, 1, 2, 2, 3} {
		a, wdir := 1, here
		if i > 1 {
			a, wdir = 2, "/"
		}
		want = append(want, fmt.Sprintf("[%d@%s] %d %s %s", i, c.name(h), a, wdir, c.name(h)))
	}
	require.Equal(t, want, lines)

	// The ranks of two programs communicate.
	r = c.gorunOn("1:2,2:2", "-np", "2", run.Rank(), "work", ":", "-np", "2", run.Rank(), "work").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 4, strings.Count(r.Stdout, "worked\n"), r.Stdout)
}

// TestEnvironment checks which environment variables of gorun the ranks on other hosts get.
func TestEnvironment(t *testing.T) {
	c := hosts(t)
	cmd := c.gorunOn("1:1,2:1", "-np", "2", "-x", "SET=by flag", "-x", "GIVEN", "env")
	cmd.Env = []string{"GIVEN=from here", "PLAIN=from here too", "ODD=a\tb 'c' \"d\" $e \\ é", "HOME=/nowhere", "USER=nobody", "LOGNAME=nobody",
		"SHELL=/bin/none", "TERM=none", "SSH_AUTH_SOCK=/none", "DISPLAY=:9", "XDG_RUNTIME_DIR=/none", "PMI_RANK=77", "OMPI_COMM_WORLD_RANK=9", "WEFT_JOB_ID=none"}
	r := cmd.Run(t)
	require.Zero(t, r.Code, r.Stderr)
	lines := strings.Split(r.Stdout, "\n")
	count := func(kv string) (n int) {
		for _, l := range lines {
			if l == kv {
				n++
			}
		}
		return n
	}
	here, err := os.Getwd()
	require.NoError(t, err)
	for _, kv := range []string{"SET=by flag", "GIVEN=from here", "PLAIN=from here too", "ODD=a\tb 'c' \"d\" $e \\ é", "HOME=/root", "USER=root", "PWD=" + here, "PMI_SIZE=2"} {
		assert.Equal(t, 2, count(kv), "%s in:\n%s", kv, r.Stdout)
	}
	for _, kv := range []string{"PMI_RANK=0", "PMI_RANK=1"} {
		assert.Equal(t, 1, count(kv), kv)
	}
	for _, word := range []string{"/nowhere", "nobody", "/bin/none", "SSH_AUTH_SOCK", "DISPLAY", "/none", "OMPI_", "WEFT_JOB_ID=none", "TERM=none", "TMPDIR"} {
		assert.NotContains(t, r.Stdout, word)
	}

	// -x also sets variables that without -x have the value of the rank's host.
	r = c.gorunOn("2:1", "-np", "1", "-x", "HOME=/there", "-x", "TMPDIR=/tmp/there", "env").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Contains(t, r.Stdout, "HOME=/there\n")
	require.Contains(t, r.Stdout, "TMPDIR=/tmp/there\n")
}
