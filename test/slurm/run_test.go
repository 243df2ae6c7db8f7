//go:build linux

package slurm

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

// TestWork runs a job on all hosts whose ranks check collectives and messages. It also checks gorun's
// report.
func TestWork(t *testing.T) {
	c := slurm(t)
	r := c.salloc("-N4 --ntasks-per-node=2", "-v", run.Rank(), "work").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, regexp.MustCompile(`(?m)^rank [0-7] worked$`).FindAllString(r.Stdout, -1), 8, r.Stdout)
	require.Contains(t, r.Stderr, "weft: ranks: 8, hosts: 4, started by gorun")
	require.Len(t, r.Report.Runs, 1)
	for i, h := range r.Report.Runs[0].Hosts {
		require.Equal(t, c.name(i+1), h.Name)
		require.Equal(t, c.name(i+1), h.Hostname)
		require.Equal(t, c.Hosts()[i].Address(), h.Address)
		require.Equal(t, 2, h.Slots)
		require.Equal(t, "up", h.State)
	}
	for i, rank := range r.Report.Runs[0].Ranks {
		require.Equal(t, c.name(i/2+1), rank.Host)
		require.Equal(t, "exited", rank.State)
		require.Zero(t, *rank.ExitCode)
	}
}

// TestInputAndOutput has rank 0 read gorun's stdin in one job, and 16 ranks write many lines in another.
// No line is lost, and the lines of each rank are in order.
func TestInputAndOutput(t *testing.T) {
	c := slurm(t)
	cmd := c.salloc("-N3", "sh", "-c", "echo $PMI_RANK:$(cat)")
	cmd.Stdin = strings.NewReader("words")
	r := cmd.Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, regexp.MustCompile(`(?m)^(0:words|1:|2:)$`).FindAllString(r.Stdout, -1), 3, r.Stdout)

	long := strings.Repeat("x", 300)
	r = c.salloc("-N4 --ntasks-per-node=4", "sh", "-c", "for i in $(seq 200); do echo $PMI_RANK $i "+long+"; done").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	next := make(map[string]int)
	for line := range strings.Lines(r.Stdout) {
		rank, rest, _ := strings.Cut(line, " ")
		next[rank]++
		require.Equal(t, fmt.Sprintf("%d %s\n", next[rank], long), rest)
	}
	require.Len(t, next, 16)
	for rank, n := range next {
		require.Equal(t, 200, n, rank)
	}
}

// TestGorunIsCopied runs gorun and a program that the hosts of the allocation do not have. gorun copies
// itself to them, and with -stage also the program.
func TestGorunIsCopied(t *testing.T) {
	c := slurm(t)
	gorun := run.Copy(t, run.Program("gorun"), filepath.Join(c.Private(), "gorun"))
	prog := run.Copy(t, run.Rank(), filepath.Join(c.Private(), "prog"))
	in := func(args ...string) run.Result {
		t.Helper()
		return run.Command{Exe: "salloc", Env: c.env, Args: append([]string{"--quiet", "-w", c.name(1) + "," + c.name(2), "-n3", gorun}, args...)}.Run(t)
	}
	r := in("-stage", prog, "work")
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 3, strings.Count(r.Stdout, " worked\n"))

	r = in("sh", "-c", "readlink /proc/$PPID/exe")
	require.Equal(t, 3, strings.Count(r.Stdout, "/tmp/weft-gorun-"), "%s%s", r.Stdout, r.Stderr)

	r = in(prog, "work") // without -stage, the hosts do not have the program
	require.Equal(t, 127, r.Code)
	require.Contains(t, r.Stderr, c.name(1)+": ")
	require.Contains(t, r.Stderr, prog)

	// With -agent-path the hosts use a gorun that is installed there.
	r = in("-agent-path", run.Program("gorun"), "sh", "-c", "readlink /proc/$PPID/exe")
	require.Equal(t, strings.Repeat(run.Program("gorun")+"\n", 3), r.Stdout, r.Stderr)
	r = in("-agent-path", "/nonexistent/gorun", "hostname")
	require.Equal(t, 1, r.Code)
	require.Empty(t, r.Stdout)
	require.Contains(t, r.Stderr, "/nonexistent/gorun: No such file or directory")
}

// TestProfile makes profiles of ranks on two hosts of an allocation. Each rank must have samples with the name
// of its host.
func TestProfile(t *testing.T) {
	c := slurm(t)
	dir := t.TempDir()
	r := c.salloc(c.first(2)+" -N2 --ntasks-per-node=2", "-profile", "goroutine", "-profile-dir", dir, run.Rank(), "hello").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "gorun: goroutine profile of 4 ranks: "+dir)
	want := map[int64]string{0: c.name(1), 1: c.name(1), 2: c.name(2), 3: c.name(2)}
	require.Equal(t, want, run.HostsIn(run.Profile(t, dir, "goroutine"), "main.main"))
}

// TestStats: statistics of ranks on two hosts of an allocation must have the calls of all ranks.
func TestStats(t *testing.T) {
	c := slurm(t)
	r := c.salloc(c.first(2)+" -N2 --ntasks-per-node=2", "-stats", run.Rank(), "work").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "gorun: statistics of 4 ranks, ")
	require.Regexp(t, `(?m)^Isend +12 `, r.Stderr)
}

// TestTrace traces ranks on two hosts of an allocation. Each rank must be there with the name of its host,
// and the messages between the hosts with both ends.
func TestTrace(t *testing.T) {
	c := slurm(t)
	file := filepath.Join(t.TempDir(), "trace.json")
	r := c.salloc(c.first(2)+" -N2 --ntasks-per-node=2", "-trace", file, run.Program("heat2d")).Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "gorun: trace of 4 ranks: "+file)
	require.NotContains(t, r.Stderr, "lacks")
	tr := run.ReadTrace(t, file)
	between := 0
	for _, m := range tr.Messages {
		if m.From/2 != m.To/2 {
			between++
		}
	}
	require.Greater(t, between, 100)
	for i := range 4 {
		require.Equal(t, fmt.Sprintf("rank %d (%s)", i, c.name(i/2+1)), tr.Ranks[i])
		_, bound := tr.Clock(i)
		require.Positive(t, bound)
	}
}
