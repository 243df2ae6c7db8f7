//go:build linux

package cluster

import (
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

// TestRankFails has rank 2 of 6, on the second of three hosts, fail while the others
// wait for it.
func TestRankFails(t *testing.T) {
	b := hosts(t)
	for _, test := range []struct {
		act   []string
		code  int
		how   string // it ended
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
				b := b.with(t)
				args := append([]string{"-radix", radix, "-np", "6", run.Rank()}, test.act...)
				r := b.on("1:2,2:2,3:2", args...).Run(t)
				require.Equal(t, test.code, r.Code, r.Stderr)
				// The last words are not said again if they stand not far above.
				summary := fmt.Sprintf(`gorun: rank 2 %s: %s, pid \d+ on %s; the other 5 ranks were ended\n`, test.how, regexp.QuoteMeta(run.Rank()), b.name(2))
				require.Regexp(t, fmt.Sprintf(`(?s)^(.*rank 2: last words 11\n.*%[1]s|.*%[1]sgorun: the last lines that rank 2 wrote to stderr:\n(gorun:   rank 2: last words \d+\n){10})\z`, summary), r.Stderr)

				failed := r.Report.Runs[0]
				require.Equal(t, test.code, r.Report.ExitCode)
				require.Equal(t, 2, *r.Report.Failure.Rank)
				require.Equal(t, b.name(2), r.Report.Failure.Host)
				require.Len(t, r.Report.Failure.Stderr, 10)
				require.Equal(t, "rank 2: last words 11", r.Report.Failure.Stderr[9])
				first := failed.Ranks[2]
				require.Equal(t, test.state, first.State)
				for _, rank := range failed.Ranks {
					require.NotNil(t, rank.Ended)
					if rank.Rank == 2 {
						continue
					}
					if test.act[0] != "abort" { // who aborts tells gorun, and ends when the others do
						assert.False(t, rank.Ended.Before(*first.Ended), "rank %d ended before", rank.Rank)
					}
					assert.Equal(t, "killed", rank.State)
				}
				assert.Less(t, failed.Ended.Sub(*first.Ended), 5*time.Second)
			})
		}
	}
}

// TestOthersFail has the others leave as soon as they hear of rank 2's end, which may
// be before gorun does. Of ranks that leave by themselves the first that is heard of is
// named where clocks cannot tell; one that is killed is a cause all the same.
func TestOthersFail(t *testing.T) {
	b := hosts(t)
	r := b.on("1:2,2:2,3:2", "-np", "6", run.Rank(), "exit", "2", "3").Run(t)
	require.Contains(t, []int{3, 91}, r.Code, r.Stderr)
	r = b.on("1:2,2:2,3:2", "-np", "6", run.Rank(), "once", "2").Run(t)
	require.Equal(t, 137, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "gorun: rank 2 was killed by signal 9 (SIGKILL)")
}

// waiting is a job that does nothing, when all its ranks are there.
func (b *bed) waiting(t *testing.T, list string, ranks int, args ...string) *run.Process {
	t.Helper()
	args = append(args, "-np", fmt.Sprint(ranks), run.Rank(), "wait")
	p := b.on(list, args...).Start(t)
	p.AwaitStdout(ranks, `up on`)
	return p
}

// only is the process of a host that matches.
func (b *bed) only(k int, match func(testbed.Process) bool) int {
	b.t.Helper()
	list := b.Hosts()[k-1].Processes(match)
	require.Len(b.t, list, 1)
	return list[0].PID
}

func kill(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// told checks a job that has lost a host: one line says so, and nothing else.
func told(t *testing.T, r run.Result, lines ...string) {
	t.Helper()
	require.Equal(t, 1, r.Code, r.Stderr)
	var said []string
	for line := range strings.Lines(r.Stderr) {
		if strings.HasPrefix(line, "gorun: ") {
			said = append(said, line)
		}
	}
	require.Len(t, said, len(lines), r.Stderr)
	for i, pattern := range lines {
		require.Regexp(t, "^gorun: "+pattern+"\n$", said[i])
	}
}

// lost checks a report on a host that was lost.
func lost(t *testing.T, r run.Result, name string) {
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

// TestAgentKilled kills an agent. Its watchdog, which sees the processes of all hosts
// here, is killed before.
func TestAgentKilled(t *testing.T) {
	b := hosts(t)
	for _, radix := range []string{"64", "1"} {
		p := b.waiting(t, "1:2,2:2,3:2", 6, "-radix", radix)
		kill(t, b.only(3, watchdog), b.only(3, agent))
		r := p.Wait()
		told(t, r, b.name(3)+": .*")
		lost(t, r, b.name(3))
	}
	// In the midst of the tree: what is behind it is lost, too.
	p := b.waiting(t, "1:2,2:2,3:2", 6, "-radix", "1")
	kill(t, b.only(2, watchdog), b.only(2, agent))
	told(t, p.Wait(), b.name(2)+": .*; 1 host behind it cannot be reached any more either")

	// With its watchdog nothing is left either of what ranks have started.
	p = b.on("1:1,2:1", "-np", "2", "sh", "-c", "setsid sleep 1000 & echo up; wait").Start(t)
	p.AwaitStdout(2, "up\n")
	kill(t, b.only(2, agent))
	require.NotZero(t, p.Wait().Code)
}

// TestSSHKilled kills the ssh that leads to a host.
func TestSSHKilled(t *testing.T) {
	b := hosts(t)
	p := b.waiting(t, "1:1,2:1,3:1", 3)
	var found int
	for _, pid := range run.Children(t, p.PID()) {
		if args := run.Args(pid); len(args) > 0 && args[0] == "ssh" && strings.Contains(strings.Join(args, " "), " -- "+b.name(2)+" ") {
			found = pid
		}
	}
	require.NotZero(t, found)
	kill(t, found)
	r := p.Wait()
	told(t, r, b.name(2)+": ssh was ended by signal 9 .*")
	lost(t, r, b.name(2))
}

// TestGorunKilled kills gorun, and before it its watchdog, which sees the processes of
// all hosts here.
func TestGorunKilled(t *testing.T) {
	b := hosts(t)
	prog := run.Copy(t, run.Rank(), b.Private()+"/staged")
	for _, radix := range []string{"64", "1"} {
		p := b.on("1:2,2:2,3:2,4:1", "-radix", radix, "-stage", "-np", "7", prog, "wait").Start(t)
		p.AwaitStdout(7, "up on")
		for _, pid := range run.Children(t, p.PID()) {
			if args := run.Args(pid); len(args) == 1 && args[0] == "gorun-watchdog" {
				kill(t, pid)
			}
		}
		begun := time.Now()
		kill(t, p.PID())
		p.Wait()
		b.gone(1, 2, 3, 4)
		require.Less(t, time.Since(begun), 10*time.Second)
	}
	// What ignores SIGTERM and has left its group goes, too, by the agents' hands.
	p := b.on("1:1,2:1", "-np", "2", "sh", "-c", "trap '' TERM HUP; setsid sleep 1000 & echo up; while :; do sleep 1; done").Start(t)
	p.AwaitStdout(2, "up\n")
	kill(t, p.PID())
	p.Wait()
	b.gone(1, 2)
}

// gone waits until no rank and no agent is left in hosts.
func (b *bed) gone(hosts ...int) {
	b.t.Helper()
	for _, k := range hosts {
		run.Eventually(b.t, func() error {
			h := b.Hosts()[k-1]
			left := append(h.Processes(isRank("")), h.Processes(agent)...)
			if left = append(left, h.Processes(watchdog)...); len(left) > 0 {
				return fmt.Errorf("%s: left: %v", h.Name(), left)
			}
			return nil
		})
	}
}

// TestCut cuts hosts off in the midst of a job.
func TestCut(t *testing.T) {
	b := hosts(t)
	for _, test := range []struct {
		name  string
		radix string
		cut   []int
		says  []string
	}{
		{"deep", "1", []int{4}, []string{b.name(4) + ": no sign of life for 1s"}},
		{"inner", "1", []int{2}, []string{b.name(2) + ": no sign of life for 1s; 2 hosts behind it cannot be reached any more either"}},
		{"two at once", "64", []int{2, 4}, []string{"w.*n[24]: no sign of life for 1s"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := b.with(t)
			p := b.waiting(t, "1:2,2:2,3:2,4:2", 8, "-radix", test.radix, "-heartbeat", "1s")
			for _, k := range test.cut {
				b.Hosts()[k-1].Cut()
			}
			begun := time.Now()
			r := p.Wait()
			told(t, r, test.says...)
			for _, k := range test.cut {
				require.Equal(t, "lost", r.Report.Runs[0].Host(t, b.name(k)).State)
			}
			b.gone(test.cut...)
			require.Less(t, time.Since(begun), 10*time.Second)
			for _, k := range test.cut {
				b.Hosts()[k-1].Join()
			}
			b.gone(1, 2, 3, 4)
		})
	}
}

// TestCutEarly cuts a host off before its ranks are started.
func TestCutEarly(t *testing.T) {
	b := hosts(t)
	// Its agent is up when it is lost, while another host is still to answer.
	flag := filepath.Join(t.TempDir(), "flag")
	ssh := filepath.Join(t.TempDir(), "ssh")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$*\" in *' -- %s '*) until [ -e %s ]; do sleep 0.02; done;; esac\nexec %s \"$@\"\n", b.name(3), flag, b.SSH())
	require.NoError(t, os.WriteFile(ssh, []byte(script), 0o755))
	p := run.Command{Args: []string{"-v", "-ssh", ssh, "-host", b.list("1:1,2:1,3:1"), "-heartbeat", "500ms", "-connect-timeout", "2s", "-np", "3", "sleep", "1000"}}.Start(t)
	p.AwaitStderr(2, "the agent is process")
	b.Hosts()[1].Cut()
	b.gone(2)
	require.NoError(t, os.WriteFile(flag, nil, 0o600))
	r := p.Wait()
	require.Equal(t, 1, r.Code, r.Stderr)
	require.Regexp(t, "gorun: "+b.name(2)+": no sign of life for (500ms|2s)\n", r.Stderr) // the latter, where nothing came after its greeting
	require.NotEqual(t, "up", r.Report.Runs[0].Host(t, b.name(2)).State)

	// It does not answer at all.
	r = b.on("1:1,2:1", "-connect-timeout", "1s", "-np", "2", "true").Run(t)
	told(t, r, b.name(2)+": .*")
}
