//go:build linux

package slurm

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

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

// cancelled is a regular expression for the line that gorun prints if Slurm has cancelled the job. There
// are two forms, because Slurm does not always report the reason before gorun ends.
const cancelled = `ended by Slurm: (slurmstepd\S*: error: \*\*\* STEP \d+\.0 ON \S+ CANCELLED AT .*\*\*\*|agent on \S+: it got SIGTERM)`

// TestEnds ends jobs in several ways, in subtests. Meanwhile another job, on the last host, reaches its time
// limit, and gorun reports that Slurm has ended it. That takes long, because Slurm checks time limits
// only every half minute.
func TestEnds(t *testing.T) {
	c := slurm(t)
	p := c.salloc("-n2 -w "+c.name(4), run.Rank(), "wait").Start(t)
	p.AwaitStdout(2, "up on")
	c.tool("scontrol", "update", "JobId="+c.jobOn(4), "EndTime=now+1")
	for name, test := range map[string]func(*testing.T, *cluster){"cancelled": testCancel, "grace": testGrace, "once": testOneSIGTERM, "killed": testKilled} {
		t.Run(name, func(t *testing.T) { test(t, c.sub(t)) })
	}
	run.RequireLines(t, p.Wait(), 143, `ended by Slurm: (slurmstepd.* DUE TO TIME LIMIT \*\*\*|agent on .* SIGTERM)`)
}

func testCancel(t *testing.T, c *cluster) {
	for _, test := range []struct {
		name string
		end  func(job string)
		says string
	}{
		{"job", func(job string) { c.tool("scancel", job) }, cancelled},
		{"step", func(job string) { c.tool("scancel", job+".0") }, "(" + cancelled + "|.*Killed|.*SIGKILL.*)"},
		{"term", func(job string) { c.tool("scancel", "--signal=TERM", job+".0") }, cancelled},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := c.sub(t)
			p := c.waiting(3)
			since := time.Now()
			test.end(c.job())
			r := p.Wait()
			code := 143
			// Slurm kills gorun by SIGKILL in this case, and gorun may end before Slurm reports the
			// reason.
			if test.name == "step" && r.Code != 0 {
				code = r.Code
			}
			run.RequireLines(t, r, code, test.says)
			c.awaitGone(since, 1, 2, 3)
			require.Equal(t, code, r.Report.Runs[0].Failure.ExitCode)
		})
	}
	t.Run("restart", func(t *testing.T) {
		c := c.sub(t)
		p := c.waiting(2, "-on-failure", "restart")
		c.tool("scancel", c.job())
		r := p.Wait() // usually gorun ends before it has started the job again
		require.Equal(t, 143, r.Code, r.Stderr)
		require.Regexp(t, `gorun: (`+cancelled+`|ended by Slurm: srun: error: Slurm job \d+ has expired)\n$`, r.Stderr)
	})
	t.Run("batch", func(t *testing.T) {
		c := c.sub(t)
		id, file := c.submit(c.first(2)+" --ntasks-per-node=2", "exec "+run.Program("gorun")+" "+run.Rank()+" wait")
		text := func() string { out, _ := os.ReadFile(file); return string(out) }
		run.Eventually(t, func() error {
			if n := strings.Count(text(), " up on "); n < 4 {
				return fmt.Errorf("%d ranks are up", n)
			}
			return nil
		})
		since := time.Now()
		c.tool("scancel", id)
		c.awaitGone(since, 1, 2)
		require.Regexp(t, `(?m)^gorun: ended by .*(SIGTERM|CANCELLED AT)`, text())
	})
}

// testGrace cancels a job whose ranks need 0.3 s to clean up after SIGTERM. With -grace 20s all of them do.
func testGrace(t *testing.T, c *cluster) {
	p := c.salloc(c.first(2), "-grace", "20s", "sh", "-c", "exec 2>/dev/null; trap 'sleep 0.3; echo saved; exit 0' TERM; echo up; while :; do sleep 0.05; done").Start(t)
	p.AwaitStdout(2, "up\n")
	c.tool("scancel", c.job())
	r := p.Wait()
	require.Equal(t, 2, strings.Count(r.Stdout, "saved\n"), "%s%s", r.Stdout, r.Stderr)
}

// testOneSIGTERM cancels a job whose ranks print each SIGTERM that they get. Each rank gets exactly one.
func testOneSIGTERM(t *testing.T, c *cluster) {
	p := c.salloc(c.first(2), "-np", "4", "-grace", "3s", "-tag-output", "sh", "-c", "exec 2>/dev/null; trap 'echo term' TERM; echo up; while :; do sleep 0.02; done").Start(t)
	p.AwaitStdout(4, "up\n")
	c.tool("scancel", c.job())
	r := p.Wait()
	for rank := range 4 {
		require.Len(t, regexp.MustCompile(fmt.Sprintf(`(?m)^\[%d@\S+\] term$`, rank)).FindAllString(r.Stdout, -1), 1, "%s%s", r.Stdout, r.Stderr)
	}
}

// testKilled kills one process of a job: an agent, srun, gorun, or a rank. Only if it is srun, the job goes
// on.
func testKilled(t *testing.T, c *cluster) {
	t.Run("agent", func(t *testing.T) {
		c := c.sub(t)
		p := c.waiting(3)
		since := time.Now()
		c.killAgent(2)
		r := p.Wait()
		run.RequireLines(t, r, 1, c.name(2)+": srun: error: "+c.name(2)+": task 1: Killed")
		c.awaitGone(since, 1, 2, 3)
		require.Equal(t, "lost", r.Report.Runs[0].Host(t, c.name(2)).State)
		require.Equal(t, "up", r.Report.Runs[0].Host(t, c.name(3)).State)
	})
	t.Run("srun", func(t *testing.T) { // once the agents run, the job does not need srun
		c := c.sub(t)
		file := filepath.Join(t.TempDir(), "go")
		p := c.salloc(c.first(2), "sh", "-c", "echo up; until [ -e "+file+" ]; do sleep 0.05; done; echo on").Start(t)
		p.AwaitStdout(2, "up\n")
		gorun := c.gorunOf(p)
		var srun int
		for _, pid := range run.Children(t, gorun) {
			if args := run.Args(pid); len(args) > 0 && args[0] == "srun" {
				srun = pid
			}
		}
		require.NotZero(t, srun)
		// The test suspends gorun for a moment. So the second process that srun consists of (see
		// Step.HoldHelper) detects the death of srun before gorun can kill it. That process must
		// not end the agents.
		require.NoError(t, syscall.Kill(gorun, syscall.SIGSTOP))
		err := syscall.Kill(srun, syscall.SIGKILL)
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, errors.Join(err, syscall.Kill(gorun, syscall.SIGCONT)))
		run.Eventually(t, func() error {
			if syscall.Kill(srun, 0) == nil {
				return errors.New("gorun has not reaped srun")
			}
			return nil
		})
		since := time.Now()
		require.NoError(t, os.WriteFile(file, nil, 0o644))
		r := p.Wait()
		require.Zero(t, r.Code, r.Stderr)
		require.Equal(t, 2, strings.Count(r.Stdout, "on\n"), r.Stdout)
		c.awaitGone(since, 1, 2)
	})
	t.Run("gorun", func(t *testing.T) {
		c := c.sub(t)
		p := c.waiting(3)
		pid := c.gorunOf(p)
		run.KillWatchdog(t, pid)
		since := time.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		p.Wait()
		c.awaitGone(since, 1, 2, 3)
	})
	t.Run("rank", func(t *testing.T) {
		c := c.sub(t)
		r := c.salloc(c.first(2)+" --ntasks-per-node=2", run.Rank(), "kill", "3").Run(t)
		require.Equal(t, 137, r.Code)
		require.Regexp(t, `(?m)^gorun: rank 3 was killed by signal 9 \(SIGKILL\): \S+, pid \d+ on `+c.name(2)+"; the other 3 ranks were ended$", r.Stderr)
	})
}

// gorunOf returns the process id of the gorun that the salloc p has started.
func (c *cluster) gorunOf(p *run.Process) int {
	c.t.Helper()
	for _, pid := range run.Children(c.t, p.PID()) {
		if args := run.Args(pid); len(args) > 0 && args[0] == run.Program("gorun") {
			return pid
		}
	}
	c.t.Fatal("salloc has no child process gorun")
	return 0
}

// TestNodeFails cuts a host off the network while a job runs. gorun reports the host, and the ranks and
// agents end on all hosts.
func TestNodeFails(t *testing.T) {
	c := slurm(t)
	p := c.waiting(3, "-heartbeat", "500ms")
	since := time.Now()
	c.Hosts()[2].Cut()
	r := p.Wait()
	run.RequireLines(t, r, 1, c.name(3)+": .*")
	c.awaitGone(since, 1, 2, 3)
	c.Hosts()[2].Join()
}

// TestNotify kills an agent of a job with -on-failure notify. The ranks of the other hosts go on, and gorun
// exits with 0.
func TestNotify(t *testing.T) {
	c := slurm(t)
	p := c.salloc(c.first(3)+" --ntasks-per-node=2", "-on-failure", "notify", run.Rank(), "notify", "2").Start(t)
	p.AwaitStdout(6, `(?m)^rank \d up$`)
	c.killAgent(2)
	r := p.Wait()
	run.RequireLines(t, r, 0, c.name(2)+": srun: error: "+c.name(2)+": task 1: Killed; the others go on without the 2 ranks there")
	require.Len(t, regexp.MustCompile(`(?m)^rank \d goes on as \d of 4$`).FindAllString(r.Stdout, -1), 4, r.Stdout)
}

// TestRestart runs jobs with -on-failure restart. If a rank fails, gorun starts the job again. If an agent is
// killed, gorun starts the job again on the other hosts of the allocation.
func TestRestart(t *testing.T) {
	c := slurm(t)
	r := c.salloc(c.first(2)+" --ntasks-per-node=2", "-on-failure", "restart", run.Rank(), "once", "3").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, r.Report.Runs, 2)
	require.Len(t, regexp.MustCompile(`(?m)^rank \d up on \S+ epoch 1$`).FindAllString(r.Stdout, -1), 4, r.Stdout)

	p := c.salloc(c.first(3)+" --ntasks-per-node=2", "-on-failure", "restart", "-np", "4",
		"sh", "-c", `echo is on $(hostname) epoch $WEFT_EPOCH; [ $WEFT_EPOCH != 0 ] || exec sleep 1000`).Start(t)
	p.AwaitStdout(4, "epoch 0")
	c.killAgent(2)
	r = p.Wait()
	require.Zero(t, r.Code, r.Stderr)
	require.Len(t, r.Report.Runs, 2)
	require.Equal(t, "1:2,3:2", c.where(strings.Join(regexp.MustCompile(`.*epoch 1\n`).FindAllString(r.Stdout, -1), "")), r.Stdout)
}

// TestInterruptWhileStarting sends SIGINT or SIGTERM to gorun at several times before the ranks run. gorun
// ends with the right code, and no process is left.
func TestInterruptWhileStarting(t *testing.T) {
	c := slurm(t)
	dir := t.TempDir()
	up := filepath.Join(dir, "up")
	slow := filepath.Join(dir, "gorun")
	script := fmt.Sprintf("#!/bin/sh\n: > %s\nsleep 1\nexec %s \"$@\"\n", up, run.Program("gorun"))
	require.NoError(t, os.WriteFile(slow, []byte(script), 0o755))
	for _, test := range []struct {
		signal syscall.Signal
		code   int
		says   string
	}{
		{syscall.SIGINT, 130, `ended by signal 2 \(SIGINT\)`},
		{syscall.SIGTERM, 143, `ended by signal 15 \(SIGTERM\)`},
	} {
		t.Run(test.signal.String(), func(t *testing.T) {
			c := c.sub(t)
			require.NoError(t, os.RemoveAll(up))
			p := c.salloc(c.first(2)+" --ntasks-per-node=1", "-agent-path", slow, run.Rank(), "wait").Start(t)
			run.Eventually(t, func() error { _, err := os.Stat(up); return err })
			since := time.Now()
			require.NoError(t, syscall.Kill(c.gorunOf(p), test.signal))
			run.RequireLines(t, p.Wait(), test.code, test.says)
			c.awaitGone(since, 1, 2)
		})
	}
	t.Run("queue", func(t *testing.T) {
		c := c.sub(t)
		p := c.gorun("-launcher", "slurm", "-np", "4", "-slurm-args", c.first(2)+" --begin=now+600", run.Rank(), "wait").Start(t)
		run.Eventually(t, func() error {
			if c.tool("squeue", "--noheader", "--states=PENDING") == "" {
				return errors.New("no job is pending")
			}
			return nil
		})
		p.Signal(syscall.SIGINT)
		run.RequireLines(t, p.Wait(), 130, `ended by signal 2 \(SIGINT\) before Slurm had started the job`)
	})
	t.Run("outside", func(t *testing.T) {
		c := c.sub(t)
		for k := range 4 { // each time a little later in the start of the job
			p := c.gorun("-launcher", "slurm", "-np", "4", "-slurm-args", c.first(2), run.Rank(), "wait").Start(t)
			run.Eventually(t, func() error {
				if c.tool("squeue", "--noheader", "--states=RUNNING") == "" {
					return errors.New("no job runs")
				}
				return nil
			})
			time.Sleep(time.Duration(k) * 100 * time.Millisecond)
			since := time.Now()
			p.Signal(syscall.SIGINT)
			run.RequireLines(t, p.Wait(), 130, `ended by signal 2 \(SIGINT\)( before .*)?`)
			c.awaitGone(since, 1, 2)
		}
	})
	t.Run("exec", func(t *testing.T) {
		c := c.sub(t)
		// Send the signal as soon as salloc's child executes gorun, which does not catch signals
		// yet.
		for range 4 {
			p := c.gorun("-launcher", "slurm", "-np", "4", "-slurm-args", c.first(2), run.Rank(), "wait").Start(t)
			for !executesGorun(t, p.PID()) {
				require.True(t, p.Running(), p.Stderr())
			}
			since := time.Now()
			p.Signal(syscall.SIGINT)
			run.RequireLines(t, p.Wait(), 130, `ended by signal 2 \(SIGINT\)( before .*)?`)
			c.awaitGone(since, 1, 2)
			run.Eventually(t, func() error { // the allocation must end, also if gorun has killed salloc
				if jobs := c.tool("squeue", "--noheader"); jobs != "" {
					return errors.New(jobs)
				}
				return nil
			})
		}
	})
}

// executesGorun reports whether salloc, which is a child of the given gorun, has started a process that
// executes gorun too.
func executesGorun(t *testing.T, gorun int) bool {
	for _, salloc := range run.Children(t, gorun) {
		for _, pid := range run.Children(t, salloc) {
			if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); exe == run.Program("gorun") {
				return true
			}
		}
	}
	return false
}
