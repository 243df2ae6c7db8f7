//go:build linux

// Package dial has gorun run jobs on hosts whose agents somebody else starts, as pods.
package dial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/test/cluster/run"
)

func TestMain(m *testing.M) { run.Main(m) }

// bed is three hosts, a secret that they share, and where gorun is to listen.
type bed struct {
	*testbed.Cluster
	t      testing.TB
	secret string
	addr   string
}

func hosts(t *testing.T) *bed {
	t.Helper()
	c := testbed.Up(t, 3)
	run.NothingLeft(t, c)
	b := &bed{Cluster: c, t: t, secret: secret(t, "a secret of twenty bytes", 0o600)}
	l, err := net.Listen("tcp", c.Address()+":0")
	require.NoError(t, err)
	b.addr = l.Addr().String() // free, as agents may come before gorun
	require.NoError(t, l.Close())
	return b
}

func secret(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(text+"\n"), mode))
	return file
}

func (b *bed) name(k int) string { return b.Names()[k-1] }

// gorun listens for agents.
func (b *bed) gorun(agents int, args ...string) run.Command {
	args = append([]string{"-listen", b.addr, "-secret-file", b.secret, "-agents", strconv.Itoa(agents)}, args...)
	return run.Command{Args: args}
}

// agent is a gorun that dials in.
type agent struct {
	t     *testing.T
	cmd   *exec.Cmd
	text  bytes.Buffer
	ended chan struct{}
	err   error
}

// agent starts one on host k, as a pod's container does.
func (b *bed) agent(t *testing.T, k int) *agent {
	t.Helper()
	return b.agentWith(t, k, b.secret)
}

func (b *bed) agentWith(t *testing.T, k int, secret string) *agent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	a := &agent{t: t, ended: make(chan struct{})}
	a.cmd = b.Hosts()[k-1].Command(ctx, run.Program("gorun"), "-agent", "-connect", b.addr, "-secret-file", secret)
	a.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "WEFT_") }), "TMPDIR="+t.TempDir())
	a.cmd.Stdout, a.cmd.Stderr = &a.text, &a.text
	a.cmd.WaitDelay = 5 * time.Second
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, a.cmd.Start())
	go func() { // ends with the process; the cleanup waits for it
		defer close(a.ended)
		defer cancel()
		a.err = a.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = a.cmd.Process.Kill()
		<-a.ended
	})
	return a
}

// wait returns how the agent ended, and what it said.
func (a *agent) wait() (code int, text string) {
	a.t.Helper()
	<-a.ended
	var exit *exec.ExitError
	if a.err != nil && !errors.As(a.err, &exit) {
		a.t.Fatal(a.err)
	}
	return a.cmd.ProcessState.ExitCode(), a.text.String()
}

// well has the agent end with 0, and say nothing.
func (a *agent) well() {
	a.t.Helper()
	code, text := a.wait()
	require.Zero(a.t, code, text)
	require.Empty(a.t, text)
}

// badly has it end with 1, and say so in a line.
func (a *agent) badly(pattern string) {
	a.t.Helper()
	code, text := a.wait()
	require.Equal(a.t, 1, code, text)
	require.Regexp(a.t, "^gorun: agent on [^ ]+: "+pattern+"\n$", text)
}

// told checks that gorun has said one line.
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
}

// TestOrder has agents come before gorun, and after. Hosts are ordered by their names.
func TestOrder(t *testing.T) {
	b := hosts(t)
	early := b.agent(t, 2)
	p := b.gorun(3, "-v", "-np", "6", "-ppn", "2", run.Rank(), "work").Start(t)
	p.AwaitStderr(1, "waiting for 3 agents to connect to ")
	late := []*agent{b.agent(t, 3), b.agent(t, 1)}
	r := p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, regexp.MustCompile(`(?m)^rank [0-5] worked$`).FindAllString(r.Stdout, -1), 6, r.Stdout)
	require.Contains(t, r.Stderr, "weft: ranks: 6, hosts: 3, started by gorun")
	for i, h := range r.Report.Runs[0].Hosts {
		require.Equal(t, b.name(i+1), h.Name)
		require.Equal(t, b.Hosts()[i].Address(), h.Address)
		require.Equal(t, 2, h.Ranks)
	}
	for _, a := range append(late, early) {
		a.well()
	}
}

// TestNames has -host choose and order the hosts. An agent that is not wanted waits,
// and is sent away.
func TestNames(t *testing.T) {
	b := hosts(t)
	other := b.agent(t, 1)
	agents := []*agent{b.agent(t, 2), b.agent(t, 3)}
	r := b.gorun(0, "-v", "-host", b.name(3)+":2,"+b.name(2), "-np", "3", run.Rank(), "hello").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	for rank, k := range []int{3, 3, 2} {
		require.Contains(t, r.Stdout, fmt.Sprintf("rank %d of 3 on %s ", rank, b.name(k)))
	}
	for _, a := range agents {
		a.well()
	}
	// It may have come late, and finds nobody then.
	_ = other.cmd.Process.Signal(syscall.SIGTERM)
	code, _ := other.wait()
	require.NotZero(t, code)

	told(t, b.gorun(3, "-host", b.name(1), "hostname").Run(t), 2, "-agents: expected as many as hosts are named, 1, found 3")
	told(t, b.gorun(1, "-host", b.name(1), "-connect-timeout", "300ms", "hostname").Run(t), 1, "0 of 1 agent connected within 300ms; missing: "+b.name(1))
}

// TestSecret refuses agents with another one, and files that others may read.
func TestSecret(t *testing.T) {
	b := hosts(t)
	p := b.gorun(1, "-v", "-np", "1", "hostname").Start(t)
	p.AwaitStderr(1, "waiting for 1 agent")
	b.agentWith(t, 1, secret(t, "another one of twenty bytes", 0o600)).badly("gorun at " + b.addr + ": it has another secret than this agent")
	p.AwaitStderr(1, `turned away \S+: it does not know the secret`)
	b.agentWith(t, 1, secret(t, "a secret of twenty bytes", 0o644)).badly("secret: .*others may read or change it .*")
	b.agentWith(t, 1, "/nonexistent").badly("secret: .*no such file or directory")
	require.True(t, p.Running())

	// As the kubelet mounts it: by a link, and readable by the pod's group.
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(secret(t, "a secret of twenty bytes", 0o440), link))
	b.agentWith(t, 2, link).well()
	r := p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, b.name(2)+"\n", r.Stdout)
}

// TestTooFew gives up. The agents that came end, too.
func TestTooFew(t *testing.T) {
	b := hosts(t)
	agents := []*agent{b.agent(t, 1), b.agent(t, 1)} // two on one host count as one
	begun := time.Now()
	r := b.gorun(2, "-connect-timeout", "1s", "hostname").Run(t)
	told(t, r, 1, "1 of 2 agents connected within 1s; several agents have the name "+b.name(1))
	require.Less(t, time.Since(begun), 10*time.Second)
	for _, a := range agents {
		a.badly("connection with gorun: .*")
	}
	told(t, b.gorun(1, "-timeout", "300ms", "hostname").Run(t), 124, ".*300ms.*")

	p := b.gorun(1, "-v", "hostname").Start(t)
	p.AwaitStderr(1, "waiting for 1 agent")
	p.Signal(syscall.SIGTERM)
	r = p.Wait()
	require.Equal(t, 143, r.Code)
	require.Contains(t, r.Stderr, "gorun: ended by signal 15 (SIGTERM) before the ranks were started\n")
}

// TestComesAgain has an agent die before the job begins, and one take its place.
func TestComesAgain(t *testing.T) {
	b := hosts(t)
	p := b.gorun(2, "-v", "-np", "2", "-map-by", "node", "hostname").Start(t)
	p.AwaitStderr(1, "waiting for 2 agents")
	first := b.agent(t, 1)
	p.AwaitStderr(1, "agent on "+b.name(1)+" has connected")
	require.NoError(t, first.cmd.Process.Kill())
	_, _ = first.wait()
	second := b.agent(t, 2)
	p.AwaitStderr(1, "agent on "+b.name(2)+" has connected")
	require.True(t, p.Running())
	again := b.agent(t, 1)
	r := p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, strings.Fields(r.Stdout), 2)
	again.well()
	second.well()
}

// waiting is a job that runs for ever, two ranks on each host, and its agents.
func (b *bed) waiting(t *testing.T, args ...string) (p *run.Process, agents []*agent) {
	t.Helper()
	p = b.gorun(3, append(append([]string{"-np", "6", "-ppn", "2"}, args...), run.Rank(), "wait")...).Start(t)
	for k := 1; k <= 3; k++ {
		agents = append(agents, b.agent(t, k))
	}
	p.AwaitStdout(6, "up on")
	return p, agents
}

// TestListenerCloses has a thousand connections that send nothing come before the agents,
// which come through. When all agents are there nobody is let in any more.
func TestListenerCloses(t *testing.T) {
	b := hosts(t)
	p := b.gorun(2, "-v", "-np", "2", "-map-by", "node", run.Rank(), "wait").Start(t)
	p.AwaitStderr(1, "waiting for 2 agents")
	for range 1000 {
		c, err := net.Dial("tcp", b.addr)
		require.NoError(t, err)
		defer c.Close()
	}
	agents := []*agent{b.agent(t, 1), b.agent(t, 2)}
	p.AwaitStdout(2, "up on")
	_, err := net.Dial("tcp", b.addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	p.Signal(syscall.SIGTERM)
	require.NotZero(t, p.Wait().Code)
	for _, a := range agents {
		a.well()
	}
}

// killWatchdogs is for what sees the processes of all hosts here.
func (b *bed) killWatchdogs() {
	b.t.Helper()
	for _, h := range b.Hosts() {
		for _, p := range h.Processes(func(p testbed.Process) bool { return len(p.Args) == 1 && p.Args[0] == "gorun-watchdog" }) {
			require.NoError(b.t, syscall.Kill(p.PID, syscall.SIGKILL))
		}
	}
}

// noRanks waits until none is left.
func (b *bed) noRanks(since time.Time) {
	b.t.Helper()
	run.Eventually(b.t, func() error {
		for _, h := range b.Hosts() {
			if left := h.Processes(testbed.WithEnv("PMI_RANK", "")); len(left) > 0 {
				return fmt.Errorf("%s: left: %v", h.Name(), left)
			}
		}
		return nil
	})
	require.Less(b.t, time.Since(since), 10*time.Second)
}

// TestFailures ends jobs. An agent that did what it was told ends with 0, also where the
// job has failed: whoever runs pods is to look at gorun's exit code.
func TestFailures(t *testing.T) {
	t.Run("rank", func(t *testing.T) {
		b := hosts(t)
		agents := []*agent{b.agent(t, 1), b.agent(t, 2)}
		r := b.gorun(2, "-np", "4", "-ppn", "2", run.Rank(), "exit", "3", "7").Run(t)
		require.Equal(t, 7, r.Code)
		require.Regexp(t, `(?m)^gorun: rank 3 exited with code 7: \S+, pid \d+ on `+b.name(2)+"; the other 3 ranks were ended$", r.Stderr)
		for _, a := range agents {
			a.well()
		}
	})
	t.Run("agent", func(t *testing.T) {
		b := hosts(t)
		p, agents := b.waiting(t)
		b.killWatchdogs()
		since := time.Now()
		require.NoError(t, agents[1].cmd.Process.Kill())
		r := p.Wait()
		told(t, r, 1, b.name(2)+": .*")
		require.Equal(t, "lost", r.Report.Runs[0].Host(t, b.name(2)).State)
		b.noRanks(since)
		agents[0].well()
		agents[2].well()
	})
	t.Run("agent is asked to end", func(t *testing.T) { // a pod is deleted
		b := hosts(t)
		p, agents := b.waiting(t)
		require.NoError(t, agents[1].cmd.Process.Signal(syscall.SIGTERM))
		r := p.Wait()
		require.NotZero(t, r.Code)
		require.Contains(t, r.Stderr, b.name(2))
		agents[1].badly("it was asked to end, by SIGTERM")
		agents[0].well()
		agents[2].well()
	})
	t.Run("gorun", func(t *testing.T) {
		b := hosts(t)
		p, agents := b.waiting(t)
		for _, pid := range run.Children(t, p.PID()) {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL)) // its watchdog
		}
		since := time.Now()
		p.Signal(syscall.SIGKILL)
		p.Wait()
		for _, a := range agents {
			a.badly("connection with gorun: .*")
		}
		b.noRanks(since)
	})
	t.Run("gorun waits", func(t *testing.T) {
		b := hosts(t)
		p := b.gorun(2, "-v", "hostname").Start(t)
		a := b.agent(t, 1)
		p.AwaitStderr(1, "agent on "+b.name(1)+" has connected")
		p.Signal(syscall.SIGKILL)
		p.Wait()
		a.badly("connection with gorun: .*")
	})
	t.Run("cable", func(t *testing.T) {
		b := hosts(t)
		p, agents := b.waiting(t, "-heartbeat", "500ms")
		since := time.Now()
		b.Hosts()[2].Cut()
		told(t, p.Wait(), 1, b.name(3)+": .*")
		b.noRanks(since)
		agents[2].badly("connection with gorun: .*")
		b.Hosts()[2].Join()
	})
	t.Run("notify", func(t *testing.T) {
		b := hosts(t)
		p := b.gorun(3, "-np", "6", "-ppn", "2", "-on-failure", "notify", run.Rank(), "notify", "2").Start(t)
		agents := []*agent{b.agent(t, 1), b.agent(t, 2), b.agent(t, 3)}
		p.AwaitStdout(6, `(?m)^rank \d up$`)
		b.killWatchdogs()
		require.NoError(t, agents[1].cmd.Process.Kill())
		r := p.Wait()
		told(t, r, 0, b.name(2)+": .*; the others go on without the 2 ranks there")
		agents[0].well()
		agents[2].well()
	})
}

// TestUsage tells what is missing, before anybody is waited for.
func TestUsage(t *testing.T) {
	b := hosts(t)
	for args, says := range map[string]string{
		"-launcher dial hostname":                                             "-launcher.*expected -listen.*",
		"-listen ADDR -secret-file SECRET hostname":                           "-listen: expected -agents N, or the names of hosts",
		"-listen ADDR -agents 1 hostname":                                     ".*secret.*",
		"-listen ADDR -agents 1 -secret-file /x true":                         "-secret-file: expected a file with a secret, found \"/x\": no such file or directory",
		"-listen ADDR -agents 1 -secret-file SECRET -on-failure restart true": "-on-failure restart: expected hosts whose agents gorun starts, .*",
	} {
		r := run.Gorun(t, strings.Fields(strings.NewReplacer("ADDR", b.addr, "SECRET", b.secret).Replace(args))...)
		require.Equal(t, 2, r.Code, r.Stderr)
		require.Regexp(t, "^gorun: "+says+"\n", r.Stderr)
	}
	l, err := net.Listen("tcp", b.addr)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	told(t, b.gorun(1, "hostname").Run(t), 1, "wait for agents: listen tcp .*: bind: address already in use")
}
