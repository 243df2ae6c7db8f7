//go:build linux

package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func slurmCmd(ctx context.Context, env []string, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// lines returns the words that a command prints to stdout, sorted.
func lines(t *testing.T, cmd *exec.Cmd) []string {
	t.Helper()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s: %s", cmd, stderr.String())
	l := strings.Fields(string(out))
	slices.Sort(l)
	return l
}

func jobs(ctx context.Context, t *testing.T, env []string) string {
	t.Helper()
	return output(t, slurmCmd(ctx, env, "squeue", "--noheader"))
}

func TestSlurm(t *testing.T) {
	c := Up(t, 4)
	env := c.Slurm(t)
	ctx := soon(t)

	t.Run("srun", func(t *testing.T) {
		assert.Equal(t, c.Names(), lines(t, slurmCmd(ctx, env, "srun", "-N4", "hostname")))
		inside := c.Hosts()[3].Command(ctx, "srun", "-N4", "hostname")
		inside.Env = append(os.Environ(), env...)
		assert.Equal(t, c.Names(), lines(t, inside), "from a host")
		tasks := fmt.Sprint(4 * SlurmCPUs)
		assert.Len(t, lines(t, slurmCmd(ctx, env, "srun", "-n"+tasks, "hostname")), 4*SlurmCPUs)

		var exit *exec.ExitError
		require.ErrorAs(t, slurmCmd(ctx, env, "srun", "-N2", "sh", "-c", "exit 3").Run(), &exit)
		assert.Equal(t, 3, exit.ExitCode())
	})
	t.Run("salloc", func(t *testing.T) {
		all := lines(t, slurmCmd(ctx, env, "salloc", "-N3", "sh", "-c", "echo $SLURM_JOB_NODELIST; srun hostname; srun -N2 hostname"))
		assert.Len(t, all, 1+3+2)
		assert.Equal(t, c.Names()[:3], slices.Compact(all)[:3])
	})
	t.Run("fewer hosts", func(t *testing.T) {
		two := Up(t, 2)
		env := two.Slurm(t)
		assert.Equal(t, two.Names(), lines(t, slurmCmd(ctx, env, "srun", "-N2", "hostname")))
		out, err := slurmCmd(ctx, env, "srun", "-N3", "hostname").CombinedOutput()
		assert.Error(t, err)
		assert.Contains(t, string(out), "Node count specification invalid")
	})
	t.Run("pmi2", func(t *testing.T) {
		assert.Equal(t, []string{"0", "1", "2", "3"}, lines(t, slurmCmd(ctx, env, "srun", "-N4", "--mpi=pmi2", "sh", "-c", "echo $PMI_RANK")))
	})
}

// running starts an allocation of two hosts with a task on each that sleeps. When one of the tasks
// runs, it returns the salloc command and the job's id.
func running(t *testing.T, h *Host, env []string) (cmd *exec.Cmd, job string) {
	t.Helper()
	cmd = h.Command(soon(t), "salloc", "-N2", "sh", "-c", "echo $SLURM_JOB_ID; exec srun sh -c 'echo; exec sleep 1000'")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	r := bufio.NewReader(out)
	job, err = r.ReadString('\n')
	require.NoError(t, err)
	_, err = r.ReadString('\n') // the empty line that a task prints when it runs
	require.NoError(t, err)
	return cmd, strings.TrimSpace(job)
}

func sleeping(c *Cluster) bool {
	return slices.ContainsFunc(c.Hosts(), func(h *Host) bool {
		return len(h.Processes(func(p Process) bool { return filepath.Base(p.Exe) == "sleep" && p.Getenv("SLURM_JOB_ID") != "" })) > 0
	})
}

func TestSlurmCancels(t *testing.T) {
	c := Up(t, 2)
	env := c.Slurm(t)
	cmd, job := running(t, c.Hosts()[0], env)
	require.Eventually(t, func() bool { return sleeping(c) }, limit, 20*time.Millisecond)
	output(t, slurmCmd(soon(t), env, "scancel", job))
	assert.Error(t, cmd.Wait())
	assert.Eventually(t, func() bool { return !sleeping(c) }, limit, 20*time.Millisecond)
}

// TestSlurmTimeLimit checks that Slurm ends a job whose time limit has passed. Slurm's limits are in
// minutes, so the test sets the end time of the running job by scontrol.
func TestSlurmTimeLimit(t *testing.T) {
	c := Up(t, 2)
	env := c.Slurm(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*limit)
	defer cancel()
	cmd := slurmCmd(ctx, env, "srun", "-N2", "--time=1", "sh", "-c", "echo $SLURM_JOB_ID; exec sleep 1000")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	job, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	output(t, slurmCmd(ctx, env, "scontrol", "update", "JobId="+strings.TrimSpace(job), "EndTime=now+1"))
	require.Error(t, cmd.Wait())
	require.NoError(t, ctx.Err())
	assert.Contains(t, stderr.String(), "DUE TO TIME LIMIT")
	assert.Eventually(t, func() bool { return !sleeping(c) }, limit, 20*time.Millisecond)
}

func TestSlurmJobsEndWithTheTest(t *testing.T) {
	c := Up(t, 2)
	env := c.Slurm(t)
	t.Run("leaves jobs", func(t *testing.T) {
		env := Up(t, 2).Slurm(t)
		output(t, slurmCmd(soon(t), env, "sbatch", "--output=/dev/null", "-N2", "--wrap=srun sh -c 'trap : TERM; while :; do sleep 1; done'"))
		require.Eventually(t, func() bool { return sleeping(c) }, limit, 20*time.Millisecond)
	})
	assert.NotEmpty(t, jobs(soon(t), t, env), "jobs stay while another test uses Slurm")
	t.Run("is the last", func(t *testing.T) {
		slurmTests.Add(-1) // do not count the outer test
		t.Cleanup(func() { slurmTests.Add(1) })
		Up(t, 2).Slurm(t)
	})
	assert.False(t, sleeping(c))
	assert.Empty(t, jobs(soon(t), t, c.Slurm(t)))
}

func TestSlurmStartsAgain(t *testing.T) {
	c := Up(t, 2)
	for what, harm := range map[string]func(t *testing.T, env []string){
		"drained": func(t *testing.T, env []string) {
			output(t, slurmCmd(soon(t), env, "scontrol", "update", "NodeName="+c.Names()[1], "State=DRAIN", "Reason=test"))
		},
		"killed": func(t *testing.T, _ []string) {
			p := c.Hosts()[1].Processes(func(p Process) bool {
				return strings.HasPrefix(filepath.Base(p.Exe), "slurmd") && p.PPID == c.info.Keeper
			})
			require.Len(t, p, 1)
			require.NoError(t, syscall.Kill(p[0].PID, syscall.SIGKILL))
			// The process is gone when the keeper has waited for it.
			require.Eventually(t, func() bool { return errors.Is(syscall.Kill(p[0].PID, 0), syscall.ESRCH) }, limit, 10*time.Millisecond)
		},
	} {
		t.Run(what, func(t *testing.T) {
			env := c.Slurm(t)
			running(t, c.Hosts()[0], env)
			harm(t, env)
			env = c.Slurm(t)
			assert.Empty(t, jobs(soon(t), t, env))
			assert.False(t, sleeping(c), "jobs end with their Slurm")
			assert.Equal(t, c.Names(), lines(t, slurmCmd(soon(t), env, "srun", "-N2", "hostname")))
		})
	}
}
