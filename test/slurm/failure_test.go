package slurm

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

const cancelled = `ended by Slurm: slurmstepd\S*: error: \*\*\* STEP \d+\.0 ON \S+ CANCELLED AT \S+`

// TestCancelled has Slurm end a job, in all of its ways.
func TestCancelled(t *testing.T) {
	b := slurm(t)
	for _, test := range []struct {
		name string
		end  func(job string)
		says string
	}{
		{"job", func(job string) { b.tool("scancel", job) }, cancelled + ` \*\*\*`},
		{"step", func(job string) { b.tool("scancel", job+".0") }, cancelled + ` \*\*\*`},
		{"term", func(job string) { b.tool("scancel", "--signal=TERM", job+".0") }, cancelled + ` \*\*\*`},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := b.waiting(3)
			since := time.Now()
			test.end(b.job())
			r := p.Wait()
			told(t, r, 143, test.says)
			b.gone(since, 1, 2, 3)
			require.Equal(t, 143, r.Report.Runs[0].Failure.ExitCode)
		})
	}
	t.Run("restart", func(t *testing.T) { // it is not what the user wants
		p := b.waiting(2, "-on-failure", "restart")
		b.tool("scancel", b.job())
		told(t, p.Wait(), 143, cancelled+` \*\*\*`)
	})
	t.Run("batch", func(t *testing.T) {
		id, file := b.submit("-N2 --ntasks-per-node=2", "exec "+run.Program("gorun")+" "+run.Rank()+" wait")
		text := func() string { out, _ := os.ReadFile(file); return string(out) }
		run.Eventually(t, func() error {
			if n := strings.Count(text(), " up on "); n < 4 {
				return fmt.Errorf("%d ranks are up", n)
			}
			return nil
		})
		since := time.Now()
		b.tool("scancel", id)
		b.gone(since, 1, 2)
		require.Regexp(t, `(?m)^gorun: ended by .*(SIGTERM|CANCELLED AT)`, text())
	})
}

// TestTimeLimit lets the limit of a job pass. Slurm looks after limits every half a
// minute.
func TestTimeLimit(t *testing.T) {
	b := slurm(t)
	p := b.waiting(2)
	b.tool("scontrol", "update", "JobId="+b.job(), "EndTime=now+1")
	run.Eventually(t, func() error {
		if p.Running() {
			return fmt.Errorf("it runs")
		}
		return nil
	})
	told(t, p.Wait(), 143, cancelled+` DUE TO TIME LIMIT \*\*\*`)
}

// TestGrace has ranks that clean up when Slurm ends them.
func TestGrace(t *testing.T) {
	b := slurm(t)
	p := b.salloc("-N2 -n2", "-grace", "20s", "sh", "-c", "exec 2>/dev/null; trap 'sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done").Start(t)
	p.AwaitStdout(2, "up\n")
	b.tool("scancel", b.job())
	r := p.Wait()
	require.Equal(t, 2, strings.Count(r.Stdout, "saved\n"), "%s%s", r.Stdout, r.Stderr)
}

// TestKilled kills what a job is made of.
func TestKilled(t *testing.T) {
	b := slurm(t)
	t.Run("agent", func(t *testing.T) {
		p := b.waiting(3)
		since := time.Now()
		b.killAgent(2)
		r := p.Wait()
		told(t, r, 1, b.name(2)+": srun: error: "+b.name(2)+": task 1: Killed")
		b.gone(since, 1, 2, 3)
		require.Equal(t, "lost", r.Report.Runs[0].Host(t, b.name(2)).State)
		require.Equal(t, "up", r.Report.Runs[0].Host(t, b.name(3)).State)
	})
	t.Run("srun", func(t *testing.T) { // it has done what it was for
		p := b.salloc("-N2 -n2", "sh", "-c", "echo up; sleep 1; echo on").Start(t)
		p.AwaitStdout(2, "up\n")
		var srun int
		for _, pid := range run.Children(t, b.gorunOf(p)) {
			if args := run.Args(pid); len(args) > 0 && args[0] == "srun" {
				srun = pid
			}
		}
		require.NotZero(t, srun)
		since := time.Now()
		require.NoError(t, syscall.Kill(srun, syscall.SIGKILL))
		r := p.Wait()
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, 2, strings.Count(r.Stdout, "on\n"), r.Stdout)
		b.gone(since, 1, 2)
	})
	t.Run("gorun", func(t *testing.T) {
		p := b.waiting(3)
		pid := b.gorunOf(p)
		for _, child := range run.Children(t, pid) { // which sees the processes of all hosts here
			if args := run.Args(child); len(args) == 1 && args[0] == "gorun-watchdog" {
				require.NoError(t, syscall.Kill(child, syscall.SIGKILL))
			}
		}
		since := time.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		p.Wait()
		b.gone(since, 1, 2, 3)
	})
	t.Run("rank", func(t *testing.T) {
		r := b.salloc("-N2 --ntasks-per-node=2", run.Rank(), "kill", "3").Run(t)
		require.Equal(t, 137, r.Code)
		require.Regexp(t, `(?m)^gorun: rank 3 was killed by signal 9 \(SIGKILL\): \S+, pid \d+ on `+b.name(2)+"; the other 3 ranks were ended$", r.Stderr)
	})
}

// gorunOf is the gorun that salloc has started.
func (b *bed) gorunOf(p *run.Process) int {
	b.t.Helper()
	for _, pid := range run.Children(b.t, p.PID()) {
		if args := run.Args(pid); len(args) > 0 && args[0] == run.Program("gorun") {
			return pid
		}
	}
	b.t.Fatal("salloc has no gorun")
	return 0
}

// TestNodeFails cuts a node off.
func TestNodeFails(t *testing.T) {
	b := slurm(t)
	p := b.waiting(3, "-heartbeat", "500ms")
	since := time.Now()
	b.Hosts()[2].Cut()
	r := p.Wait()
	told(t, r, 1, b.name(3)+": .*")
	b.gone(since, 1, 2, 3)
	b.Hosts()[2].Join()
}

// TestNotify goes on without ranks, and without an agent.
func TestNotify(t *testing.T) {
	b := slurm(t)
	p := b.salloc("-N3 --ntasks-per-node=2", "-on-failure", "notify", run.Rank(), "notify", "2").Start(t)
	p.AwaitStdout(6, `(?m)^rank \d up$`)
	b.killAgent(2)
	r := p.Wait()
	told(t, r, 0, b.name(2)+": srun: error: "+b.name(2)+": task 1: Killed; the others go on without the 2 ranks there")
	require.Len(t, regexp.MustCompile(`(?m)^rank \d goes on as \d of 4$`).FindAllString(r.Stdout, -1), 4, r.Stdout)
}

// TestRestart begins anew after a rank has failed, and without a host whose agent has
// been killed.
func TestRestart(t *testing.T) {
	b := slurm(t)
	r := b.salloc("-N2 --ntasks-per-node=2", "-on-failure", "restart", run.Rank(), "once", "3").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, r.Report.Runs, 2)
	require.Len(t, regexp.MustCompile(`(?m)^rank \d up on \S+ epoch 1$`).FindAllString(r.Stdout, -1), 4, r.Stdout)

	p := b.salloc("-N3 --ntasks-per-node=2", "-on-failure", "restart", "-np", "4",
		"sh", "-c", `echo is on $(hostname) epoch $WEFT_EPOCH; [ $WEFT_EPOCH != 0 ] || exec sleep 1000`).Start(t)
	p.AwaitStdout(4, "epoch 0")
	b.killAgent(2)
	r = p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, r.Report.Runs, 2)
	require.Equal(t, "1:2,3:2", b.where(strings.Join(regexp.MustCompile(`.*epoch 1\n`).FindAllString(r.Stdout, -1), "")), r.Stdout)
}
