//go:build linux && !portable

package procs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/bootstrap"
)

// TestReapOrphans checks that reapOrphans reaps a process that a rank has left behind when that
// process ends, and that it does not reap a child of another part of the program.
func TestReapOrphans(t *testing.T) {
	defer BecomeReaper()()
	daemon := func(id string) (pid int, hold *os.File) {
		r, hold, err := os.Pipe() // the daemon ends when hold is closed
		require.NoError(t, err)
		defer func() { _ = r.Close() }()
		cmd := exec.Command("sh", "-c", "setsid sh -c 'echo $$; exec >/dev/null 2>&1; read x' <&3 3<&- &")
		cmd.Env, cmd.ExtraFiles = append(os.Environ(), bootstrap.EnvJobID+"="+id), []*os.File{r}
		out, err := cmd.Output()
		require.NoError(t, err)
		pid, err = strconv.Atoi(strings.TrimSpace(string(out)))
		require.NoError(t, err)
		return pid, hold
	}
	ended := func(pid int, hold *os.File) {
		require.NoError(t, hold.Close())
		require.NoError(t, unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	}
	b, known := newJobProcs("job", nil), make(map[int]bool)
	ours, hold := daemon("job")
	b.reapOrphans(known)
	require.Equal(t, map[int]bool{ours: true}, known)
	ended(ours, hold)
	other, hold := daemon("other")
	b.reapOrphans(known)
	require.Empty(t, known)
	require.NotContains(t, children(), ours)
	ended(other, hold)
	b.reapOrphans(known)
	require.Contains(t, children(), other)
	reapNow(other)
}

// TestOthers checks that killLeftoverChildren spares an orphan that existed when newOthers was
// called, and a later orphan in the session of that one. It kills a later orphan in a new session,
// because that must come from a rank.
func TestOthers(t *testing.T) {
	defer BecomeReaper()()
	dir := t.TempDir()
	orphan := func(name, script string) int { // script must write the orphan's pid to $F
		file := filepath.Join(dir, name)
		cmd := exec.Command("sh", "-c", "("+script+" &)")
		cmd.Env = []string{"F=" + file, "PATH=" + os.Getenv("PATH"), "D=" + dir}
		require.NoError(t, cmd.Run())
		var pid int
		require.Eventually(t, func() bool {
			text, _ := os.ReadFile(file)
			var err error
			pid, err = strconv.Atoi(strings.TrimSuffix(string(text), "\n"))
			return err == nil && strings.HasSuffix(string(text), "\n")
		}, time.Minute, time.Millisecond)
		return pid
	}
	const sleep = `echo $$ > $F; exec sleep 1000`
	before := orphan("before", `setsid sh -c '(until test -e $D/go; do sleep 0.01; done; exec sh -c "echo \$\$ > $D/same; exec sleep 1000") & `+sleep+`'`)
	b := newJobProcs("nobody", nil)
	b.others = newOthers()
	same := orphan("same", `: > $D/go`)
	after := orphan("after", `setsid sh -c '`+sleep+`'`)
	alive := func(pid int) bool { f := statOf(pid); return len(f) > 0 && f[statState] != "Z" }
	own := exec.Command("sleep", "1000") // like a child of the program that runs the launcher
	require.NoError(t, own.Start())
	b.killLeftoverChildren(leftoverLimit)
	require.True(t, alive(own.Process.Pid))
	require.NoError(t, own.Process.Kill())
	require.Error(t, own.Wait())
	require.True(t, alive(before))
	require.True(t, alive(same))
	require.False(t, alive(after))
	for _, pid := range []int{same, before} {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	for _, pid := range []int{before, same} { // same becomes a child of this process only when before ends
		require.Eventually(t, func() bool { reapNow(pid); return statOf(pid) == nil }, time.Minute, time.Millisecond)
	}
}

// TestKillLeftoversThatExec checks that killLeftovers looks again at a process in execve(2), during
// which /proc shows no environment for a moment.
func TestKillLeftoversThatExec(t *testing.T) {
	script := filepath.Join(t.TempDir(), "again")
	require.NoError(t, os.WriteFile(script, []byte("exec sh $0\n"), 0o600))
	for range 100 {
		cmd := exec.Command("sh", script)
		cmd.Env = append(os.Environ(), bootstrap.EnvJobID+"=exec")
		require.NoError(t, cmd.Start())
		newJobProcs("exec", nil).killLeftovers(leftoverLimit)
		late := time.AfterFunc(leftoverLimit, func() { _ = cmd.Process.Signal(unix.SIGTERM) })
		require.EqualError(t, cmd.Wait(), "signal: killed")
		late.Stop()
	}
}

func TestEnviron(t *testing.T) {
	env, whole := environOf(os.Getpid(), statOf(os.Getpid()))
	require.True(t, whole)
	require.Equal(t, strings.Split(string(env[:len(env)-1]), "\x00")[0], syscall.Environ()[0])
	stat := make([]string, 50)
	for i := range stat {
		stat[i] = "0"
	}
	_, whole = environOf(os.Getpid(), stat)
	require.True(t, whole, "a kernel thread")
	stat[20] = "4096"
	_, whole = environOf(os.Getpid(), stat)
	require.False(t, whole, "in execve")
	stat[47], stat[48] = "1000000", "9000000"
	_, whole = environOf(os.Getpid(), stat)
	require.False(t, whole, "the environment is that of the previous program")
	stat[48] = "1000001"
	_, whole = environOf(os.Getpid(), stat)
	require.False(t, whole, "the environment is that of the next program")
}

// TestKillLeftoversThatFork checks that killLeftovers kills a chain of processes in which each starts
// a child and ends.
func TestKillLeftoversThatFork(t *testing.T) {
	defer BecomeReaper()()
	script := filepath.Join(t.TempDir(), "away")
	require.NoError(t, os.WriteFile(script, []byte("sh $0 & exit\n"), 0o600))
	for range 20 {
		cmd := exec.Command("sh", script)
		cmd.Env = append(os.Environ(), bootstrap.EnvJobID+"=fork")
		require.NoError(t, cmd.Run())
		newJobProcs("fork", nil).killLeftovers(leftoverLimit)
		for _, pid := range children() {
			var ws unix.WaitStatus
			_, err := unix.Wait4(pid, &ws, 0, nil)
			require.NoError(t, err)
		}
	}
}
