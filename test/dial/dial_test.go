//go:build linux

// Package dial tests gorun -listen. With that flag gorun does not start the agents on the hosts: another
// program does, for example Kubernetes in pods, and the agents connect to gorun. The hosts are made of
// Linux namespaces on this machine (a testbed).
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

// cluster is three hosts, in use by the test t.
type cluster struct {
	*testbed.Cluster
	t      testing.TB
	secret string // path of the file with the secret that gorun and the agents share
	addr   string // the address on which gorun listens
}

func hosts(t *testing.T) *cluster {
	t.Helper()
	tb := testbed.Up(t, 3)
	run.NothingLeft(t, tb)
	c := &cluster{Cluster: tb, t: t, secret: secret(t, "a secret of twenty bytes", 0o600)}
	l, err := net.Listen("tcp", tb.Address()+":0")
	require.NoError(t, err)
	// A free port. It must be known before gorun listens, because agents may start before gorun.
	c.addr = l.Addr().String()
	require.NoError(t, l.Close())
	return c
}

// secret writes a secret to a file and returns its path.
func secret(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(text+"\n"), mode))
	return file
}

func (c *cluster) name(k int) string { return c.Names()[k-1] }

// gorun returns a run of gorun that waits for this number of agents.
func (c *cluster) gorun(agents int, args ...string) run.Command {
	args = append([]string{"-listen", c.addr, "-secret-file", c.secret, "-agents", strconv.Itoa(agents)}, args...)
	return run.Command{Args: args}
}

// agent is a process that runs gorun -agent -connect.
type agent struct {
	t     *testing.T
	cmd   *exec.Cmd
	text  bytes.Buffer  // what the agent has printed
	ended chan struct{} // closed when the agent has ended
	err   error         // of cmd.Wait
}

// agent starts an agent on host k, as a pod of Kubernetes would.
func (c *cluster) agent(t *testing.T, k int) *agent {
	t.Helper()
	return c.agentWith(t, k, c.secret)
}

func (c *cluster) agentWith(t *testing.T, k int, secret string) *agent {
	t.Helper()
	return c.start(t, c.Hosts()[k-1].Command, secret)
}

// start starts an agent. command is exec.CommandContext, or a function like it for another host.
func (c *cluster) start(t *testing.T, command func(ctx context.Context, name string, args ...string) *exec.Cmd, secret string) *agent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	a := &agent{t: t, ended: make(chan struct{})}
	a.cmd = command(ctx, run.Program("gorun"), "-agent", "-connect", c.addr, "-secret-file", secret)
	a.cmd.Env = append(run.CleanEnv(), "TMPDIR="+t.TempDir())
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

// wait waits until the agent has ended. It returns the agent's exit code and output.
func (a *agent) wait() (code int, text string) {
	a.t.Helper()
	<-a.ended
	var exit *exec.ExitError
	if a.err != nil && !errors.As(a.err, &exit) {
		a.t.Fatal(a.err)
	}
	return a.cmd.ProcessState.ExitCode(), a.text.String()
}

// requireSuccess waits until the agent has ended, and checks that it exits with 0 and prints nothing.
func (a *agent) requireSuccess() {
	a.t.Helper()
	code, text := a.wait()
	require.Zero(a.t, code, text)
	require.Empty(a.t, text)
}

// requireFailure waits until the agent has ended, and checks that it exits with 1 and prints one line that
// matches pattern.
func (a *agent) requireFailure(pattern string) {
	a.t.Helper()
	a.requireCode(1, pattern)
}

// requireCode is requireFailure for another exit code.
func (a *agent) requireCode(want int, pattern string) {
	a.t.Helper()
	code, text := a.wait()
	require.Equal(a.t, want, code, text)
	require.Regexp(a.t, "^gorun: agent on [^ ]+: "+pattern+"\n$", text)
}

// TestOrder starts one agent before gorun and two after it. The job succeeds, and gorun orders the hosts by
// their names.
func TestOrder(t *testing.T) {
	c := hosts(t)
	early := c.agent(t, 2)
	p := c.gorun(3, "-v", "-np", "6", "-ppn", "2", run.Rank(), "work").Start(t)
	p.AwaitStderr(1, "waiting for 3 agents to connect to ")
	late := []*agent{c.agent(t, 3), c.agent(t, 1)}
	r := p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, regexp.MustCompile(`(?m)^rank [0-5] worked$`).FindAllString(r.Stdout, -1), 6, r.Stdout)
	require.Contains(t, r.Stderr, "weft: ranks: 6, hosts: 3, started by gorun")
	for i, h := range r.Report.Runs[0].Hosts {
		require.Equal(t, c.name(i+1), h.Name)
		require.Equal(t, c.Hosts()[i].Address(), h.Address)
		require.Equal(t, 2, h.Ranks)
	}
	for _, a := range append(late, early) {
		a.requireSuccess()
	}
}

// TestSameHost starts an agent on the host of gorun, as in a container. The ranks are processes of this
// agent, not of gorun.
func TestSameHost(t *testing.T) {
	c := hosts(t)
	own, other := c.start(t, exec.CommandContext, c.secret), c.agent(t, 1)
	r := c.gorun(2, "-np", "4", "-ppn", "2", "-tag-output", "sh", "-c", "echo $PPID").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	name, err := os.Hostname()
	require.NoError(t, err)
	lines := regexp.MustCompile(`(?m)^\[[0-3]@`+regexp.QuoteMeta(name)+`\] (\d+)$`).FindAllStringSubmatch(r.Stdout, -1)
	require.Len(t, lines, 2, r.Stdout)
	for _, l := range lines {
		require.Equal(t, strconv.Itoa(own.cmd.Process.Pid), l[1])
	}
	own.requireSuccess()
	other.requireSuccess()

	own = c.start(t, exec.CommandContext, c.secret)
	r = c.gorun(1, "-np", "2", run.Rank(), "work").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Regexp(t, "(?m)^rank 1 worked$", r.Stdout)
	own.requireSuccess()
}

// TestProgramElsewhere: a program and a working directory with absolute paths are those of the hosts whose
// ranks use them, and need not exist where gorun runs. If such a host does not have them, the job fails.
func TestProgramElsewhere(t *testing.T) {
	c := hosts(t)
	dir := t.TempDir()
	inside := filepath.Join(dir, "image")
	require.NoError(t, os.MkdirAll(filepath.Join(inside, "work"), 0o755))
	program := filepath.Join(dir, "app", "program")
	require.NoError(t, os.MkdirAll(program, 0o755)) // gorun must not look at what it has there
	require.NoError(t, os.WriteFile(filepath.Join(inside, "program"), []byte("#!/bin/sh\npwd\n"), 0o755))
	agent := func() *agent {
		// The agent has the directory inside where other processes have an empty one.
		return c.start(t, func(ctx context.Context, name string, args ...string) *exec.Cmd {
			script := `mount --bind "$1" "$2" && shift 2 && exec "$@"`
			return exec.CommandContext(ctx, "unshare", append([]string{"-m", "sh", "-ec", script, "sh", inside, filepath.Dir(program), name}, args...)...)
		}, c.secret)
	}
	a := agent()
	wdir := filepath.Join(filepath.Dir(program), "work")
	r := c.gorun(1, "-np", "1", "-wdir", wdir, program).Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, wdir+"\n", r.Stdout)
	a.requireSuccess()

	own, err := os.Hostname()
	require.NoError(t, err)
	a, other := agent(), c.agent(t, 1)
	r = c.gorun(2, "-host", own+":1,"+c.name(1)+":1", "-wdir", wdir, program, ":", "-np", "1", "hostname").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.ElementsMatch(t, []string{wdir, c.name(1)}, strings.Fields(r.Stdout))
	a.requireSuccess()
	other.requireSuccess()

	a = agent()
	run.RequireLines(t, c.gorun(1, program+"2").Run(t), 127, ".*: "+regexp.QuoteMeta(program)+"2: no such file; .*")
	a.requireSuccess()
	a = agent()
	run.RequireLines(t, c.gorun(1, "-wdir", wdir+"2", program).Run(t), 1, ".*: working directory "+regexp.QuoteMeta(wdir)+"2: no such directory")
	a.requireSuccess()
}

// TestNames runs gorun with -host, which chooses the hosts and their order among the agents. The agent of
// another host gets no ranks: gorun refuses it, or it connects too late.
func TestNames(t *testing.T) {
	c := hosts(t)
	other := c.agent(t, 1)
	agents := []*agent{c.agent(t, 2), c.agent(t, 3)}
	r := c.gorun(0, "-v", "-host", c.name(3)+":2,"+c.name(2), "-np", "3", run.Rank(), "hello").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	for rank, k := range []int{3, 3, 2} {
		require.Contains(t, r.Stdout, fmt.Sprintf("rank %d of 3 on %s ", rank, c.name(k)))
	}
	for _, a := range agents {
		a.requireSuccess()
	}
	// The agent of the other host may still try to connect, so end it.
	_ = other.cmd.Process.Signal(syscall.SIGTERM)
	code, _ := other.wait()
	require.NotZero(t, code)

	run.RequireLines(t, c.gorun(3, "-host", c.name(1), "hostname").Run(t), 2, "-agents: expected as many as hosts are named, 1, found 3")
	run.RequireLines(t, c.gorun(1, "-host", c.name(1), "-connect-timeout", "300ms", "hostname").Run(t), 1, "0 of 1 agent connected within 300ms; missing: "+c.name(1))
}

// TestSecret starts agents with a wrong secret, with a secret file that other users may read, and
// with a missing secret file. gorun refuses the first agent, and the others end with an error.
func TestSecret(t *testing.T) {
	c := hosts(t)
	p := c.gorun(1, "-v", "-np", "1", "hostname").Start(t)
	p.AwaitStderr(1, "waiting for 1 agent")
	c.agentWith(t, 1, secret(t, "another one of twenty bytes", 0o600)).requireFailure("gorun at " + c.addr + ": it has another secret than this agent")
	p.AwaitStderr(1, `turned away \S+: it does not know the secret`)
	c.agentWith(t, 1, secret(t, "a secret of twenty bytes", 0o644)).requireFailure("secret: .*others may read or change it .*")
	c.agentWith(t, 1, "/nonexistent").requireFailure("secret: .*no such file or directory")
	require.True(t, p.Running())

	// An agent accepts a link to a file that its group may read, because Kubernetes mounts a secret
	// in that way.
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(secret(t, "a secret of twenty bytes", 0o440), link))
	c.agentWith(t, 2, link).requireSuccess()
	r := p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, c.name(2)+"\n", r.Stdout)
}

// TestTooFew starts fewer agents than gorun waits for. gorun ends with an error after -connect-timeout, and
// the agents end too.
func TestTooFew(t *testing.T) {
	c := hosts(t)
	agents := []*agent{c.agent(t, 1), c.agent(t, 1)} // two agents on one host count as one
	begun := time.Now()
	r := c.gorun(2, "-connect-timeout", "1s", "hostname").Run(t)
	run.RequireLines(t, r, 1, "1 of 2 agents connected within 1s; several agents have the name "+c.name(1))
	require.Less(t, time.Since(begun), 10*time.Second)
	for _, a := range agents {
		a.requireFailure("connection with gorun: .*")
	}
	run.RequireLines(t, c.gorun(1, "-timeout", "300ms", "hostname").Run(t), 124, ".*300ms.*")

	p := c.gorun(1, "-v", "hostname").Start(t)
	p.AwaitStderr(1, "waiting for 1 agent")
	p.Signal(syscall.SIGTERM)
	r = p.Wait()
	require.Equal(t, 143, r.Code)
	require.Contains(t, r.Stderr, "gorun: ended by signal 15 (SIGTERM) before the ranks were started\n")
}

// TestAgentIsReplaced kills an agent while gorun still waits for another one, and then starts a new agent
// on the same host. The job succeeds with the new agent.
func TestAgentIsReplaced(t *testing.T) {
	c := hosts(t)
	p := c.gorun(2, "-v", "-np", "2", "-map-by", "node", "hostname").Start(t)
	p.AwaitStderr(1, "waiting for 2 agents")
	first := c.agent(t, 1)
	p.AwaitStderr(1, "agent on "+c.name(1)+" has connected")
	require.NoError(t, first.cmd.Process.Kill())
	_, _ = first.wait()
	second := c.agent(t, 2)
	p.AwaitStderr(1, "agent on "+c.name(2)+" has connected")
	require.True(t, p.Running())
	again := c.agent(t, 1)
	r := p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, strings.Fields(r.Stdout), 2)
	again.requireSuccess()
	second.requireSuccess()
}

// waiting starts a job whose ranks sleep, two on each host, and waits until all of them run.
func (c *cluster) waiting(t *testing.T, args ...string) (p *run.Process, agents []*agent) {
	t.Helper()
	p = c.gorun(3, append(append([]string{"-np", "6", "-ppn", "2"}, args...), run.Rank(), "wait")...).Start(t)
	for k := 1; k <= 3; k++ {
		agents = append(agents, c.agent(t, k))
	}
	p.AwaitStdout(6, "up on")
	return p, agents
}

// TestListenerCloses opens a thousand connections to gorun on which nothing is sent, before the agents
// connect. The agents can still connect. When all agents are connected, gorun closes its listener.
func TestListenerCloses(t *testing.T) {
	c := hosts(t)
	p := c.gorun(2, "-v", "-np", "2", "-map-by", "node", run.Rank(), "wait").Start(t)
	p.AwaitStderr(1, "waiting for 2 agents")
	for range 1000 {
		conn, err := net.Dial("tcp", c.addr)
		require.NoError(t, err)
		defer conn.Close()
	}
	agents := []*agent{c.agent(t, 1), c.agent(t, 2)}
	p.AwaitStdout(2, "up on")
	_, err := net.Dial("tcp", c.addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	p.Signal(syscall.SIGTERM)
	require.NotZero(t, p.Wait().Code)
	for _, a := range agents {
		a.requireSuccess()
	}
}

// killWatchdogs kills the watchdogs of all agents. In a testbed a watchdog sees the processes of all hosts,
// so it would also end the ranks of other hosts.
func (c *cluster) killWatchdogs() {
	c.t.Helper()
	for _, h := range c.Hosts() {
		for _, p := range h.Processes(run.Watchdog) {
			require.NoError(c.t, syscall.Kill(p.PID, syscall.SIGKILL))
		}
	}
}

// noRanks waits until no rank runs on any host, and checks that this is less than 10 s after the time
// since.
func (c *cluster) noRanks(since time.Time) {
	c.t.Helper()
	run.Eventually(c.t, func() error {
		for _, h := range c.Hosts() {
			if left := h.Processes(testbed.WithEnv("PMI_RANK", "")); len(left) > 0 {
				return fmt.Errorf("%s: left: %v", h.Name(), left)
			}
		}
		return nil
	})
	require.Less(c.t, time.Since(since), 10*time.Second)
}

// TestFailures ends jobs in several ways, for example by the failure of a rank, of an agent, or of gorun.
// All ranks end. An agent that has done all that gorun asked for exits with 0, also if the job has
// failed: only gorun's exit code reports the job's result.
func TestFailures(t *testing.T) {
	t.Run("rank", func(t *testing.T) {
		c := hosts(t)
		agents := []*agent{c.agent(t, 1), c.agent(t, 2)}
		r := c.gorun(2, "-np", "4", "-ppn", "2", run.Rank(), "exit", "3", "7").Run(t)
		require.Equal(t, 7, r.Code)
		require.Regexp(t, `(?m)^gorun: rank 3 exited with code 7: \S+, pid \d+ on `+c.name(2)+"; the other 3 ranks were ended$", r.Stderr)
		for _, a := range agents {
			a.requireSuccess()
		}
	})
	t.Run("agent", func(t *testing.T) {
		c := hosts(t)
		p, agents := c.waiting(t)
		c.killWatchdogs()
		since := time.Now()
		require.NoError(t, agents[1].cmd.Process.Kill())
		r := p.Wait()
		run.RequireLines(t, r, 1, c.name(2)+": .*")
		require.Equal(t, "lost", r.Report.Runs[0].Host(t, c.name(2)).State)
		c.noRanks(since)
		agents[0].requireSuccess()
		agents[2].requireSuccess()
	})
	t.Run("agent gets SIGTERM", func(t *testing.T) { // as when Kubernetes deletes the agent's pod
		c := hosts(t)
		p, agents := c.waiting(t)
		require.NoError(t, agents[1].cmd.Process.Signal(syscall.SIGTERM))
		r := p.Wait()
		require.NotZero(t, r.Code)
		require.Contains(t, r.Stderr, c.name(2))
		agents[1].requireCode(128+int(syscall.SIGTERM), "it got SIGTERM")
		agents[0].requireSuccess()
		agents[2].requireSuccess()
	})
	t.Run("gorun", func(t *testing.T) {
		c := hosts(t)
		p, agents := c.waiting(t)
		run.KillWatchdog(t, p.PID())
		since := time.Now()
		p.Signal(syscall.SIGKILL)
		p.Wait()
		for _, a := range agents {
			a.requireFailure("connection with gorun: .*")
		}
		c.noRanks(since)
	})
	t.Run("gorun waits", func(t *testing.T) {
		c := hosts(t)
		p := c.gorun(2, "-v", "hostname").Start(t)
		a := c.agent(t, 1)
		p.AwaitStderr(1, "agent on "+c.name(1)+" has connected")
		p.Signal(syscall.SIGKILL)
		p.Wait()
		a.requireFailure("connection with gorun: .*")
	})
	t.Run("cable", func(t *testing.T) {
		c := hosts(t)
		p, agents := c.waiting(t, "-heartbeat", "500ms")
		since := time.Now()
		c.Hosts()[2].Cut()
		run.RequireLines(t, p.Wait(), 1, c.name(3)+": .*")
		c.noRanks(since)
		agents[2].requireFailure("connection with gorun: .*")
		c.Hosts()[2].Join()
	})
	t.Run("notify", func(t *testing.T) {
		c := hosts(t)
		p := c.gorun(3, "-np", "6", "-ppn", "2", "-on-failure", "notify", run.Rank(), "notify", "2").Start(t)
		agents := []*agent{c.agent(t, 1), c.agent(t, 2), c.agent(t, 3)}
		p.AwaitStdout(6, `(?m)^rank \d up$`)
		c.killWatchdogs()
		require.NoError(t, agents[1].cmd.Process.Kill())
		r := p.Wait()
		run.RequireLines(t, r, 0, c.name(2)+": .*; the others go on without the 2 ranks there")
		agents[0].requireSuccess()
		agents[2].requireSuccess()
	})
}

// TestUsage runs gorun with wrong flags. gorun prints an error and exits with 2, without waiting for
// agents. If another process listens at the address of -listen, gorun exits with 1.
func TestUsage(t *testing.T) {
	c := hosts(t)
	for args, says := range map[string]string{
		"-launcher dial hostname":                                             "-launcher.*expected -listen.*",
		"-listen ADDR -secret-file SECRET hostname":                           "-listen: expected -agents N, or the names of hosts",
		"-listen ADDR -agents 1 hostname":                                     ".*secret.*",
		"-listen ADDR -agents 1 -secret-file /x true":                         "-secret-file: expected a file with a secret, found \"/x\": no such file or directory",
		"-listen ADDR -agents 1 -secret-file SECRET -on-failure restart true": "-on-failure restart: expected hosts whose agents gorun starts, .*",
	} {
		r := run.Gorun(t, strings.Fields(strings.NewReplacer("ADDR", c.addr, "SECRET", c.secret).Replace(args))...)
		require.Equal(t, 2, r.Code, r.Stderr)
		require.Regexp(t, "^gorun: "+says+"\n", r.Stderr)
	}
	l, err := net.Listen("tcp", c.addr)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	run.RequireLines(t, c.gorun(1, "hostname").Run(t), 1, "wait for agents: listen tcp .*: bind: address already in use")
}
