//go:build linux

package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/test/cluster/run"
)

// TestProfile makes profiles of four ranks on three hosts, of which each is below the one before or gorun
// is the parent of all. Each rank must have samples with the name of its host.
func TestProfile(t *testing.T) {
	c := hosts(t)
	for _, radix := range []string{"1", "64"} {
		dir := t.TempDir()
		r := c.gorunOn("1:2,2:1,3:1", "-radix", radix, "-np", "4", "-profile", "goroutine,heap", "-profile-dir", dir, run.Rank(), "hello").Run(t)
		run.RequireLines(t, r, 0, "goroutine profile of 4 ranks: "+dir+"/weft-.*", "heap profile of 4 ranks: "+dir+"/weft-.*")
		want := map[int64]string{0: c.name(1), 1: c.name(1), 2: c.name(2), 3: c.name(3)}
		require.Equal(t, want, run.HostsIn(run.Profile(t, dir, "goroutine"), "main.main"))
	}
}

// TestProfileOfKilledRanks kills a rank, and the agent of a host, in jobs that go on. gorun must name the ranks
// without a profile, and have the profiles of the others.
func TestProfileOfKilledRanks(t *testing.T) {
	c := hosts(t)
	for _, how := range []string{"rank", "agent"} {
		dir := t.TempDir()
		failed, says := "2", []string{"rank 3 .*", `no profile of rank 3: it was killed by signal 9 \(SIGKILL\)`}
		if how == "rank" {
			failed = "1"
		} else {
			says = []string{c.name(2) + ": .*", "no profile of ranks 2-3: its host is lost: " + c.name(2) + ": .*"}
		}
		p := c.gorunOn("1:2,2:2,3:2", "-on-failure", "notify", "-np", "6", "-profile", "goroutine", "-profile-dir", dir, run.Rank(), "notify", failed).Start(t)
		p.AwaitStdout(6, "up\n")
		want := map[int64]string{0: c.name(1), 1: c.name(1), 4: c.name(3), 5: c.name(3)}
		if how == "rank" {
			kill(t, c.rankOf(3))
			want[2] = c.name(2)
		} else {
			kill(t, c.only(2, run.Watchdog), c.only(2, agent))
		}
		run.RequireLines(t, p.Wait(), 0, append(says, "goroutine profile of .*")...)
		require.Equal(t, want, run.HostsIn(run.Profile(t, dir, "goroutine"), "main.main"))
	}
}

// TestProfileOnAFullDisk writes profiles to a file system with one page. gorun must exit with 1 and the cause,
// and must leave no file there.
func TestProfileOnAFullDisk(t *testing.T) {
	hosts(t)
	dir := t.TempDir()
	const script = `mount -t tmpfs -o size=4k none "$0" && { "$@"; code=$?; ls -A "$0"; exit $code; }`
	cmd := exec.Command("unshare", "-m", "sh", "-c", script, dir, run.Program("gorun"), "-n", "2", "-profile", "goroutine,heap,allocs", "-profile-dir", dir, run.Rank(), "hello")
	cmd.Env = append(run.CleanEnv(), "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	require.Error(t, err, "%s", out)
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", out)
	require.Regexp(t, `gorun: the profiles are lost: no space left on device\n$`, string(out))
	left, err := os.ReadDir(filepath.Clean(dir))
	require.NoError(t, err)
	require.Empty(t, left) // the file system has ended with unshare
}

// TestProfileOfARestart: the first run of a job ends with a killed rank, and the second one well. gorun must name
// the ranks of the first run, and write the profile of the second.
func TestProfileOfARestart(t *testing.T) {
	c := hosts(t)
	dir := t.TempDir()
	r := c.gorunOn("1:2,2:1", "-on-failure", "restart", "-np", "3", "-profile", "goroutine", "-profile-dir", dir, run.Rank(), "once", "2").Run(t)
	require.Zero(t, r.Code, r.Stderr)
	require.Contains(t, r.Stderr, "gorun: no profile of rank 2: it was killed by signal 9 (SIGKILL)\n")
	want := map[int64]string{0: c.name(1), 1: c.name(1), 2: c.name(2)}
	require.Equal(t, want, run.HostsIn(run.Profile(t, dir, "goroutine"), "main.main"))
}

// TestProfileOfAKilledGorun kills gorun while the ranks run. No process and no file may stay, also not in the
// directory for profiles.
func TestProfileOfAKilledGorun(t *testing.T) {
	c := hosts(t)
	dir := t.TempDir()
	p := c.gorunOn("1:2,2:1", "-np", "3", "-profile", "cpu,heap", "-profile-dir", dir, run.Rank(), "wait").Start(t)
	p.AwaitStdout(3, "up")
	p.Signal(syscall.SIGKILL)
	require.Equal(t, 128+int(syscall.SIGKILL), p.Wait().Code)
	c.awaitGone(1, 2)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}
