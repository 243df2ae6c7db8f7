//go:build linux

package launcher

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// memoryCgroup makes a cgroup with a memory limit, in bytes, below the cgroup of this process, and
// returns its directory. It skips the test if this process may not make such a cgroup.
func memoryCgroup(t *testing.T, limit int) (dir string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, v := range []struct{ controller, root, limit, swap string }{
			{"memory", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"},
			{"", "/sys/fs/cgroup", "memory.max", "memory.swap.max"},
		} {
			dir := filepath.Join(v.root, f[2], fmt.Sprintf("weft-test-%d", os.Getpid()))
			if f[1] != v.controller || os.Mkdir(dir, 0o755) != nil {
				continue
			}
			t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
			if os.WriteFile(filepath.Join(dir, v.limit), fmt.Append(nil, limit), 0) != nil {
				continue
			}
			swap := 0
			if v.controller != "" {
				swap = limit
			}
			// This forbids swap. An error means that the kernel does not count swap, and does no
			// harm.
			_ = os.WriteFile(filepath.Join(dir, v.swap), fmt.Append(nil, swap), 0)
			return dir
		}
	}
	t.Skip("this process may make no memory cgroup; procs.TestOOMCount has the rest")
	return ""
}

// TestOutOfMemory: rank 1 uses more memory than the cgroup of the job allows, so the kernel kills
// rank 1. gorun must report that reason, and the limit.
func TestOutOfMemory(t *testing.T) {
	dir := memoryCgroup(t, 192<<20)
	// The command tail keeps the last line in memory, which here never ends.
	j := testJob(2, "-c", "test $PMI_RANK = 1 || exec sleep 1000; exec tail /dev/zero")
	j.Apps[0].Program = "sh"
	cmd := gorunCommand(t, j)
	sh := exec.Command("sh", "-c", "echo $$ > "+filepath.Join(dir, "cgroup.procs")+" && exec "+cmd.Path)
	sh.Env = cmd.Env
	out, err := sh.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 137, exit.ExitCode(), string(out))
	require.Contains(t, string(out), "gorun: rank 1 was killed by signal 9 (SIGKILL), because memory ran out: its cgroup may use 192 MiB: sh, pid ")
}
