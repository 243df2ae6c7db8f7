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

// TestTransports joins ranks of one host by memory and others by sockets, or all by
// sockets, at ports that follow on each other, or on an interface.
func TestTransports(t *testing.T) {
	b := hosts(t)
	for _, test := range []struct {
		args []string
		says []string
	}{
		{nil, []string{`joined by shm \(memory of this host\) to 1, tcp \(\S*\) to 4$`, "inserted symmetrically"}},
		{[]string{"-transport", "tcp"}, []string{`joined by tcp \(\S*\) to 5$`, "inserted symmetrically"}},
		{[]string{"-iface", "eth0"}, []string{`joined by shm \(memory of this host\) to 1, tcp \(` + regexp.QuoteMeta(b.Hosts()[0].Address()) + `:\d+\) to 4$`, "after an exchange"}},
		{[]string{"-iface", b.Hosts()[0].Address() + "/24", "-transport", "tcp"}, []string{`joined by tcp \(.*\) to 5$`}},
		{[]string{"-map-by", "node"}, []string{`joined by shm \(memory of this host\) to 1, tcp \(\S*\) to 4$`}},
		{[]string{"-radix", "1"}, []string{"2 hosts up after|3 hosts up after"}},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			t.Parallel()
			b := b.with(t)
			r := b.on("1:2,2:3,3:1", append(append([]string{"-v", "-np", "6"}, test.args...), run.Rank(), "work")...).Run(t)
			require.Zero(t, r.Code, r.Stderr)
			assert.Equal(t, 6, strings.Count(r.Stdout, "worked\n"), r.Stdout)
			for _, pattern := range test.says {
				assert.Regexp(t, "(?m)"+pattern, r.Stderr)
			}
		})
	}
	r := b.on("1,2", "-np", "2", "-map-by", "node", "-iface", "none0", run.Rank(), "work").Run(t)
	require.NotZero(t, r.Code)
	require.Contains(t, r.Stderr, "none0")
}

// TestPortsTaken has a host where the ports are taken that the ranks of others have.
func TestPortsTaken(t *testing.T) {
	b := hosts(t)
	stop := occupy(t, b, 2)
	defer stop()
	r := b.on("1:2,2:2,3:2", "-v", "-ports", fmt.Sprintf("%d-%d", lowPort, highPort), "-np", "6", run.Rank(), "work").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 6, strings.Count(r.Stdout, "worked\n"), r.Stdout)
	require.Contains(t, r.Stderr, "each rank listens on a port of its own, because planned ports are taken")
}

// The ports of which no two in a row are free.
const lowPort, highPort = 20000, 20999

// occupy listens on most of them on a host.
func occupy(t *testing.T, b *bed, host int) (stop func()) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	h := b.Hosts()[host-1]
	cmd := h.Command(context.Background(), self)
	cmd.Env = append(os.Environ(), occupyEnv+"="+h.Address())
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	ready, err := io.ReadAll(out) // closed when all is taken
	require.NoError(t, err)
	require.Equal(t, "taken\n", string(ready))
	return func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// occupyEnv makes the test binary a program that takes ports of the address it names
// until its stdin ends.
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

// TestBuilt builds a package of this module and copies it to the hosts.
func TestBuilt(t *testing.T) {
	b := hosts(t)
	r := b.on("1:1,2:1,3:1", "-np", "3", "../../examples/allreduce", "-n", "100").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Regexp(t, `^allreduce of 100 doubles over 3 ranks: correct`, r.Stdout)
}

// TestStaged copies what exists only here.
func TestStaged(t *testing.T) {
	b := hosts(t)
	prog := run.Copy(t, run.Rank(), filepath.Join(b.Private(), "only here"))
	data := filepath.Join(b.Private(), "data")
	text := strings.Repeat("0123456789abcdef\n", 100_000)
	require.NoError(t, os.WriteFile(data, []byte(text), 0o640))
	t.Cleanup(func() { _ = os.Remove(data) })
	other := filepath.Join(b.Private(), "other")
	require.NoError(t, os.WriteFile(other, []byte("other\n"), 0o600))
	t.Cleanup(func() { _ = os.Remove(other) })

	for _, radix := range []string{"64", "1"} {
		r := b.on("1:2,2:1,3:1", "-radix", radix, "-np", "4", "-stage", "-stage-files", data, "-stage-files", other, prog, "work").Run(t)
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, 4, strings.Count(r.Stdout, "worked\n"), r.Stdout)
	}
	// They stand in one place, also on the host that they come from.
	for _, from := range []*testbed.Host{nil, b.Hosts()[0]} {
		list := data + "," + other
		if from != nil {
			list = run.Rank() // which is the same on all hosts
		}
		c := b.on("1:1,4:1", "-np", "2", "-stage-files", list, "sh", "-c", `cd "$WEFT_STAGE_DIR" && ls -lL . && wc -c *`)
		c.Host = from
		r := c.Run(t)
		require.Zero(t, r.Code, r.Stderr)
		if from != nil {
			require.Equal(t, 2, strings.Count(r.Stdout, " rank\n")/2, r.Stdout)
			continue
		}
		require.Equal(t, 2, strings.Count(r.Stdout, fmt.Sprintf("%d data\n", len(text))), r.Stdout)
		require.Equal(t, 2, strings.Count(r.Stdout, " 6 other\n"), r.Stdout) // and not of a minute
		require.Equal(t, 2, strings.Count(r.Stdout, "-rw-r----- "), r.Stdout)
	}

	// Here on this host, too, where nothing need be copied.
	c := b.on("1:1,2:1", "-np", "2", "-stage", run.Rank(), "hello")
	c.Host = b.Hosts()[0]
	r := c.Run(t)
	require.Zero(t, r.Code, r.Stderr)

	r = b.on("1:1,2:1", "-np", "2", "-stage-files", data+"none", "true").Run(t)
	require.Equal(t, 2, r.Code)
	require.Contains(t, r.Stderr, data+"none")
	r = b.on("1:1,2:1", "-np", "2", "-stage-files", b.Private(), "true").Run(t)
	require.Equal(t, 2, r.Code)
	require.Contains(t, r.Stderr, b.Private())
}

// TestCopied has gorun come to the hosts, and found there: first copied, then in the
// cache, at its path here, in PATH.
func TestCopied(t *testing.T) {
	b := hosts(t)
	gorun := run.Copy(t, run.Program("gorun"), filepath.Join(b.Private(), "gorun"))
	start := func(args ...string) run.Result {
		t.Helper()
		c := b.on("1:1,2:1", append([]string{"-v", "-np", "2"}, args...)...)
		c.Exe = gorun
		r := c.Run(t)
		require.Zero(t, r.Code, r.Stderr)
		require.Len(t, strings.Split(strings.TrimSpace(r.Stdout), "\n"), 2)
		return r
	}
	for host := 1; host <= 2; host++ { // what other tests have left
		b.in(host, "find", "/root/.cache/weft", "-mindepth", "1", "-delete")
	}
	r := start(whereami...)
	require.Equal(t, 2, strings.Count(r.Stderr, ": sending gorun, "), r.Stderr)
	for range 2 {
		r = start(whereami...)
		require.NotContains(t, r.Stderr, "sending gorun")
	}
	files := strings.Fields(b.in(1, "ls", "-A", "/root/.cache/weft"))
	require.Len(t, files, 1)
	require.Regexp(t, "^gorun-[0-9a-f]{64}$", files[0])

	// Removed on a host, and cut short on another.
	b.in(1, "rm", "/root/.cache/weft/"+files[0])
	b.in(2, "truncate", "-s", "100000", "/root/.cache/weft/"+files[0])
	r = start(whereami...)
	require.Equal(t, 2, strings.Count(r.Stderr, ": sending gorun, "), r.Stderr)
	r = start(whereami...)
	require.NotContains(t, r.Stderr, "sending gorun")

	// Another program of that name at its path there is not taken for it.
	for host := 1; host <= 2; host++ {
		b.in(host, "sh", "-c", `printf '#!/bin/sh\necho other; cat\n' >"$0" && chmod +x "$0"`, gorun)
		defer b.in(host, "rm", "-f", gorun)
	}
	r = start(whereami...)
	require.NotContains(t, r.Stderr, "sending gorun")
}

// in runs a command in host k.
func (b *bed) in(k int, name string, args ...string) string {
	b.t.Helper()
	out, err := b.Hosts()[k-1].Command(context.Background(), name, args...).CombinedOutput()
	require.NoError(b.t, err, "%s: %s", name, out)
	return string(out)
}

// TestTree has agents connect with further hosts.
func TestTree(t *testing.T) {
	b := hosts(t)
	gorun := run.Copy(t, run.Program("gorun"), filepath.Join(b.Private(), "gorun"))
	for _, radix := range []string{"1", "2"} {
		c := b.on("1:2,2:2,3:2,4:2", "-radix", radix, "-np", "8", run.Rank(), "work")
		c.Exe = gorun // each host copies it to the next
		p := c.Start(t)
		r := p.Wait()
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, 8, strings.Count(r.Stdout, "worked\n"), r.Stdout)
		for _, h := range r.Report.Runs[0].Hosts {
			require.Equal(t, "up", h.State)
			require.Equal(t, h.Name, h.Hostname)
		}
	}
	p := b.on("1:1,2:1,3:1,4:1", "-radix", "1", "-np", "4", run.Rank(), "wait").Start(t)
	p.AwaitStdout(4, "up on")
	require.Len(t, b.Hosts()[0].Processes(isSSH), 1)
	require.Len(t, b.Hosts()[2].Processes(isSSH), 1)
	require.Empty(t, b.Hosts()[3].Processes(isSSH))
	p.Signal(2)
	require.Equal(t, 130, p.Wait().Code)
}
