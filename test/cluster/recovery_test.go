//go:build linux

package cluster

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

// rankOf returns the process id of a running rank.
func (c *cluster) rankOf(rank int) int {
	c.t.Helper()
	for k := range c.Hosts() {
		if list := c.Hosts()[k].Processes(isRank(fmt.Sprint(rank))); len(list) > 0 {
			return list[0].PID
		}
	}
	c.t.Fatalf("rank %d is on no host", rank)
	return 0
}

// TestNotify kills ranks of a job with -on-failure notify, one after the other. The other ranks go on, and
// gorun exits with 0.
func TestNotify(t *testing.T) {
	c := hosts(t)
	for _, radix := range []string{"64", "1"} {
		p := c.gorunOn("1:2,2:2,3:2", "-on-failure", "notify", "-radix", radix, "-np", "6", run.Rank(), "notify", "2").Start(t)
		p.AwaitStdout(6, "up\n")
		kill(t, c.rankOf(3))
		p.AwaitStderr(1, `gorun: rank 3 was killed by signal 9 \(SIGKILL\): .* on `+c.name(2)+"; the others go on without it\n")
		kill(t, c.rankOf(5))
		r := p.Wait()
		require.Zero(t, r.Code, r.Stderr)
		for i, rank := range []int{0, 1, 2, 4} {
			require.Contains(t, r.Stdout, fmt.Sprintf("rank %d goes on as %d of 4\n", rank, i))
		}
		require.Equal(t, 2, strings.Count(r.Stderr, "\n"), r.Stderr)
		require.Nil(t, r.Report.Failure)
		for _, rank := range r.Report.Runs[0].Ranks {
			require.Equal(t, rank.Rank == 3 || rank.Rank == 5, rank.Failed)
			require.Equal(t, map[bool]string{true: "killed", false: "exited"}[rank.Failed], rank.State)
		}
	}
}

// TestNotifyOfHosts cuts a host off the network, or kills its agent, in a job with -on-failure notify.
// The ranks of the other hosts go on, and gorun exits with 0.
func TestNotifyOfHosts(t *testing.T) {
	c := hosts(t)
	for _, how := range []string{"cut", "agent"} {
		p := c.gorunOn("1:2,2:2,3:2", "-on-failure", "notify", "-heartbeat", "1s", "-np", "6", run.Rank(), "notify", "2").Start(t)
		p.AwaitStdout(6, "up\n")
		if how == "cut" {
			c.Hosts()[1].Cut()
		} else {
			kill(t, c.only(2, run.Watchdog), c.only(2, agent))
		}
		r := p.Wait()
		require.Zero(t, r.Code, r.Stderr)
		for i, rank := range []int{0, 1, 4, 5} {
			require.Contains(t, r.Stdout, fmt.Sprintf("rank %d goes on as %d of 4\n", rank, i))
		}
		require.Regexp(t, "^gorun: "+c.name(2)+": .*; the others go on without the 2 ranks there\n$", r.Stderr)
		require.Equal(t, "lost", r.Report.Runs[0].Host(t, c.name(2)).State)
		c.awaitGone(2)
		if how == "cut" {
			c.Hosts()[1].Join()
		}
	}
}

// TestNotifyCodes runs jobs with -on-failure notify in which a rank kills itself. gorun exits with
// 0 if all other ranks do, and otherwise with the code of one that does not. If all ranks have
// failed, gorun exits with the code for the failure.
func TestNotifyCodes(t *testing.T) {
	c := hosts(t)
	const script = `case $PMI_RANK in 0) kill -KILL $$;; 2) exit %d;; esac`
	for code, want := range map[int]int{0: 0, 4: 4} {
		r := c.gorunOn("1:2,2:2", "-on-failure", "notify", "-np", "4", "sh", "-c", fmt.Sprintf(script, code)).Run(t)
		require.Equal(t, want, r.Code, r.Stderr)
	}
	r := c.gorunOn("1:1,2:1", "-on-failure", "notify", "-np", "2", "sh", "-c", "kill -KILL $$").Run(t)
	require.Equal(t, 137, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "gorun: every rank has failed\n")
}

// TestRestart runs jobs with -on-failure restart. In the first job a rank kills itself, gorun starts the
// job again, and the second run succeeds. In the second job a rank fails in every run, and gorun gives up
// after -max-restarts.
func TestRestart(t *testing.T) {
	c := hosts(t)
	r := c.gorunOn("1:2,2:2", "-on-failure", "restart", "-np", "4", run.Rank(), "once", "2").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Equal(t, 4, strings.Count(r.Stdout, "epoch 1\n"))
	require.Contains(t, r.Stderr, "gorun: rank 2 was killed by signal 9 (SIGKILL)")
	require.Contains(t, r.Stderr, "gorun: starting again: restart 1 of at most 3\n")
	require.Len(t, r.Report.Runs, 2)
	assert.Nil(t, r.Report.Failure)
	assert.Zero(t, r.Report.ExitCode)
	for epoch, started := range r.Report.Runs {
		assert.Equal(t, epoch, started.Epoch)
		assert.Equal(t, epoch == 0, started.Failure != nil)
	}
	assert.NotEqual(t, r.Report.Runs[0].JobID, r.Report.Runs[1].JobID)

	r = c.gorunOn("1:1,2:1", "-on-failure", "restart", "-max-restarts", "2", "-np", "2", "sh", "-c", "echo epoch $WEFT_EPOCH; [ $PMI_RANK = 0 ] || exit 5; sleep 1000").Run(t)
	require.Equal(t, 5, r.Code, r.Stderr)
	require.Len(t, r.Report.Runs, 3)
	for epoch := range 3 {
		require.Contains(t, r.Stdout, fmt.Sprintf("epoch %d\n", epoch))
	}
	require.Equal(t, 2, strings.Count(r.Stderr, "gorun: starting again: "))
	require.Equal(t, 5, r.Report.Failure.ExitCode)
}

// TestRestartElsewhere cuts off one host of a job with -on-failure restart, and then kills the agent of
// another. Each time gorun starts the job again on the hosts that are left.
func TestRestartElsewhere(t *testing.T) {
	c := hosts(t)
	p := c.gorunOn("1:2,2:2,3:2,4:2", "-on-failure", "restart", "-heartbeat", "1s", "-np", "4", run.Rank(), "until", "2").Start(t)
	p.AwaitStdout(4, "epoch 0\n")
	c.Hosts()[1].Cut()
	p.AwaitStdout(4, "epoch 1\n")
	kill(t, c.only(3, run.Watchdog), c.only(3, agent))
	r := p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "gorun: starting again: restart 1 of at most 3, without 1 host\n")
	require.Contains(t, r.Stderr, "gorun: starting again: restart 2 of at most 3, without 2 hosts\n")
	require.Len(t, r.Report.Runs, 3)
	for epoch, left := range []string{"1 1 2 2", "1 1 3 3", "1 1 4 4"} {
		for i, k := range strings.Fields(left) {
			require.Equal(t, c.name(int(k[0]-'0')), r.Report.Runs[epoch].Ranks[i].Host)
		}
	}
	c.awaitGone(2)
	c.Hosts()[1].Join()

	// With -strict, gorun does not start the ranks again if the hosts that are left have too few slots.
	// The report counts the attempt as a second run.
	p = c.gorunOn("1:1,2:1", "-on-failure", "restart", "-strict", "-np", "2", run.Rank(), "wait").Start(t)
	p.AwaitStdout(2, "up on")
	kill(t, c.only(2, run.Watchdog), c.only(2, agent))
	r = p.Wait()
	require.NotZero(t, r.Code, r.Stderr)
	require.Len(t, r.Report.Runs, 2)
	require.Contains(t, r.Stderr, "gorun: 2 ranks do not fit into the 1 slot of "+c.name(1)+"\n")
}
