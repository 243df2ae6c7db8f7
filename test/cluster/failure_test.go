//go:build linux

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/test/cluster/run"
)

// TestRankFails has rank 2 of 6, on the second of three hosts, fail in several ways while the other
// ranks wait for it. gorun ends the other ranks, exits with the code for this failure, and prints
// how rank 2 ended, and the last lines that rank 2 wrote to stderr.
func TestRankFails(t *testing.T) {
	c := hosts(t)
	for _, test := range []struct {
		act   []string
		code  int
		how   string // how the rank ended, as gorun prints it
		state string
	}{
		{[]string{"exit", "2", "3"}, 3, "exited with code 3", "exited"},
		{[]string{"kill", "2"}, 137, `was killed by signal 9 \(SIGKILL\)`, "killed"},
		{[]string{"abort", "2", "7"}, 7, `called Abort \(exit code 7\)`, "exited"},
		{[]string{"leave", "2"}, 1, "exited without Finalize", "exited"},
	} {
		for _, radix := range []string{"64", "1"} {
			t.Run(strings.Join(test.act, " ")+" radix "+radix, func(t *testing.T) {
				t.Parallel()
				c := c.sub(t)
				args := append([]string{"-radix", radix, "-np", "6", run.Rank()}, test.act...)
				r := c.gorunOn("1:2,2:2,3:2", args...).Run(t)
				require.Equal(t, test.code, r.Code, r.Stderr)
				// gorun prints the rank's last lines, unless it has printed them shortly before.
				summary := fmt.Sprintf(`gorun: rank 2 %s: %s, pid \d+ on %s; the other 5 ranks were ended\n`, test.how, regexp.QuoteMeta(run.Rank()), c.name(2))
				if test.act[0] == "kill" {
					summary += `gorun: rank 2 last: Barrier 1 of world\n`
				}
				require.Regexp(t, fmt.Sprintf(`(?s)^(.*rank 2: last words 11\n.*%[1]s|.*%[1]sgorun: the last lines that rank 2 wrote to stderr:\n(gorun:   rank 2: last words \d+\n){10})\z`, summary), r.Stderr)

				failed := r.Report.Runs[0]
				require.Equal(t, test.code, r.Report.ExitCode)
				require.Equal(t, 2, *r.Report.Failure.Rank)
				require.Equal(t, c.name(2), r.Report.Failure.Host)
				require.Len(t, r.Report.Failure.Stderr, 10)
				require.Equal(t, "rank 2: last words 11", r.Report.Failure.Stderr[9])
				first := failed.Ranks[2]
				require.Equal(t, test.state, first.State)
				for _, rank := range failed.Ranks {
					require.NotNil(t, rank.Ended)
					if rank.Rank == 2 {
						continue
					}
					// A rank that calls Abort informs gorun, which then ends all ranks together.
					if test.act[0] != "abort" {
						assert.False(t, rank.Ended.Before(*first.Ended), "rank %d ended before", rank.Rank)
					}
					assert.Equal(t, "killed", rank.State)
				}
				assert.Less(t, failed.Ended.Sub(*first.Ended), 5*time.Second)
			})
		}
	}
}

// TestOthersFail has rank 2 fail while the other ranks wait for it. In the second job the other
// ranks exit with 91 as soon as they detect the failure, which may be before gorun detects it.
// gorun still reports rank 2, because a signal has killed it.
func TestOthersFail(t *testing.T) {
	c := hosts(t)
	r := c.gorunOn("1:2,2:2,3:2", "-np", "6", run.Rank(), "exit", "2", "3").Run(t)
	require.Equal(t, 3, r.Code, r.Stderr)
	r = c.gorunOn("1:2,2:2,3:2", "-np", "6", run.Rank(), "once", "2").Run(t)
	require.Equal(t, 137, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "gorun: rank 2 was killed by signal 9 (SIGKILL)")
}

// TestHostWithoutInit has all ranks of a host end without Init, while the ranks of another host run after
// Init and send no message. gorun notices that, names a rank that has ended, and ends the job.
func TestHostWithoutInit(t *testing.T) {
	c := hosts(t)
	r := c.gorunOn("1:2,2:2", "-np", "2", "true", ":", "-np", "2", run.Rank(), "wait").Run(t)
	require.Equal(t, 1, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "rank 0 ended without Init, which other ranks have called")
}

// waiting starts a job whose ranks sleep, and waits until all of them run. list is an argument of
// gorunOn.
func (c *cluster) waiting(t *testing.T, list string, ranks int, args ...string) *run.Process {
	t.Helper()
	args = append(args, "-np", fmt.Sprint(ranks), run.Rank(), "wait")
	p := c.gorunOn(list, args...).Start(t)
	p.AwaitStdout(ranks, `up on`)
	return p
}

// only returns the id of the process of host k that matches. There must be exactly one.
func (c *cluster) only(k int, match func(testbed.Process) bool) int {
	c.t.Helper()
	list := c.Hosts()[k-1].Processes(match)
	require.Len(c.t, list, 1)
	return list[0].PID
}

func kill(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// requireLost checks that the report says that gorun lost the host with this name: the ranks there are
// lost, the other ranks were killed, and the failure names the host.
func requireLost(t *testing.T, r run.Result, name string) {
	t.Helper()
	last := r.Report.Runs[0]
	require.Equal(t, "lost", last.Host(t, name).State)
	require.NotEmpty(t, last.Host(t, name).Cause)
	require.Equal(t, name, r.Report.Failure.Host)
	require.Nil(t, r.Report.Failure.Rank)
	for _, rank := range last.Ranks {
		if rank.Host == name {
			require.Equal(t, "lost", rank.State)
		} else {
			require.Equal(t, "killed", rank.State)
		}
	}
}

// TestAgentKilled kills an agent. The job ends, and gorun reports that it has lost the host. Before that,
// the test kills the agent's watchdog, the process that ends the ranks if the agent dies. In a testbed a
// watchdog sees the processes of all hosts, so it would also end the ranks of other hosts.
func TestAgentKilled(t *testing.T) {
	c := hosts(t)
	for _, radix := range []string{"64", "1"} {
		p := c.waiting(t, "1:2,2:2,3:2", 6, "-radix", radix)
		kill(t, c.only(3, run.Watchdog), c.only(3, agent))
		r := p.Wait()
		run.RequireLines(t, r, 1, c.name(3)+": .*")
		requireLost(t, r, c.name(3))
	}
	// If other agents are connected to gorun through the killed agent (-radix 1), gorun loses their
	// hosts too.
	p := c.waiting(t, "1:2,2:2,3:2", 6, "-radix", "1")
	kill(t, c.only(2, run.Watchdog), c.only(2, agent))
	run.RequireLines(t, p.Wait(), 1, c.name(2)+": .*; 1 host behind it cannot be reached any more either")

	// If the watchdog is not killed, it also ends the processes that the ranks have started.
	p = c.gorunOn("1:1,2:1", "-np", "2", "sh", "-c", "setsid sleep 1000 & echo up; wait").Start(t)
	p.AwaitStdout(2, "up\n")
	kill(t, c.only(2, agent))
	require.NotZero(t, p.Wait().Code)
}

// TestSSHKilled kills the ssh process by which gorun is connected to a host. The job ends, and gorun
// reports that it has lost the host.
func TestSSHKilled(t *testing.T) {
	c := hosts(t)
	p := c.waiting(t, "1:1,2:1,3:1", 3)
	var found int
	for _, pid := range run.Children(t, p.PID()) {
		if args := run.Args(pid); len(args) > 0 && args[0] == "ssh" && strings.Contains(strings.Join(args, " "), " -- "+c.name(2)+" ") {
			found = pid
		}
	}
	require.NotZero(t, found)
	kill(t, found)
	r := p.Wait()
	run.RequireLines(t, r, 1, c.name(2)+": ssh was ended by signal 9 .*")
	requireLost(t, r, c.name(2))
}

// TestGorunKilled kills gorun. All ranks and agents on the hosts end within ten seconds. Before that, the
// test kills gorun's watchdog, which in a testbed would see the processes of all hosts.
func TestGorunKilled(t *testing.T) {
	c := hosts(t)
	prog := run.Copy(t, run.Rank(), c.Private()+"/staged")
	for _, radix := range []string{"64", "1"} {
		p := c.gorunOn("1:2,2:2,3:2,4:1", "-radix", radix, "-stage", "-np", "7", prog, "wait").Start(t)
		p.AwaitStdout(7, "up on")
		run.KillWatchdog(t, p.PID())
		begun := time.Now()
		kill(t, p.PID())
		p.Wait()
		c.awaitGone(1, 2, 3, 4)
		require.Less(t, time.Since(begun), 10*time.Second)
	}
	// The agents also end processes of ranks that ignore SIGTERM or have left their process group.
	p := c.gorunOn("1:1,2:1", "-np", "2", "sh", "-c", "trap '' TERM HUP; setsid sleep 1000 & echo up; while :; do sleep 1; done").Start(t)
	p.AwaitStdout(2, "up\n")
	kill(t, p.PID())
	p.Wait()
	c.awaitGone(1, 2)
}

// awaitGone waits until no rank, agent or watchdog runs on the hosts.
func (c *cluster) awaitGone(hosts ...int) {
	c.t.Helper()
	for _, k := range hosts {
		run.Eventually(c.t, func() error {
			h := c.Hosts()[k-1]
			left := append(h.Processes(isRank("")), h.Processes(agent)...)
			if left = append(left, h.Processes(run.Watchdog)...); len(left) > 0 {
				return fmt.Errorf("%s: left: %v", h.Name(), left)
			}
			return nil
		})
	}
}

// TestCut cuts hosts off the network while a job runs. gorun reports one of these hosts, and the
// ranks and agents end on all hosts, also on those that are cut off.
func TestCut(t *testing.T) {
	c := hosts(t)
	for _, test := range []struct {
		name  string
		radix string
		cut   []int
		says  []string
	}{
		{"deep", "1", []int{4}, []string{c.name(4) + ": no sign of life for 1s"}},
		{"inner", "1", []int{2}, []string{c.name(2) + ": no sign of life for 1s; 2 hosts behind it cannot be reached any more either"}},
		{"two at once", "64", []int{2, 4}, []string{"w.*n[24]: no sign of life for 1s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := c.sub(t)
			p := c.waiting(t, "1:2,2:2,3:2,4:2", 8, "-radix", test.radix, "-heartbeat", "1s")
			for _, k := range test.cut {
				c.Hosts()[k-1].Cut()
			}
			begun := time.Now()
			r := p.Wait()
			run.RequireLines(t, r, 1, test.says...)
			for _, k := range test.cut {
				require.Equal(t, "lost", r.Report.Runs[0].Host(t, c.name(k)).State)
			}
			c.awaitGone(test.cut...)
			require.Less(t, time.Since(begun), 10*time.Second)
			for _, k := range test.cut {
				c.Hosts()[k-1].Join()
			}
			c.awaitGone(1, 2, 3, 4)
		})
	}
}

// TestCutEarly cuts a host off the network before gorun has started the ranks. gorun reports the host and
// exits with 1.
func TestCutEarly(t *testing.T) {
	c := hosts(t)
	// Cut host 2 off when its agent runs, while gorun still waits for host 3: the ssh to host 3
	// waits for the file flag.
	flag := filepath.Join(t.TempDir(), "flag")
	ssh := filepath.Join(t.TempDir(), "ssh")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *' -- %s '*) until [ -e %s ]; do sleep 0.02; done;; esac\nexec %s \"$@\"\n", c.name(3), flag, c.SSH())
	require.NoError(t, os.WriteFile(ssh, []byte(script), 0o755))
	p := run.Command{Args: []string{"-v", "-ssh", ssh, "-host", c.list("1:1,2:1,3:1"), "-heartbeat", "500ms", "-connect-timeout", "10s", "-np", "3", "sleep", "1000"}}.Start(t)
	p.AwaitStderr(2, "the agent is process")
	// An agent that has no job yet waits for it for a minute. It starts its watchdog when it has the job.
	run.Eventually(t, func() error {
		if len(c.Hosts()[1].Processes(run.Watchdog)) == 0 {
			return errors.New("the agent of host 2 has no watchdog")
		}
		return nil
	})
	c.Hosts()[1].Cut()
	c.awaitGone(2)
	require.NoError(t, os.WriteFile(flag, nil, 0o600))
	r := p.Wait()
	require.Equal(t, 1, r.Code, r.Stderr)
	// The time is 10s if the agent sent nothing after its greeting.
	require.Regexp(t, "gorun: "+c.name(2)+": no sign of life for (500ms|10s)\n", r.Stderr)
	require.NotEqual(t, "up", r.Report.Runs[0].Host(t, c.name(2)).State)

	// Host 2 is still cut off, so it does not answer the next gorun at all.
	r = c.gorunOn("1:1,2:1", "-connect-timeout", "1s", "-np", "2", "true").Run(t)
	run.RequireLines(t, r, 1, c.name(2)+": .*")
}
