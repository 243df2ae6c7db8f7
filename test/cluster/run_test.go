//go:build linux

package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/test/cluster/run"
)

// TestTransports runs jobs on three hosts and checks which transports connect rank 0 with the others: by
// default shared memory within a host and tcp between hosts; with -transport tcp only tcp; with -iface
// on the addresses of that interface.
func TestTransports(t *testing.T) {
	c := hosts(t)
	for _, test := range []struct {
		args []string
		says []string
	}{
		{nil, []string{`joined by shm \(memory of this host\) to 1, tcp \(\S*\) to 4$`, "inserted symmetrically"}},
		{[]string{"-transport", "tcp"}, []string{`joined by tcp \(\S*\) to 5$`, "inserted symmetrically"}},
		{[]string{"-iface", "eth0"}, []string{`joined by shm \(memory of this host\) to 1, tcp \(` + regexp.QuoteMeta(c.Hosts()[0].Address()) + `:\d+\) to 4$`, "after an exchange"}},
		{[]string{"-iface", c.Hosts()[0].Address() + "/24", "-transport", "tcp"}, []string{`joined by tcp \(.*\) to 5$`}},
		{[]string{"-map-by", "node"}, []string{`joined by shm \(memory of this host\) to 1, tcp \(\S*\) to 4$`}},
		{[]string{"-radix", "1"}, []string{"2 hosts up after|3 hosts up after"}},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			t.Parallel()
			c := c.sub(t)
			r := c.gorunOn("1:2,2:3,3:1", append(append([]string{"-v", "-np", "6"}, test.args...), run.Rank(), "work")...).Run(t)
			require.Zero(t, r.Code, r.Stderr)
			assert.Equal(t, 6, strings.Count(r.Stdout, "worked\n"), r.Stdout)
			for _, pattern := range test.says {
				assert.Regexp(t, "(?m)"+pattern, r.Stderr)
			}
		})
	}
	r := c.gorunOn("1,2", "-np", "2", "-map-by", "node", "-iface", "none0", run.Rank(), "work").Run(t)
	require.NotZero(t, r.Code)
	require.Contains(t, r.Stderr, "none0")
}

// TestPortsTaken runs a job with -ports. On one host another process uses most of these ports. The ranks
// get other ports, and the job succeeds.
func TestPortsTaken(t *testing.T) {
	c := hosts(t)
	stop := occupy(t, c, 2)
	defer stop()
	r := c.gorunOn("1:2,2:2,3:2", "-v", "-ports", fmt.Sprintf("%d-%d", lowPort, highPort), "-np", "6", run.Rank(), "work").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 6, strings.Count(r.Stdout, "worked\n"), r.Stdout)
	require.Contains(t, r.Stderr, "each rank listens on a port of its own, because planned ports are taken")
}

// occupy listens on the ports from lowPort to highPort that are no multiples of 16.
const lowPort, highPort = 20000, 20999

// occupy starts a process that listens on most ports from lowPort to highPort on a host. stop ends the
// process.
func occupy(t *testing.T, c *cluster, host int) (stop func()) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	h := c.Hosts()[host-1]
	cmd := h.Command(context.Background(), self)
	cmd.Env = append(os.Environ(), occupyEnv+"="+h.Address())
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	// ReadAll returns when the process has closed its stdout, because it listens on the ports.
	ready, err := io.ReadAll(out)
	require.NoError(t, err)
	require.Equal(t, "taken\n", string(ready))
	return func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// occupyEnv is an environment variable. If it is set, this test binary runs no tests: it listens on the
// ports of occupy, on the address that is the variable's value, until its stdin ends.
const occupyEnv = "CLUSTER_TEST_OCCUPY"

func init() {
	addr := os.Getenv(occupyEnv)
	if addr == "" {
		return
	}
	var taken []net.Listener
	for port := lowPort; port <= highPort; port++ {
		if port%16 == 0 {
			continue
		}
		l, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", addr, port))
		if err == nil {
			taken = append(taken, l)
		}
	}
	fmt.Println("taken")
	_ = os.Stdout.Close()
	_, _ = io.Copy(io.Discard, os.Stdin)
	for _, l := range taken {
		_ = l.Close()
	}
	os.Exit(0)
}

// TestBuilt names a package of this module as the program. gorun builds it and copies the program to the
// hosts, and the job succeeds.
func TestBuilt(t *testing.T) {
	c := hosts(t)
	r := c.gorunOn("1:1,2:1,3:1", "-np", "3", "../../examples/allreduce", "-n", "100").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Regexp(t, `^allreduce of 100 doubles over 3 ranks: correct`, r.Stdout)
}

// TestStaged runs jobs with -stage and -stage-files, whose program and files exist only on this machine.
// gorun copies them to the hosts, where all are in one directory (WEFT_STAGE_DIR).
func TestStaged(t *testing.T) {
	c := hosts(t)
	prog := run.Copy(t, run.Rank(), filepath.Join(c.Private(), "only here"))
	data := filepath.Join(c.Private(), "data")
	text := strings.Repeat("0123456789abcdef\n", 100_000)
	require.NoError(t, os.WriteFile(data, []byte(text), 0o640))
	t.Cleanup(func() { _ = os.Remove(data) })
	other := filepath.Join(c.Private(), "other")
	require.NoError(t, os.WriteFile(other, []byte("other\n"), 0o600))
	t.Cleanup(func() { _ = os.Remove(other) })

	for _, radix := range []string{"64", "1"} {
		r := c.gorunOn("1:2,2:1,3:1", "-radix", radix, "-np", "4", "-stage", "-stage-files", data, "-stage-files", other, prog, "work").Run(t)
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, 4, strings.Count(r.Stdout, "worked\n"), r.Stdout)
	}
	// The files are in one directory on each host, also if gorun itself runs on one of the hosts.
	for _, from := range []*testbed.Host{nil, c.Hosts()[0]} {
		list := data + "," + other
		if from != nil {
			list = run.Rank() // a file that all hosts see
		}
		cmd := c.gorunOn("1:1,4:1", "-np", "2", "-stage-files", list, "sh", "-c", `cd "$WEFT_STAGE_DIR" && ls -lL . && wc -c *`)
		cmd.Host = from
		r := cmd.Run(t)
		require.Zero(t, r.Code, r.Stderr)
		if from != nil {
			require.Equal(t, 2, strings.Count(r.Stdout, " rank\n")/2, r.Stdout)
			continue
		}
		require.Equal(t, 2, strings.Count(r.Stdout, fmt.Sprintf("%d data\n", len(text))), r.Stdout)
		// The text is from wc. A time such as "6" in the output of ls is not followed by "other".
		require.Equal(t, 2, strings.Count(r.Stdout, " 6 other\n"), r.Stdout)
		require.Equal(t, 2, strings.Count(r.Stdout, "-rw-r----- "), r.Stdout)
	}

	// gorun runs on one of the hosts, which needs no copy.
	cmd := c.gorunOn("1:1,2:1", "-np", "2", "-stage", run.Rank(), "hello")
	cmd.Host = c.Hosts()[0]
	r := cmd.Run(t)
	require.Zero(t, r.Code, r.Stderr)

	r = c.gorunOn("1:1,2:1", "-np", "2", "-stage-files", data+"none", "true").Run(t)
	require.Equal(t, 2, r.Code)
	require.Contains(t, r.Stderr, data+"none")
	r = c.gorunOn("1:1,2:1", "-np", "2", "-stage-files", c.Private(), "true").Run(t)
	require.Equal(t, 2, r.Code)
	require.Contains(t, r.Stderr, c.Private())
}

// TestCopied runs gorun with hosts that do not have it. gorun copies itself to a cache on each host, and
// later runs use the copy, unless the copy is missing or not whole.
func TestCopied(t *testing.T) {
	c := hosts(t)
	gorun := run.Copy(t, run.Program("gorun"), filepath.Join(c.Private(), "gorun"))
	start := func(args ...string) run.Result {
		t.Helper()
		cmd := c.gorunOn("1:1,2:1", append([]string{"-v", "-np", "2"}, args...)...)
		cmd.Exe = gorun
		r := cmd.Run(t)
		require.Zero(t, r.Code, r.Stderr)
		require.Len(t, strings.Split(strings.TrimSpace(r.Stdout), "\n"), 2)
		return r
	}
	for host := 1; host <= 2; host++ { // remove the copies that other tests have made
		c.runIn(host, "find", "/root/.cache/weft", "-mindepth", "1", "-delete")
	}
	r := start(whereami...)
	require.Equal(t, 2, strings.Count(r.Stderr, ": sending gorun, "), r.Stderr)
	for range 2 {
		r = start(whereami...)
		require.NotContains(t, r.Stderr, "sending gorun")
	}
	files := strings.Fields(c.runIn(1, "ls", "-A", "/root/.cache/weft"))
	require.Len(t, files, 1)
	require.Regexp(t, "^gorun-[0-9a-f]{64}$", files[0])

	// The copy is missing on one host, and truncated on another.
	c.runIn(1, "rm", "/root/.cache/weft/"+files[0])
	c.runIn(2, "truncate", "-s", "100000", "/root/.cache/weft/"+files[0])
	r = start(whereami...)
	require.Equal(t, 2, strings.Count(r.Stderr, ": sending gorun, "), r.Stderr)
	r = start(whereami...)
	require.NotContains(t, r.Stderr, "sending gorun")

	// The hosts have another program at the path that gorun has on this machine. gorun does not use
	// that program as the agent.
	for host := 1; host <= 2; host++ {
		c.runIn(host, "sh", "-c", `printf '#!/bin/sh\necho other; cat\n' >"$0" && chmod +x "$0"`, gorun)
		defer c.runIn(host, "rm", "-f", gorun)
	}
	r = start(whereami...)
	require.NotContains(t, r.Stderr, "sending gorun")
}

// runIn runs a command on host k and returns its output. The command must succeed.
func (c *cluster) runIn(k int, name string, args ...string) string {
	c.t.Helper()
	out, err := c.Hosts()[k-1].Command(context.Background(), name, args...).CombinedOutput()
	require.NoError(c.t, err, "%s: %s", name, out)
	return string(out)
}

// TestTree runs jobs with a small -radix, so that agents start the agents of further hosts by ssh. All
// ranks run, and each host has as many ssh processes as it has hosts directly below it in the tree.
func TestTree(t *testing.T) {
	c := hosts(t)
	gorun := run.Copy(t, run.Program("gorun"), filepath.Join(c.Private(), "gorun"))
	for _, radix := range []string{"1", "2"} {
		cmd := c.gorunOn("1:2,2:2,3:2,4:2", "-radix", radix, "-np", "8", run.Rank(), "work")
		cmd.Exe = gorun // the hosts do not have this file, so each agent copies gorun to the hosts below it
		p := cmd.Start(t)
		r := p.Wait()
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, 8, strings.Count(r.Stdout, "worked\n"), r.Stdout)
		for _, h := range r.Report.Runs[0].Hosts {
			require.Equal(t, "up", h.State)
			require.Equal(t, h.Name, h.Hostname)
		}
	}
	p := c.gorunOn("1:1,2:1,3:1,4:1", "-radix", "1", "-np", "4", run.Rank(), "wait").Start(t)
	p.AwaitStdout(4, "up on")
	require.Len(t, c.Hosts()[0].Processes(isSSH), 1)
	require.Len(t, c.Hosts()[2].Processes(isSSH), 1)
	require.Empty(t, c.Hosts()[3].Processes(isSSH))
	p.Signal(2)
	require.Equal(t, 130, p.Wait().Code)
}
