//go:build linux

package remote

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
)

// slurm returns a cluster of two hosts, an Srun for them, and a listener for the agents.
func slurm(t *testing.T) (*testbed.Cluster, *Srun, *Listener) {
	t.Helper()
	c := testbed.Up(t, 2)
	for _, v := range c.Slurm(t) {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	secret := NewSecret()
	l, err := Listen(c.Address()+":0", secret)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return c, &Srun{Nodes: c.Names(), Connect: l.Addr().String(), Secret: secret}, l
}

// dialled starts the agents and waits until they have dialled in.
func dialled(t *testing.T, s *Srun, l *Listener) (*Step, map[string]*Conn, error) {
	t.Helper()
	step, err := s.Start()
	if err != nil { // srun could not be started, or has ended before it read the secret
		return nil, nil, err
	}
	t.Cleanup(func() { require.NoError(t, step.Close()) })
	l.Cause = step.CauseOf
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ctx, stop := step.Context(ctx)
	defer stop()
	conns := map[string]*Conn{}
	for range s.Nodes {
		conn, err := l.Accept(ctx)
		if err != nil {
			return step, conns, err
		}
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
		conns[conn.Host()] = conn
	}
	return step, conns, nil
}

func TestSrun(t *testing.T) {
	c, s, l := slurm(t)
	step, conns, err := dialled(t, s, l)
	require.NoError(t, err)
	for _, h := range c.Hosts() {
		conn := conns[h.Name()]
		require.NotNil(t, conn, h.Name())
		require.Equal(t, "hello", echo(t, conn, "hello"))
		agents := h.Processes(func(p testbed.Process) bool { return p.PID == conn.Peer().PID })
		require.Len(t, agents, 1)
		require.Equal(t, []string{"-agent", "-connect", s.Connect, "-secret-file", "-"}, agents[0].Args[1:])
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(conn.Peer().PID) + "/environ")
		require.NoError(t, err)
		require.NotContains(t, string(environ), s.Secret.Text())
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	require.NoError(t, step.Close())
	<-step.Done()
}

// TestSrunCopy checks that srun copies gorun to nodes that do not have it.
func TestSrunCopy(t *testing.T) {
	c, s, l := slurm(t)
	s.CopyTo = c.Private() // each host has its own directory at this path
	_, conns, err := dialled(t, s, l)
	require.NoError(t, err)
	for _, h := range c.Hosts() {
		conn := conns[h.Name()]
		agents := h.Processes(func(p testbed.Process) bool { return p.PID == conn.Peer().PID })
		require.Len(t, agents, 1)
		require.True(t, strings.HasPrefix(agents[0].Exe, c.Private()+"/"+broadcastPrefix), agents[0].Exe)
		require.Equal(t, agents[0].Exe, strings.TrimSpace(run(t, h, "ls -d "+c.Private()+"/*")))
		require.Equal(t, "hello", echo(t, conn, "hello"))
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool { return run(t, h, "ls -A "+c.Private()) == "" }, 10*time.Second, 5*time.Millisecond)
	}
}

// TestSrunKilled kills srun and checks that the agents continue, even if gorun notices the end of
// srun late.
func TestSrunKilled(t *testing.T) {
	_, s, l := slurm(t)
	step, conns, err := dialled(t, s, l)
	require.NoError(t, err)
	step.HoldHelper()
	step.HoldHelper()
	step.child.mu.Lock() // keeps watch from killing srun's helper
	err = syscall.Kill(step.child.pid, syscall.SIGKILL)
	time.Sleep(300 * time.Millisecond) // longer than the helper needs to end the step
	step.child.mu.Unlock()
	require.NoError(t, err)
	<-step.Done()
	for _, conn := range conns {
		require.Equal(t, "hello", echo(t, conn, "hello"))
	}
}

// TestSrunFails checks the errors if srun cannot start the agents, or the agents cannot dial in.
func TestSrunFails(t *testing.T) {
	t.Run("no gorun", func(t *testing.T) {
		_, s, l := slurm(t)
		s.Agent = "/nonexistent/gorun"
		_, _, err := dialled(t, s, l)
		require.ErrorContains(t, err, "/nonexistent/gorun: No such file or directory")
	})
	t.Run("no node", func(t *testing.T) {
		_, s, l := slurm(t)
		s.Nodes = []string{"no-such-node"}
		_, _, err := dialled(t, s, l)
		require.ErrorContains(t, err, "srun: error: ")
	})
	t.Run("wrong secret", func(t *testing.T) {
		_, s, l := slurm(t)
		s.Secret = NewSecret()
		_, _, err := dialled(t, s, l)
		require.ErrorContains(t, err, errRefused.Error())
	})
}

// TestSrunEnds checks the cause of a stream's end after an agent has exited, and after scancel.
func TestSrunEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, conn *Conn){
		"agent exits": func(t *testing.T, conn *Conn) {
			_, err := io.WriteString(conn, "exit 3 no more memory\n")
			require.NoError(t, err)
		},
		"scancel": func(t *testing.T, _ *Conn) {
			out, err := exec.Command("scancel", "--name="+filepath.Base(binary(t))).CombinedOutput()
			require.NoError(t, err, string(out))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, s, l := slurm(t)
			_, conns, err := dialled(t, s, l)
			require.NoError(t, err)
			conn := conns[c.Names()[0]]
			end(t, conn)
			_, _ = io.Copy(io.Discard, conn)
			if other := conns[c.Names()[1]]; name == "scancel" {
				_, _ = io.Copy(io.Discard, other)
			} else {
				require.Equal(t, "hello", echo(t, other, "hello"))
			}
			// Slurm does not print its line CANCELLED if the agents have ended before slurmstepd would
			// print it. On a busy machine the line may also come later than Cause waits for it.
			says := map[string]string{"agent exits": "srun: no more memory$", "scancel": " CANCELLED AT |: Terminated$"}[name]
			require.EventuallyWithT(t, func(t *assert.CollectT) {
				cause := conn.Cause()
				require.ErrorContains(t, cause, c.Names()[0]+": ")
				require.Regexp(t, says, cause.Error())
			}, time.Minute, 10*time.Millisecond)
		})
	}
}

func TestSrunReason(t *testing.T) {
	for _, test := range []struct{ lines, best string }{
		{"srun: cluster configuration lacks support for cpu binding", ""},
		{"srun: error: n1: task 0: Exited with exit code 3|gorun: no memory|srun: Force Terminated StepId=2.5", "gorun: no memory"},
		{"slurmstepd: error: execve(): /x: No such file|srun: error: n1: task 0: Exited with exit code 2", "slurmstepd: error: execve(): /x: No such file"},
		{"srun: error: n2: task 1: Killed|slurmstepd-n1: error: *** STEP 2.6 ON n1 CANCELLED AT 2026-11-22T06:12:55 ***", "slurmstepd-n1: error: *** STEP 2.6 ON n1 CANCELLED AT 2026-11-22T06:12:55 ***"},
		{"gorun: agent on n2: it got SIGTERM|srun: error: n2: task 1: Exited with exit code 1", "srun: error: n2: task 1: Exited with exit code 1"},
		{"a warning|slurmstepd: error: *** STEP 2.6 ON n1 CANCELLED AT 2026-11-22T06:12:55 DUE TO TIME LIMIT ***", "slurmstepd: error: *** STEP 2.6 ON n1 CANCELLED AT 2026-11-22T06:12:55 DUE TO TIME LIMIT ***"},
	} {
		var w srunOutput
		for line := range strings.SplitSeq(test.lines, "|") {
			w.note(line)
		}
		require.Equal(t, test.best, w.best(true, ""))
	}
	var w srunOutput
	w.note("gorun: agent on n1: no more memory")
	w.note("srun: error: n1: task 0: Exited with exit code 3")
	require.Equal(t, "gorun: agent on n1: no more memory", w.best(false, "n1"))
	require.Empty(t, w.best(false, "n2"))
	require.Equal(t, "gorun: agent on n1: no more memory", w.best(false, ""))
	w.note("srun: error: n[2-3]: tasks 1-2: Killed")
	require.Equal(t, "srun: error: n[2-3]: tasks 1-2: Killed", w.best(false, "n3"))
	require.Equal(t, "srun: error: n1: task 0: Exited with exit code 3", w.best(false, "n1"))
	require.Equal(t, "srun: error: n1: task 0: Exited with exit code 3", w.best(false, ""))
	for _, test := range []struct {
		lines, says string
		all         bool
	}{
		{"gorun: agent on n1: no|srun: error: n[1-2]: tasks 0-1: Killed", "", false},
		{"gorun: agent on n2: " + ErrTerminated.Error() + "|srun: error: n2: task 1: Exited with exit code 1", "agent on n2: " + ErrTerminated.Error(), false},
		{"gorun: agent on n2: " + ErrTerminated.Error() + "|gorun: agent on n1: " + ErrTerminated.Error(), "agent on n2: " + ErrTerminated.Error(), true},
		{"srun: error: Slurm job 4 has expired|srun: x", "srun: error: Slurm job 4 has expired", true},
		{"slurmstepd-n1: error: *** STEP 2.6 ON n1 CANCELLED AT 2026-11-22 ***", "slurmstepd-n1: error: *** STEP 2.6 ON n1 CANCELLED AT 2026-11-22 ***", true},
	} {
		st := &Step{agents: 2}
		for line := range strings.SplitSeq(test.lines, "|") {
			st.output.note(line)
		}
		reason, all := st.Cancelled()
		require.Equal(t, test.says, reason, test.lines)
		require.Equal(t, test.all, all, test.lines)
	}
	w = srunOutput{}
	w.note("a warning")
	require.Empty(t, w.best(false, ""))
	_, err := (&Srun{Nodes: []string{"n"}, Command: []string{"no-such-srun"}, Secret: NewSecret()}).Start()
	require.EqualError(t, err, "no-such-srun cannot be started: executable file not found in $PATH")
}

func TestSalloc(t *testing.T) {
	for _, test := range []struct {
		args  string
		np    int
		nodes string
		line  string
	}{
		{"", 4, "", "salloc --ntasks=4 /bin/gorun -n 4 ./prog"},
		{"-p main", 4, "", "salloc -p main --ntasks=4 /bin/gorun -n 4 ./prog"},
		{"-N2", 4, "", "salloc -N2 --ntasks=4 /bin/gorun -n 4 ./prog"},
		{"--nodes=2", 4, "", "salloc --nodes=2 --ntasks=4 /bin/gorun -n 4 ./prog"},
		{"-n8", 4, "", "salloc -n8 /bin/gorun -n 4 ./prog"},
		{"-t 5", 0, "", "salloc -t 5 /bin/gorun -n 4 ./prog"},
		{"", 4, "a b", "salloc --nodelist=a,b --nodes=2 --ntasks=4 /bin/gorun -n 4 ./prog"},
		{"", 1, "a b", "salloc --nodelist=a,b --nodes=2 --ntasks=2 /bin/gorun -n 4 ./prog"},
		{"-N2 -n4", 1, "a b", "salloc -N2 -n4 --nodelist=a,b /bin/gorun -n 4 ./prog"},
		{"-w a,b,c", 4, "a b", "salloc -w a,b,c --ntasks=4 /bin/gorun -n 4 ./prog"},
		{"--nodelist=c", 0, "a b", "salloc --nodelist=c /bin/gorun -n 4 ./prog"},
	} {
		line := Salloc(strings.Fields(test.args), test.np, strings.Fields(test.nodes), "/bin/gorun", []string{"-n", "4", "./prog"})
		require.Equal(t, test.line, strings.Join(line, " "))
	}
}
