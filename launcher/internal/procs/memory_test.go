package procs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOOMCount checks the text that [oomCount.reason] returns: it begins with "because" if the
// kernel counts the kills in this process's cgroup, and with "perhaps" if the kernel counts only
// those of the whole host.
func TestOOMCount(t *testing.T) {
	for name, c := range map[string]struct {
		cgroup string            // content of /proc/self/cgroup
		count  string            // path of the file with the kernel's count
		files  map[string]string // by path: content of the other files
		want   string
	}{
		"version 2": {"0::/a/b\n", "sys/a/b/memory.events",
			map[string]string{"sys/a/b/memory.max": "max\n", "sys/a/memory.max": "67108864\n"}, "because memory ran out: its cgroup may use 64 MiB"},
		"version 2, no limit": {"0::/a\n", "sys/a/memory.events", nil, "because memory ran out"},
		"container":           {"0::/on/the/host\n", "sys/memory.events", map[string]string{"sys/memory.max": "1048576\n"}, "because memory ran out: its cgroup may use 1 MiB"},
		"version 1": {"8:pids:/\n4:memory:/a\n0::/\n", "sys/memory/a/memory.oom_control",
			map[string]string{"sys/memory/a/memory.stat": "cache 1\nhierarchical_memory_limit 33554432\n"}, "because memory ran out: its cgroup may use 32 MiB"},
		"version 1, no limit": {"4:memory:/a\n", "sys/memory/a/memory.oom_control",
			map[string]string{"sys/memory/a/memory.stat": "hierarchical_memory_limit 9223372036854771712\n"}, "because memory ran out"},
		"no cgroup": {"0::/\n", "proc/vmstat", nil, "perhaps because memory ran out: the kernel has killed a process of its host for that"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write := func(name, text string) {
				name = filepath.Join(dir, name)
				require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
				require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
			}
			write("proc/self/cgroup", c.cgroup)
			for name, text := range c.files {
				write(name, text)
			}
			kills := func(n int) { write(c.count, fmt.Sprintf("low 0\noom 9\noom_kill %d\n", n)) }
			kills(3)
			count := newOOMCount(filepath.Join(dir, "proc"), filepath.Join(dir, "sys"))
			require.Empty(t, count.reason())
			kills(5)
			require.Equal(t, []string{c.want, c.want, ""}, []string{count.reason(), count.reason(), count.reason()})

			kills(6)
			count.forget()
			require.Equal(t, c.want, count.reason(), "the rank's end may be noticed a little later")
			kills(8)
			count.forget()
			count.forget()
			require.Empty(t, count.reason(), "the victims were not ranks")
			kills(9)
			require.Equal(t, []string{c.want, ""}, []string{count.reason(), count.reason()})
		})
	}
	dir := t.TempDir() // there is no file with the kernel's count
	require.Empty(t, newOOMCount(dir, dir).reason())
}
