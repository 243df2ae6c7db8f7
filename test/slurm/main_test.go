//go:build linux

// Package slurm has gorun run jobs on several hosts under Slurm.
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

func TestMain(m *testing.M) { run.Main(m) }

// bed is four hosts with Slurm.
type bed struct {
	*testbed.Cluster
	t   testing.TB
	env []string // of Slurm's programs
}

// slurm has a test look at the end for what is left.
func slurm(t *testing.T) *bed {
	t.Helper()
	c := testbed.Up(t, 4)
	b := &bed{Cluster: c, t: t, env: c.Slurm(t)}
	run.NothingLeft(t, c)
	t.Cleanup(b.noCopies)
	return b
}

// noCopies looks for those that srun makes of gorun, with which agents end.
func (b *bed) noCopies() {
	text, err := os.ReadFile(run.Program("gorun"))
	require.NoError(b.t, err)
	run.Eventually(b.t, func() error {
		if left, _ := filepath.Glob(fmt.Sprintf("/tmp/weft-gorun-%x-*", sha256.Sum256(text))); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
}

// as is the bed of a subtest.
func (b *bed) as(t testing.TB) *bed { return &bed{b.Cluster, t, b.env} }

// name is that of host k, from 1 on.
func (b *bed) name(k int) string { return b.Names()[k-1] }

// first asks Slurm for the first n hosts: by itself it takes others as long as a job ends
// there.
func (b *bed) first(n int) string { return "-w " + strings.Join(b.Names()[:n], ",") }

// salloc is a gorun in an allocation. Arguments of salloc stand in one string.
func (b *bed) salloc(args string, gorun ...string) run.Command {
	line := append([]string{"--quiet"}, strings.Fields(args)...)
	return run.Command{Exe: "salloc", Args: append(append(line, run.Program("gorun")), gorun...), Env: b.env}
}

// gorun is one outside of any allocation.
func (b *bed) gorun(args ...string) run.Command { return run.Command{Args: args, Env: b.env} }

// waiting is a job that runs for ever, two ranks on each of the first n hosts.
func (b *bed) waiting(n int, args ...string) *run.Process {
	b.t.Helper()
	p := b.salloc(b.first(n)+" --ntasks-per-node=2 --no-kill", append(args, run.Rank(), "wait")...).Start(b.t)
	p.AwaitStdout(2*n, "up on")
	return p
}

// job is the number of the job that runs on the first host, the only one.
func (b *bed) job() string {
	b.t.Helper()
	return b.jobOn(1)
}

func (b *bed) jobOn(k int) string {
	b.t.Helper()
	id := strings.TrimSpace(b.tool("squeue", "--noheader", "--states=RUNNING", "--nodelist="+b.name(k), "--format=%A"))
	require.Regexp(b.t, `^\d+$`, id)
	return id
}

// tool runs one of Slurm's programs.
func (b *bed) tool(name string, args ...string) string {
	b.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), b.env...)
	out, err := cmd.CombinedOutput()
	require.NoError(b.t, err, "%s: %s", name, out)
	return string(out)
}

// where counts what hosts the ranks were on, of lines that end with a host's name, as
// "1:2,3:1".
func (b *bed) where(stdout string) string {
	var list []string
	for i, name := range b.Names() {
		if n := len(regexp.MustCompile(`(?m)(^| on )`+name+`( |$)`).FindAllString(stdout, -1)); n > 0 {
			list = append(list, fmt.Sprintf("%d:%d", i+1, n))
		}
	}
	return strings.Join(list, ",")
}

// only is the one process of host k that matches.
func (b *bed) only(k int, match func(testbed.Process) bool) int {
	b.t.Helper()
	list := b.Hosts()[k-1].Processes(match)
	require.Len(b.t, list, 1)
	return list[0].PID
}

func agent(p testbed.Process) bool {
	return slices.Contains(p.Args, "-agent") && !strings.HasSuffix(p.Exe, "/srun") && p.Args[0] != "gorun-watchdog"
}

func watchdog(p testbed.Process) bool { return len(p.Args) == 1 && p.Args[0] == "gorun-watchdog" }

func isRank(p testbed.Process) bool { return p.Getenv("PMI_RANK") != "" }

// killAgent kills an agent, and before it its watchdog, which sees the processes of all
// hosts here.
func (b *bed) killAgent(k int) {
	b.t.Helper()
	for _, pid := range []int{b.only(k, watchdog), b.only(k, agent)} {
		require.NoError(b.t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// gone waits until hosts have no ranks and agents.
func (b *bed) gone(since time.Time, hosts ...int) {
	b.t.Helper()
	run.Eventually(b.t, func() error {
		for _, k := range hosts {
			if left := b.Hosts()[k-1].Processes(func(p testbed.Process) bool { return isRank(p) || agent(p) || watchdog(p) }); len(left) > 0 {
				return fmt.Errorf("%s: left: %v", b.name(k), left)
			}
		}
		return nil
	})
	require.Less(b.t, time.Since(since), 10*time.Second)
}

// told checks that gorun has said one line, besides what came before a failure.
func told(t *testing.T, r run.Result, code int, pattern string) {
	t.Helper()
	require.Equal(t, code, r.Code, r.Stderr)
	var said []string
	for line := range strings.Lines(r.Stderr) {
		if strings.HasPrefix(line, "gorun: ") {
			said = append(said, line)
		}
	}
	require.Len(t, said, 1, r.Stderr)
	require.Regexp(t, "^gorun: "+pattern+"\n$", said[0])
	if r.Report != nil {
		require.Equal(t, code, r.Report.ExitCode)
	}
}
