//go:build linux

package launcher

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

func TestSignalsAreForwarded(t *testing.T) {
	j := testJob(3, "trap")
	j.Verbose = true
	g := startGorun(t, j)
	require.Equal(t, []string{"ready", "ready", "ready"}, g.lines(t, 3))
	g.awaitStarted(t)
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM} {
		require.NoError(t, g.cmd.Process.Signal(s))
		for _, line := range g.lines(t, 3) {
			require.Equal(t, "got "+signalName(s), line)
		}
	}
	require.Zero(t, g.wait(t), "the ranks ended well")
	require.NotContains(t, g.stderr.String(), "ended by")
}

func TestSignalThatEndsTheRanks(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1} {
		j := testJob(2, "-c", "echo ready; exec sleep 1000")
		j.Apps[0].Program = "sh"
		g := startGorun(t, j)
		g.lines(t, 2)
		require.NoError(t, g.cmd.Process.Signal(s))
		require.Equal(t, 128+int(s), g.wait(t))
		if s != syscall.SIGUSR1 {
			require.Equal(t, "gorun: ended by "+signalName(s)+"\n", g.stderr.String())
		}
	}
}

// TestTerminate: gorun gets SIGTERM twice, and its ranks do not end at SIGTERM. Each rank must get
// SIGTERM once, and SIGKILL after the grace period.
func TestTerminate(t *testing.T) {
	j := testJob(2, "deaf")
	j.Grace = 3 * time.Second // long enough for the ranks to print that they got SIGTERM
	g := startGorun(t, j)
	require.Equal(t, []string{"ready", "ready"}, g.lines(t, 2))
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
	out, err := io.ReadAll(g.out)
	require.NoError(t, err)
	require.Equal(t, 143, g.wait(t))
	require.Equal(t, 2, strings.Count(string(out), "got "+signalName(syscall.SIGTERM)+"\n"), string(out))
	require.Equal(t, "gorun: ended by signal 15 (SIGTERM); 2 ranks still ran after 3s and got SIGKILL\n", g.stderr.String())
}

// TestTerminateExitCode: gorun gets SIGTERM, and then rank 0 exits with 0. gorun must exit with 0
// if rank 1 exits with 0, too, and otherwise with 143, which is 128 plus SIGTERM.
func TestTerminateExitCode(t *testing.T) {
	for rank, want := range map[string]int{"exit 0": 0, "exit 7": 143, "kill -KILL $$": 143} {
		j := testJob(2, "-c", `trap 'test $PMI_RANK = 0 && exit 0; `+rank+`' TERM; echo up; while :; do sleep 0.05; done`)
		j.Apps[0].Program, j.Grace, j.Verbose = "sh", time.Hour, true
		g := startGorun(t, j)
		g.lines(t, 2)
		g.awaitStarted(t)
		require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, want, g.wait(t), rank)
	}
}

func TestInterruptAfterTerminateKills(t *testing.T) {
	j := testJob(2, "deaf")
	j.Grace = time.Hour
	g := startGorun(t, j)
	require.Equal(t, []string{"ready", "ready"}, g.lines(t, 2))
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, "got "+signalName(syscall.SIGTERM), g.lines(t, 2)[1])
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 143, g.wait(t), "the first signal gives the exit code")
	require.Contains(t, g.stderr.String(), "gorun: ended by signal 15 (SIGTERM)")
}

func TestSecondInterruptKills(t *testing.T) {
	j := testJob(2, "deaf")
	j.Grace = time.Hour
	g := startGorun(t, j)
	require.Equal(t, []string{"ready", "ready"}, g.lines(t, 2))
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, "got "+signalName(syscall.SIGINT), g.lines(t, 2)[1])
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 130, g.wait(t))
	require.Equal(t, "gorun: ended by signal 2 (SIGINT)\n", g.stderr.String())
}

func TestInterruptWhileEnding(t *testing.T) {
	j := testJob(3)
	j.Grace = time.Hour
	j.Apps[0].Program = "sh"
	j.Apps[0].Args = []string{"-c", `trap "" INT
		if [ $PMI_RANK = 0 ]; then trap "exit 5" USR1; else trap "" USR1; trap "echo told" TERM; fi
		echo up; while :; do sleep 0.05; done`}
	g := startGorun(t, j)
	require.Equal(t, []string{"up", "up", "up"}, g.lines(t, 3))
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGUSR1))
	// Ranks 1 and 2 have got SIGTERM, because rank 0 has failed.
	require.Equal(t, []string{"told", "told"}, g.lines(t, 2))
	require.NoError(t, g.cmd.Process.Signal(syscall.SIGINT))
	require.Equal(t, 5, g.wait(t), "the first failure gives the exit code")
}

func TestOutputThatNobodyReadsDoesNotHoldUpTheEnd(t *testing.T) {
	for _, timeout := range []time.Duration{0, 500 * time.Millisecond} {
		j := testJob(2, "-c", "echo pid $$; exec yes")
		j.Apps[0].Program = "sh"
		j.Timeout = timeout
		j.TagOutput = true
		g := startGorun(t, j)
		var pids []string
		for len(pids) < 2 { // the test reads output only until it has both pids
			if line := g.lines(t, 1)[0]; strings.Contains(line, " pid ") {
				pids = append(pids, line[4:])
			}
		}
		ranks := pidfds(t, pids)
		want := proto.ExitTimeout
		if timeout == 0 {
			want = proto.ExitSignalFloor + int(syscall.SIGINT)
			require.NoError(t, g.cmd.Process.Signal(syscall.SIGINT))
			requireGone(t, ranks)
			require.NoError(t, g.cmd.Process.Signal(syscall.SIGINT))
		} else {
			requireGone(t, ranks)
		}
		state, err := g.cmd.Process.Wait()
		require.NoError(t, err)
		require.Equal(t, want, state.ExitCode())
		_ = g.cmd.Wait() // frees the pipes; the process was waited for above
	}
}

// pidfds returns pidfds (pidfd_open(2)) of the processes that lines name as "pid N", except for
// processes that have ended. requireGone closes the pidfds.
func pidfds(t *testing.T, lines []string) []int {
	t.Helper()
	var fds []int
	for _, line := range lines {
		text, ok := strings.CutPrefix(line, "pid ")
		require.True(t, ok, line)
		pid, err := strconv.Atoi(text)
		require.NoError(t, err)
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue // the process has ended
		}
		require.NoError(t, err)
		fds = append(fds, fd)
	}
	return fds
}

// requireGone waits until all processes of fds, which are pidfds, have ended, at most ten seconds
// for each, and closes fds.
func requireGone(t *testing.T, fds []int) {
	t.Helper()
	for _, fd := range fds {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 10_000)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll(p, 10_000)
		}
		require.NoError(t, err)
		require.Equal(t, 1, n, "a process outlives its job")
		require.NoError(t, unix.Close(fd))
	}
}

// marked returns the running processes, other than this one, whose environment has the variable
// mark, given as NAME=VALUE.
func marked(mark string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() && !hasEnded(pid) {
			env, _ := os.ReadFile("/proc/" + e.Name() + "/environ")
			if slices.Contains(strings.Split(string(env), "\x00"), mark) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func TestNothingOutlivesGorun(t *testing.T) {
	for _, how := range []string{"killed", "ended", "terminated"} {
		t.Run(how, func(t *testing.T) {
			mark := "WEFT_T_FAMILY=" + how + strconv.Itoa(os.Getpid())
			t.Setenv("WEFT_T_FAMILY", strings.TrimPrefix(mark, "WEFT_T_FAMILY="))
			j := testJob(2, "family")
			if how == "ended" {
				j.Apps[0].Args = []string{"family", "", "leave"}
			}
			g := startGorun(t, j)
			t.Setenv("WEFT_T_FAMILY", "")
			fds := pidfds(t, g.lines(t, 2*4))
			switch how {
			case "killed":
				require.NoError(t, g.cmd.Process.Kill())
				_, _ = g.cmd.Process.Wait()
			case "terminated":
				require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
				require.Equal(t, 143, g.wait(t))
			default:
				require.Zero(t, g.wait(t), g.stderr.String())
			}
			requireGone(t, fds)
			// Wait also until the orphans, whose pids the test does not know, are killed.
			for len(marked(mark)) > 0 {
				require.NoError(t, t.Context().Err())
			}
			if how == "killed" {
				_ = g.cmd.Wait()
			}
		})
	}
}

// TestHiddenDaemon: a rank leaves behind a daemon with a child. The daemon has a session of its own
// and an empty environment, so gorun can find it neither by its process group nor by a variable.
// The daemon and its child must not outlive the job, whether the job ends or gorun is terminated or
// killed. If this process may make no cgroup, the test of a killed gorun is skipped.
func TestHiddenDaemon(t *testing.T) {
	for _, how := range []string{"ended", "terminated", "killed"} {
		t.Run(how, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "pids")
			daemon := "exec <&- >&- 2>&-; sh -c 'echo $$ >> " + file + "; exec sleep 1000' & echo $$ >> " + file + "; exec sleep 1000"
			script := `(setsid env -i /bin/sh -c "$DAEMON" &)
				until test $(cat $FILE | wc -l) = 2; do sleep 0.01; done 2>/dev/null
				sed 's/^/pid /' $FILE; echo cgroup $(grep ^0:: /proc/self/cgroup); test $HOW = ended || exec sleep 1000`
			j := testJob(1, "-c", script)
			j.Apps[0].Program, j.Verbose = "sh", true
			j.Env = append(j.Env, job.EnvVar{Name: "DAEMON", Value: daemon}, job.EnvVar{Name: "FILE", Value: file}, job.EnvVar{Name: "HOW", Value: how})
			g := startGorun(t, j)
			lines := g.lines(t, 3)
			for _, line := range lines[:2] { // kills the daemon and its child even if the test fails
				pid, err := strconv.Atoi(strings.TrimPrefix(line, "pid "))
				require.NoError(t, err)
				if fd, err := unix.PidfdOpen(pid, 0); err == nil {
					t.Cleanup(func() { _ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); _ = unix.Close(fd) })
				}
			}
			fds := pidfds(t, lines[:2])
			grouped := strings.Contains(lines[2], "/weft-")
			switch how {
			case "terminated":
				require.NoError(t, g.cmd.Process.Signal(syscall.SIGTERM))
				require.Equal(t, 143, g.wait(t))
			case "killed":
				require.NoError(t, g.cmd.Process.Kill())
				_ = g.cmd.Wait()
				if !grouped {
					for _, fd := range fds {
						_ = unix.Close(fd)
					}
					t.Skip("this process may make no cgroup; without one, a hidden daemon outlives a gorun that is killed, as documented")
				}
			default:
				require.Zero(t, g.wait(t), g.stderr.String())
			}
			requireGone(t, fds)
			if _, path, _ := strings.Cut(lines[2], "0::"); grouped {
				require.Eventually(t, func() bool {
					left, _ := filepath.Glob("/sys/fs/cgroup/" + path)
					other, _ := filepath.Glob("/sys/fs/cgroup/unified" + path)
					return len(left)+len(other) == 0
				}, time.Minute, time.Millisecond, "the cgroup is left")
			}
		})
	}
}

func TestKilledGorunLeavesNoBuild(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	j := testJob(1)
	j.Apps[0].Program = "./testdata/prog"
	j.Apps[0].Args = []string{"wait"}
	g := startGorun(t, j)
	require.Equal(t, []string{"waiting"}, g.lines(t, 1))
	built, _ := filepath.Glob(filepath.Join(tmp, "gorun-*", "*", "prog"))
	require.Len(t, built, 1)
	require.NoError(t, g.cmd.Process.Kill())
	_ = g.cmd.Wait()
	requireEmptied(t, tmp)
}

func TestKilledGorunLeavesNoCompiler(t *testing.T) {
	tmp, bin := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", tmp)
	up := filepath.Join(bin, "up")
	require.NoError(t, unix.Mkfifo(up, 0o600))
	compiler := "#!/bin/sh\necho pid $$ > '" + up + "'\nmkdir ${GOTMPDIR:-$TMPDIR}/work; exec sleep 1000\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "go"), []byte(compiler), 0o700))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	j := testJob(1)
	j.Apps[0].Program = "./testdata/prog"
	g := startGorun(t, j)
	line, err := os.ReadFile(up)
	require.NoError(t, err)
	fds := pidfds(t, []string{strings.TrimSpace(string(line))})
	require.NoError(t, g.cmd.Process.Kill())
	_, _ = g.cmd.Process.Wait()
	requireGone(t, fds)
	requireEmptied(t, tmp)
	_ = g.cmd.Wait()
}

// requireEmptied waits until dir is empty. The watchdog must remove what a killed gorun has left
// there.
func requireEmptied(t *testing.T, dir string) {
	t.Helper()
	for {
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		if len(left) == 0 {
			return
		}
		require.NoError(t, t.Context().Err())
	}
}
