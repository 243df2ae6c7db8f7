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

// cancelled is what gorun says; Slurm ends hosts one after the other, and does not
// always come to say why.
const cancelled = `ended by Slurm: (slurmstepd\S*: error: \*\*\* STEP \d+\.0 ON \S+ CANCELLED AT .*\*\*\*|agent on \S+: it was asked to end, by SIGTERM)`

// TestEnds ends jobs in all of its ways. One on the last host meanwhile comes to its
// limit of time, after which Slurm looks every half a minute.
func TestEnds(t *testing.T) {
	b := slurm(t)
	p := b.salloc("-n2 -w "+b.name(4), run.Rank(), "wait").Start(t)
	p.AwaitStdout(2, "up on")
	b.tool("scontrol", "update", "JobId="+b.jobOn(4), "EndTime=now+1")
	for name, test := range map[string]func(*testing.T, *bed){"cancelled": cancel, "grace": grace, "killed": kill} {
		t.Run(name, func(t *testing.T) { test(t, b.as(t)) })
	}
	run.Eventually(t, func() error {
		if p.Running() {
			return fmt.Errorf("it runs")
		}
		return nil
	})
	told(t, p.Wait(), 143, `ended by Slurm: (slurmstepd.* DUE TO TIME LIMIT \*\*\*|agent on .* SIGTERM)`)
}

func cancel(t *testing.T, b *bed) {
	for _, test := range []struct {
		name string
		end  func(job string)
		says string
	}{
		{"job", func(job string) { b.tool("scancel", job) }, cancelled},
		{"step", func(job string) { b.tool("scancel", job+".0") }, "(" + cancelled + "|.*Killed|.*SIGKILL.*)"},
		{"term", func(job string) { b.tool("scancel", "--signal=TERM", job+".0") }, cancelled},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := b.as(t)
			p := b.waiting(3)
			since := time.Now()
			test.end(b.job())
			r := p.Wait()
			code := 143
			if test.name == "step" && r.Code != 0 { // by SIGKILL, and gorun may be quicker than Slurm's words
				code = r.Code
			}
			told(t, r, code, test.says)
			b.gone(since, 1, 2, 3)
			require.Equal(t, code, r.Report.Runs[0].Failure.ExitCode)
		})
	}
	t.Run("restart", func(t *testing.T) {
		b := b.as(t)
		p := b.waiting(2, "-on-failure", "restart")
		b.tool("scancel", b.job())
		r := p.Wait() // as a rule without another try
		require.Equal(t, 143, r.Code, r.Stderr)
		require.Regexp(t, `gorun: (`+cancelled+`|ended by Slurm: srun: error: Slurm job \d+ has expired)\n$`, r.Stderr)
	})
	t.Run("batch", func(t *testing.T) {
		b := b.as(t)
		id, file := b.submit(b.first(2)+" --ntasks-per-node=2", "exec "+run.Program("gorun")+" "+run.Rank()+" wait")
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

// grace has ranks that clean up when Slurm ends them.
func grace(t *testing.T, b *bed) {
	p := b.salloc(b.first(2), "-grace", "20s", "sh", "-c", "exec 2>/dev/null; trap 'sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done").Start(t)
	p.AwaitStdout(2, "up\n")
	b.tool("scancel", b.job())
	r := p.Wait()
	require.Equal(t, 2, strings.Count(r.Stdout, "saved\n"), "%s%s", r.Stdout, r.Stderr)
}

// kill kills what a job is made of.
func kill(t *testing.T, b *bed) {
	t.Run("agent", func(t *testing.T) {
		b := b.as(t)
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
		b := b.as(t)
		p := b.salloc(b.first(2), "sh", "-c", "echo up; sleep 1; echo on").Start(t)
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
		b := b.as(t)
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
		b := b.as(t)
		r := b.salloc(b.first(2)+" --ntasks-per-node=2", run.Rank(), "kill", "3").Run(t)
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
	p := b.salloc(b.first(3)+" --ntasks-per-node=2", "-on-failure", "notify", run.Rank(), "notify", "2").Start(t)
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
	r := b.salloc(b.first(2)+" --ntasks-per-node=2", "-on-failure", "restart", run.Rank(), "once", "3").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, r.Report.Runs, 2)
	require.Len(t, regexp.MustCompile(`(?m)^rank \d up on \S+ epoch 1$`).FindAllString(r.Stdout, -1), 4, r.Stdout)

	p := b.salloc(b.first(3)+" --ntasks-per-node=2", "-on-failure", "restart", "-np", "4",
		"sh", "-c", `echo is on $(hostname) epoch $WEFT_EPOCH; [ $WEFT_EPOCH != 0 ] || exec sleep 1000`).Start(t)
	p.AwaitStdout(4, "epoch 0")
	b.killAgent(2)
	r = p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, r.Report.Runs, 2)
	require.Equal(t, "1:2,3:2", b.where(strings.Join(regexp.MustCompile(`.*epoch 1\n`).FindAllString(r.Stdout, -1), "")), r.Stdout)
}
