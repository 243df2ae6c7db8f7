//go:build linux && !portable

package shm

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryLeft(t *testing.T) {
	const none = math.MaxInt64
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"nothing known": {nil, none},
		"host":          {map[string]string{"proc/meminfo": "MemTotal: 999 kB\nMemAvailable:  100 kB\nSwapFree: 20 kB\n"}, 120 << 10},
		"no limit": {map[string]string{
			"proc/meminfo": "MemAvailable: 100 kB\n", "proc/self/cgroup": "0::/\n",
			"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "5\n",
		}, 100 << 10},
		"limit of a group above": {map[string]string{
			"proc/meminfo": "MemAvailable: 100 kB\n", "proc/self/cgroup": "1:cpu:/x\n0::/a/b\n",
			"sys/fs/cgroup/a/memory.max": "5000\n", "sys/fs/cgroup/a/memory.current": "3000\n",
			"sys/fs/cgroup/a/memory.stat":  "anon 7\ninactive_file 500\n",
			"sys/fs/cgroup/a/b/memory.max": "4000\n", "sys/fs/cgroup/a/b/memory.current": "100\n",
		}, 2500},
		"limit of the first version": {map[string]string{
			"proc/self/cgroup": "4:memory:/g\n0::/\n",
			"sys/fs/cgroup/memory/g/memory.limit_in_bytes": "1000\n", "sys/fs/cgroup/memory/g/memory.usage_in_bytes": "400\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
		}, 600},
		"beyond the limit": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "100\n", "sys/fs/cgroup/memory.current": "300\n",
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for file, text := range c.files {
				path := filepath.Join(root, file)
				require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			}
			require.Equal(t, c.want, memoryLeft(root))
		})
	}
	left := memoryLeft("/")
	require.Positive(t, left)
	require.Less(t, left, int64(1)<<50, "this host must report its memory")
}
