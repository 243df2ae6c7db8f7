//go:build linux

package cluster

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

// TestSignals sends signals to gorun. gorun forwards them to the ranks on all hosts, and exits with the
// right code.
func TestSignals(t *testing.T) {
	c := hosts(t)
	for _, test := range []struct {
		name   string
		signal syscall.Signal
		rank   []string
		code   int
		caught int // number of ranks that print the signal
		says   string
	}{
		{"int", syscall.SIGINT, []string{"sh", "-c", "echo up; exec sleep 1000"}, 130, 0, `^gorun: ended by signal 2 \(SIGINT\)\n$`},
		{"term", syscall.SIGTERM, []string{"sh", "-c", "echo up; exec sleep 1000"}, 143, 0, `^gorun: ended by signal 15 \(SIGTERM\)\n$`},
		{"hup", syscall.SIGHUP, []string{run.Rank(), "catch"}, 0, 6, `^$`},
		{"int trapped", syscall.SIGINT, []string{run.Rank(), "catch"}, 0, 6, `^$`},
		{"term trapped", syscall.SIGTERM, []string{run.Rank(), "catch"}, 0, 6, `^$`},
		{"usr1", syscall.SIGUSR1, []string{run.Rank(), "catch"}, 0, 6, `^$`},
		{"usr2", syscall.SIGUSR2, []string{run.Rank(), "catch"}, 0, 6, `^$`},
		{"quit", syscall.SIGQUIT, []string{run.Rank(), "catch"}, 0, 6, `^$`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := c.sub(t)
			p := c.gorunOn("1:2,2:2,3:2", append([]string{"-radix", "2", "-np", "6"}, test.rank...)...).Start(t)
			p.AwaitStdout(6, "up\n")
			p.Signal(test.signal)
			r := p.Wait()
			require.Equal(t, test.code, r.Code, r.Stderr)
			require.Equal(t, test.caught, strings.Count(r.Stdout, "caught "+test.signal.String()+"\n"))
			require.Regexp(t, test.says, r.Stderr)
			require.Equal(t, test.code, r.Report.ExitCode)
			if test.code != 0 {
				require.NotNil(t, r.Report.Failure)
			}
		})
	}
}

// TestSecondInterrupt sends SIGINT twice to a gorun whose ranks catch the signal and go on. After the
// second SIGINT, gorun kills the ranks.
func TestSecondInterrupt(t *testing.T) {
	c := hosts(t)
	p := c.gorunOn("1:1,2:1,3:2", "-np", "4", "-grace", "1m", run.Rank(), "catch-all").Start(t)
	p.AwaitStdout(4, "up\n")
	p.Signal(syscall.SIGINT)
	p.AwaitStdout(4, "caught interrupt\n")
	p.Signal(syscall.SIGINT)
	r := p.Wait()
	require.Equal(t, 130, r.Code, r.Stderr)
	for _, rank := range r.Report.Runs[0].Ranks {
		require.Equal(t, "SIGKILL", rank.Signal)
	}

	// If gorun still waits for a host, the first SIGINT ends the job.
	p = run.Command{Args: []string{"-ssh", c.SSH(), "-host", c.name(1) + "," + c.BlackHole(), "-np", "2", "-v", "sleep", "1000"}}.Start(t)
	p.AwaitStderr(1, c.name(1)+": the agent is process")
	p.Signal(syscall.SIGINT)
	r = p.Wait()
	require.Equal(t, 130, r.Code, r.Stderr)
}

// state returns the letter of a process's state (see proc_pid_stat(5)), or "" if the process has ended.
func state(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:min(1, len(rest))]
}

// TestSuspend suspends a job by SIGTSTP for longer than the time-out of heartbeats, and lets it continue by
// SIGCONT. All ranks stop and continue, and the job does not fail.
func TestSuspend(t *testing.T) {
	// A shell is in state D if its child was stopped between vfork(2) and execve(2).
	stopped := func(state string) bool { return state == "T" || state == "D" }
	c := hosts(t)
	const heartbeat = 500 * time.Millisecond
	p := c.gorunOn("1:1,2:2", "-radix", "1", "-heartbeat", heartbeat.String(), "-np", "3", "sh", "-c", "echo pid $$; while :; do read line </proc/uptime; echo beat; sleep 0.02; done").Start(t)
	p.AwaitStdout(3, `pid \d+\n`)
	p.AwaitStdout(10, "beat\n")
	// The ids that the shells print. In /proc, a forked child looks like a shell until it executes
	// sleep.
	var pids []int
	for _, m := range regexp.MustCompile(`pid (\d+)\n`).FindAllStringSubmatch(p.Stdout(), -1) {
		pid, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		pids = append(pids, pid)
	}
	require.Len(t, pids, 3)
	p.Signal(syscall.SIGTSTP)
	for _, pid := range append(pids, p.PID()) {
		run.Eventually(t, func() error {
			if s := state(pid); !stopped(s) {
				return fmt.Errorf("process %d is in state %s, not stopped", pid, s)
			}
			return nil
		})
	}
	time.Sleep(4 * heartbeat) // the job must not fail meanwhile
	require.True(t, p.Running())
	for _, pid := range pids {
		if s := state(pid); !stopped(s) {
			p.Signal(syscall.SIGCONT)
			t.Fatalf("process %d of %v is in state %q, not stopped: %s", pid, pids, s, p.Wait().Stderr)
		}
	}
	p.Signal(syscall.SIGCONT)
	beats := strings.Count(p.Stdout(), "beat\n")
	// So many that all ranks must have written, because each writes one in 20 ms.
	p.AwaitStdout(beats+30, "beat\n")
	time.Sleep(2 * heartbeat) // a heartbeat that counted the time of the stop would fail by now
	require.True(t, p.Running())
	for _, pid := range pids {
		require.NotEqual(t, "T", state(pid), "process %d", pid)
	}
	p.Signal(syscall.SIGTERM)
	r := p.Wait()
	require.Equal(t, 143, r.Code, r.Stderr)
	require.Equal(t, "gorun: ended by signal 15 (SIGTERM)\n", r.Stderr)
}

// TestTimeout runs gorun with -timeout: a job that takes too long, and a job with a host that does not
// answer. gorun ends the job and exits with 124. If the ranks ran, it prints what they did.
func TestTimeout(t *testing.T) {
	c := hosts(t)
	r := c.gorunOn("1:2,2:2", "-timeout", "2s", "-grace", "100ms", "-np", "4", run.Rank(), "catch-all").Run(t)
	require.Equal(t, 124, r.Code, r.Stderr)
	require.Regexp(t, `^gorun: after 2s, its timeout, the job does this:\ngorun:   4 ranks \(0-3\): not in comm: .*\ngorun: the job ran longer than its timeout of 2s\n$`, r.Stderr)
	require.Equal(t, 4, strings.Count(r.Stdout, "caught terminated\n"))
	require.Equal(t, 124, r.Report.ExitCode)
	require.Nil(t, r.Report.Failure.Rank)
	for _, rank := range r.Report.Runs[0].Ranks {
		require.Equal(t, "killed", rank.State, strconv.Itoa(rank.Rank))
	}
	r = run.Gorun(t, "-ssh", c.SSH(), "-host", c.name(1)+","+c.BlackHole(), "-np", "2", "-timeout", "1s", "true")
	require.Equal(t, 124, r.Code, r.Stderr)
	require.Equal(t, "gorun: the job ran longer than its timeout of 1s, while it waited for hosts to answer\n", r.Stderr)
}
