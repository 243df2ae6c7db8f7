//go:build linux

// Package slurm tests gorun on several hosts under Slurm. The hosts are made of Linux namespaces on this
// machine (a testbed), on which Slurm runs.
package slurm

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/test/cluster/run"
)

func TestMain(m *testing.M) { run.Main(m, "examples/heat2d") }

// cluster is four hosts with Slurm, in use by the test t.
type cluster struct {
	*testbed.Cluster
	t   testing.TB
	env []string // environment variables that Slurm's programs need
}

// slurm returns the hosts. At the end of the test it checks that jobs have left no process and no file.
func slurm(t *testing.T) *cluster {
	t.Helper()
	tb := testbed.Up(t, 4)
	c := &cluster{Cluster: tb, t: t, env: tb.Slurm(t)}
	run.NothingLeft(t, tb)
	t.Cleanup(c.noCopies)
	return c
}

// noCopies checks that no copy of gorun is left that srun has sent to a host.
func (c *cluster) noCopies() {
	text, err := os.ReadFile(run.Program("gorun"))
	require.NoError(c.t, err)
	run.Eventually(c.t, func() error {
		if left, _ := filepath.Glob(fmt.Sprintf("/tmp/weft-gorun-%x-*", sha256.Sum256(text))); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// sub returns the same hosts for the subtest t.
func (c *cluster) sub(t testing.TB) *cluster { return &cluster{c.Cluster, t, c.env} }

// name returns the name of host k, counted from 1.
func (c *cluster) name(k int) string { return c.Names()[k-1] }

// first returns arguments that make Slurm allocate the first n hosts. Without them Slurm would allocate
// other hosts if an earlier job has not wholly ended on the first ones.
func (c *cluster) first(n int) string { return "-w " + strings.Join(c.Names()[:n], ",") }

// salloc returns a run of salloc, which runs gorun in an allocation. args are the arguments of salloc, in one
// string, and gorun are the arguments of gorun.
func (c *cluster) salloc(args string, gorun ...string) run.Command {
	line := append([]string{"--quiet"}, strings.Fields(args)...)
	return run.Command{Exe: "salloc", Args: append(append(line, run.Program("gorun")), gorun...), Env: c.env}
}

// gorun returns a run of gorun outside of any allocation.
func (c *cluster) gorun(args ...string) run.Command { return run.Command{Args: args, Env: c.env} }

// waiting starts a job whose ranks sleep, two on each of the first n hosts, and waits until all of them run.
// args are further flags of gorun.
func (c *cluster) waiting(n int, args ...string) *run.Process {
	c.t.Helper()
	p := c.salloc(c.first(n)+" --ntasks-per-node=2 --no-kill", append(args, run.Rank(), "wait")...).Start(c.t)
	p.AwaitStdout(2*n, "up on")
	return p
}

// job returns the id of the job that runs on the first host. There must be exactly one.
func (c *cluster) job() string {
	c.t.Helper()
	return c.jobOn(1)
}

// jobOn returns the id of the job that runs on host k. There must be exactly one.
func (c *cluster) jobOn(k int) string {
	c.t.Helper()
	id := strings.TrimSpace(c.tool("squeue", "--noheader", "--states=RUNNING", "--nodelist="+c.name(k), "--format=%A"))
	require.Regexp(c.t, `^\d+$`, id)
	return id
}

// tool runs one of Slurm's programs and returns its output.
func (c *cluster) tool(name string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), c.env...)
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%s: %s", name, out)
	return string(out)
}

// where returns the number of ranks on each host, for example "1:2,3:1": two on the first host and one on
// the third. stdout has a line for each rank, which is or contains the name of the rank's host.
func (c *cluster) where(stdout string) string {
	var list []string
	for i, name := range c.Names() {
		if n := len(regexp.MustCompile(`(?m)(^| on )`+name+`( |$)`).FindAllString(stdout, -1)); n > 0 {
			list = append(list, fmt.Sprintf("%d:%d", i+1, n))
		}
	}
	return strings.Join(list, ",")
}

// only returns the id of the process of host k that matches. There must be exactly one.
func (c *cluster) only(k int, match func(testbed.Process) bool) int {
	c.t.Helper()
	list := c.Hosts()[k-1].Processes(match)
	require.Len(c.t, list, 1)
	return list[0].PID
}

func agent(p testbed.Process) bool {
	return slices.Contains(p.Args, "-agent") && !strings.HasSuffix(p.Exe, "/srun") && !run.Watchdog(p)
}

func isRank(p testbed.Process) bool { return p.Getenv("PMI_RANK") != "" }

// killAgent kills the agent of host k. Before that it kills the agent's watchdog, the process that ends the
// ranks if the agent dies: in a testbed it sees the processes of all hosts, so it would also end the
// ranks of other hosts.
func (c *cluster) killAgent(k int) {
	c.t.Helper()
	for _, pid := range []int{c.only(k, run.Watchdog), c.only(k, agent)} {
		require.NoError(c.t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// awaitGone waits until no rank, agent or watchdog runs on the hosts, and checks that this is less than 10 s
// after the time since.
func (c *cluster) awaitGone(since time.Time, hosts ...int) {
	c.t.Helper()
	run.Eventually(c.t, func() error {
		for _, k := range hosts {
			if left := c.Hosts()[k-1].Processes(func(p testbed.Process) bool { return isRank(p) || agent(p) || run.Watchdog(p) }); len(left) > 0 {
				return fmt.Errorf("%s: left: %v", c.name(k), left)
			}
		}
		return nil
	})
	require.Less(c.t, time.Since(since), 10*time.Second)
}
