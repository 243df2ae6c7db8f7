package bootstrap

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func contains(err error, text string) bool { return strings.Contains(err.Error(), text) }

func TestNotice(t *testing.T) {
	dir := filepath.Join(t.TempDir(), ".weft") // write creates the directory
	path := filepath.Join(dir, "slurm-1.0-x")
	n := testNotice()
	text, err := n.write(path)
	require.NoError(t, err)
	require.Equal(t, []string{"slurm-1.0-x"}, notices(t, dir))
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode())
	got, again, err := readNotice(path)
	require.NoError(t, err)
	require.Equal(t, []any{n, text}, []any{got, again})

	require.NoError(t, os.Symlink(path, path+"-link"))
	_, _, err = readNotice(path + "-link")
	require.Error(t, err)
	_, _, err = readNotice(dir)
	require.ErrorContains(t, err, "is not a file that only user")
	require.NoError(t, os.Chmod(path, 0o640))
	_, _, err = readNotice(path)
	require.ErrorContains(t, err, "has mode 0100640")
	for _, bad := range []string{"", "{", `{"version":2}`, `{"version":1,"size":2}`, strings.Repeat(" ", noticeMaxBytes+1), strings.Replace(string(text), "10.0.0.1", "a host", 1)} {
		require.NoError(t, os.WriteFile(path+"-bad", []byte(bad), 0o600))
		_, _, err := readNotice(path + "-bad")
		require.ErrorIs(t, err, errNotice, bad)
	}
	if os.Geteuid() == 0 {
		require.NoError(t, errors.Join(os.Chmod(path, 0o600), os.Chown(path, 65534, 65534)))
		_, _, err = readNotice(path)
		require.ErrorContains(t, err, "owner 65534")
	}
	r := &rendezvous{place: &place{job: "other", size: 2}, path: path}
	_, gone, err := r.connect(t.Context(), n)
	require.ErrorContains(t, err, "belongs to job slurm-1.0-x of 2 ranks")
	require.False(t, gone)
}

// TestStaleNoticesAreRemoved checks that removeStaleNotices removes old notices, and old temporary
// files of notices, and no other files.
func TestStaleNoticesAreRemoved(t *testing.T) {
	dir := t.TempDir()
	age := func(name string, by time.Duration) {
		when := time.Now().Add(-by)
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), when, when))
	}
	old, young, long, fresh := fileName("slurm", "1", "old"), fileName("slurm", "1", "young"), fileName("slurm", "1", "long"), fileName("slurm", "1", "new")
	mpi, notes := fileName("openmpi", "1", "old"), fileName("slurm", "notes", "")
	n := testNotice()
	for _, name := range []string{old, young, mpi, "other-old", "slurm-old", long} {
		n.Seconds = 61
		if name == long {
			n.Seconds = 7200
		}
		_, err := n.write(filepath.Join(dir, name))
		require.NoError(t, err)
		age(name, time.Hour)
	}
	age(young, time.Minute)
	// Files that are not notices stay, except old unfinished notices.
	for name, by := range map[string]time.Duration{
		"." + old + ".123": time.Hour, "." + old + ".456": time.Minute, "." + old + ".sock": time.Hour,
		notes: time.Hour, ".slurm-config": time.Hour, ".openmpi-1.2": time.Hour,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
		age(name, by)
	}
	_, err := n.write(filepath.Join(dir, fresh))
	require.NoError(t, err)
	removeStaleNotices(filepath.Join(dir, fresh))
	require.ElementsMatch(t, []string{
		"." + old + ".456", "." + old + ".sock", ".slurm-config", ".openmpi-1.2", "other-old", "slurm-old", long, fresh, notes, young,
	}, notices(t, dir))
}

// TestNoticeIsWrittenAgain checks that rank 0 writes its notice again after another process has
// removed it, and that the job then starts.
func TestNoticeIsWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	path := noticeOf(t, dir)
	var w *World
	done := make(chan error, 1)
	go func() { // ends when open returns, which has a time limit
		var err error
		w, err = open(t.Context(), env(stepEnv(dir, 0, 2)...), io.Discard)
		done <- err
	}()
	exists := func() bool { return len(notices(t, dir)) == 1 && notices(t, dir)[0] == filepath.Base(path) }
	require.Eventually(t, exists, 30*time.Second, time.Millisecond)
	require.NoError(t, os.Remove(path))
	require.Eventually(t, exists, 30*time.Second, time.Millisecond)
	worlds, errs := openAll(t.Context(), stepEnv(dir, 1, 2))
	require.NoError(t, errors.Join(errs[0], <-done))
	require.NoError(t, inAll(append(worlds, w), func(w *World) error { return w.KVS.Finalize() }))
	require.Empty(t, notices(t, dir))
}

// process starts a rank as a process, with the value action of helperEnv. It returns the process
// and what the process prints.
func process(t *testing.T, dir string, rank, size int, action string, more ...string) (*exec.Cmd, *strings.Builder) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+action)
	kv := stepEnv(dir, rank, size, more...)
	for i := len(kv) - 2; i >= 0; i -= 2 {
		cmd.Env = append(cmd.Env, kv[i]+"="+kv[i+1])
	}
	out := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, out
}

// TestRanksThatFail checks that the other ranks print the right error and end with the right code
// if one rank is killed, ends without Finalize, or aborts.
func TestRanksThatFail(t *testing.T) {
	const size = 3
	for _, c := range []struct {
		action string
		rank   int
		code   []int
		says   string
	}{
		// Exit code 1: Open fails in the other ranks, because the rank that ends has left the first
		// fence before they have. Exit code 3: Open succeeds, and the fence after it fails.
		{"die", 0, []int{1, 3}, "fence: rank 0, on 127.0.0.1, has gone"},
		{"die", 2, []int{1, 3}, "fence: rank 2, on 127.0.0.1, has gone"},
		{"leave", 0, []int{1, 3}, "fence: rank 0, on 127.0.0.1, has gone"},
		{"leave", 1, []int{1, 3}, "fence: rank 1, on 127.0.0.1, has gone"},
		{"abort", 0, []int{7}, "weft: the job was aborted by rank 0: no more of this\n"},
		{"abort", 1, []int{7}, "weft: the job was aborted by rank 1: no more of this\n"},
	} {
		dir := t.TempDir()
		var cmds [size]*exec.Cmd
		var outs [size]*strings.Builder
		for r := range size {
			cmds[r], outs[r] = process(t, dir, r, size, c.action+" "+strconv.Itoa(c.rank))
		}
		for r, cmd := range cmds {
			_ = cmd.Wait()
			if r != c.rank {
				require.Contains(t, c.code, cmd.ProcessState.ExitCode(), "%v: rank %d: %s", c, r, outs[r])
				require.Contains(t, outs[r].String(), c.says, "%v: rank %d", c, r)
			}
		}
		require.Empty(t, notices(t, dir))
	}
}

// TestRank0IsKilledDuringRendezvous kills rank 0 before all ranks have connected. It checks that
// the rank that has connected ends with an error, and that the notice is removed.
func TestRank0IsKilledDuringRendezvous(t *testing.T) {
	dir := t.TempDir()
	path := noticeOf(t, dir)
	zero, _ := process(t, dir, 0, 3, "1")
	require.Eventually(t, func() bool { _, _, err := readNotice(path); return err == nil }, 30*time.Second, time.Millisecond)
	one, out := process(t, dir, 1, 3, "1", "WEFT_BOOTSTRAP_TIMEOUT", "3s")
	n, _, err := readNotice(path)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return connected(t, zero.Process.Pid, n.Port) }, 30*time.Second, time.Millisecond)
	require.NoError(t, zero.Process.Kill())
	_ = zero.Wait()
	_ = one.Wait()
	require.Equal(t, 1, one.ProcessState.ExitCode())
	require.Regexp(t, "rank 0, on 127.0.0.1, has gone|rank 0 was not found", out.String())
	require.Empty(t, notices(t, dir))
}

// connected reports whether a process has a connection to a port of this host.
func connected(t *testing.T, pid, port int) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/net/tcp")
	require.NoError(t, err)
	local := strings.ToUpper(strconv.FormatInt(int64(port), 16))
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == "01" && strings.HasSuffix(f[1], ":"+strings.Repeat("0", 4-len(local))+local) {
			return true
		}
	}
	return false
}

// TestChildOfARank checks that a program that a rank starts is a world of one, although it inherits
// all variables of the rank.
func TestChildOfARank(t *testing.T) {
	dir := t.TempDir()
	a, out := process(t, dir, 0, 2, "child 0")
	b, _ := process(t, dir, 1, 2, "child 0")
	require.NoError(t, errors.Join(a.Wait(), b.Wait()), out)
	require.Contains(t, out.String(), "although SLURM_STEP_NUM_TASKS=2 is set: the process that started it is a rank\nrank 0 of 1 app 0 by none")
}
