//go:build linux

package testbed

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// childEnv is the environment variable that makes the test binary run the function child.
const childEnv = "WEFT_TESTBED_CHILD"

// child is the main function of another process with hosts. It makes two hosts, prints the info of
// their cluster in JSON, waits for the end of its input, and removes the hosts. If act is "slurm",
// it also starts a Slurm job and other programs that must not be left over. If act is "lost", the
// test kills the keeper meanwhile, and child checks that Open then fails once and makes new hosts
// the next time.
func child(act string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	c, err := Open(2)
	if err != nil {
		return fail(err)
	}
	if act == "slurm" {
		env, err := c.StartSlurm()
		if err != nil {
			return fail(err)
		}
		ctx := context.Background()
		job := c.Hosts()[0].Command(ctx, "sbatch", "--output=/dev/null", "--nodes=2", "--wrap=srun sleep 1000")
		job.Env = append(os.Environ(), env...)
		if out, err := job.CombinedOutput(); err != nil {
			return fail(fmt.Errorf("sbatch: %w: %s", err, out))
		}
		left := "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo"
		if out, err := c.ssh(ctx, c.Names()[1], left).CombinedOutput(); err != nil {
			return fail(fmt.Errorf("ssh: %w: %s", err, out))
		}
		if err := c.Hosts()[0].Command(ctx, "sleep", "1000").Start(); err != nil {
			return fail(err)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(c.info); err != nil {
		return fail(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if act == "lost" {
		if _, err := Open(1); err == nil {
			return fail(fmt.Errorf("no error from Open, although the keeper was killed"))
		}
		if c, err = Open(1); err != nil {
			return fail(err)
		}
		if out, err := c.ssh(context.Background(), c.Names()[0], "hostname").Output(); err != nil || strings.TrimSpace(string(out)) != c.Names()[0] {
			return fail(fmt.Errorf("ssh: %w: %s", err, out))
		}
	}
	if err := Down(); err != nil {
		return fail(err)
	}
	return 0
}

// otherProcess is a process that runs the function child.
type otherProcess struct {
	cmd  *exec.Cmd
	in   io.Closer
	info info
}

func start(t *testing.T, act string) *otherProcess {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make hosts of namespaces")
	}
	a := &otherProcess{cmd: exec.Command("/proc/self/exe")}
	a.cmd.Env = append(os.Environ(), childEnv+"="+act)
	a.cmd.Stderr = os.Stderr
	in, err := a.cmd.StdinPipe()
	require.NoError(t, err)
	a.in = in
	out, err := a.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, a.cmd.Start())
	t.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			_ = a.cmd.Process.Kill()
			_ = a.cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(line, &a.info))
	return a
}

// traces returns what exists of a cluster: files, links, names, mounts, processes.
func traces(t *testing.T, in info) []string {
	t.Helper()
	var found []string
	if _, err := os.Lstat(in.Dir); err == nil {
		found = append(found, in.Dir)
	}
	if _, err := net.InterfaceByName(linkName(in.ID)); err == nil {
		found = append(found, linkName(in.ID))
	}
	hosts, err := os.ReadFile(hostsFile)
	require.NoError(t, err)
	if strings.Contains(string(hosts), " # "+clusterName(in.ID)+"\n") {
		found = append(found, hostsFile)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	if strings.Contains(string(mounts), in.Mark) {
		found = append(found, "a mount")
	}
	for _, pid := range append(marked(in.Mark), in.Keeper) {
		if _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil { // a zombie has no exe
			found = append(found, "process "+strings.Join(zeroEnded(fmt.Sprintf("/proc/%d/cmdline", pid)), " "))
		}
	}
	return found
}

func cgroupsOfSlurm() []string {
	var found []string
	for _, pattern := range []string{"/sys/fs/cgroup/*slurm*", "/sys/fs/cgroup/*/*slurm*", "/sys/fs/cgroup/*/*/*slurm*"} {
		dirs, _ := filepath.Glob(pattern)
		found = append(found, dirs...)
	}
	return found
}

func nothingLeft(t *testing.T, in info) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		found := traces(t, in)
		if len(found) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left: %v", found)
		}
	}
}

func TestTestsAtTheSameTime(t *testing.T) {
	a, b := start(t, "hosts"), start(t, "hosts")
	assert.NotEqual(t, a.info.ID, b.info.ID)
	c := Up(t, 1)
	for _, other := range []*otherProcess{a, b} {
		assert.NotEqual(t, c.info.ID, other.info.ID)
		assert.NotEmpty(t, traces(t, other.info))
		require.NoError(t, other.in.Close())
		require.NoError(t, other.cmd.Wait())
		assert.Empty(t, traces(t, other.info), "when Down has returned")
	}
	assert.Equal(t, c.Names()[0], output(t, c.ssh(soon(t), c.Names()[0], "hostname")))
}

func TestKilledTest(t *testing.T) {
	cgroups := cgroupsOfSlurm()
	a := start(t, "slurm")
	awaitSleeps(t, a.info)
	require.NoError(t, a.cmd.Process.Kill())
	_ = a.cmd.Wait()
	nothingLeft(t, a.info)
	assert.Equal(t, cgroups, cgroupsOfSlurm())
}

// awaitSleeps waits until the four processes of the other process's task "slurm" run: two of the job, one by
// ssh, one by Command.
func awaitSleeps(t *testing.T, in info) {
	t.Helper()
	require.Eventually(t, func() bool {
		n := 0
		for _, pid := range marked(in.Mark) {
			if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(exe) == "sleep" {
				n++
			}
		}
		return n == 4
	}, limit, 20*time.Millisecond)
}

func TestKilledKeeper(t *testing.T) {
	a := start(t, "lost")
	require.NoError(t, syscall.Kill(a.info.Keeper, syscall.SIGKILL))
	require.NoError(t, a.in.Close())
	require.NoError(t, a.cmd.Wait())
	nothingLeft(t, a.info)
}

func TestKilledKeeperAndTest(t *testing.T) {
	a := start(t, "slurm")
	awaitSleeps(t, a.info) // a process that starts after removeLeftovers has looked would stay
	// Stop the keeper, so that it removes nothing when the test ends.
	require.NoError(t, syscall.Kill(a.info.Keeper, syscall.SIGSTOP))
	require.NoError(t, a.cmd.Process.Kill())
	_ = a.cmd.Wait()
	keeper, err := unix.PidfdOpen(a.info.Keeper, 0)
	require.NoError(t, err)
	defer unix.Close(keeper)
	require.NoError(t, syscall.Kill(a.info.Keeper, syscall.SIGKILL))
	// The keeper holds the lock of its directory until its last thread has ended, which is later than the
	// end of /proc/PID/exe. Then the pidfd is ready to read.
	gone := func() bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(keeper), Events: unix.POLLIN}}, 0)
		return err == nil && n == 1
	}
	require.Eventually(t, gone, limit, 10*time.Millisecond)
	require.NotEmpty(t, traces(t, a.info))
	require.NoError(t, removeLeftovers()) // as the next keeper does before it makes hosts
	nothingLeft(t, a.info)
}
