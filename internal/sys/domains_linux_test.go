package sys

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDomains describes a machine of two packages, with two NUMA nodes in the first one, and checks
// the domains of processes that are bound to several sets of its hardware threads.
func TestDomains(t *testing.T) {
	root := t.TempDir()
	write := func(text string, path ...string) {
		file := filepath.Join(append([]string{root}, path...)...)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(text+"\n"), 0o644))
	}
	for _, x := range []struct{ cpu, pkg, core, node, l3 string }{
		{"cpu0", "0", "0", "node0", "0"}, {"cpu1", "0", "0", "node0", "0"}, {"cpu2", "0", "1", "node0", "1"},
		{"cpu3", "0", "2", "node1", "2"}, {"cpu4", "1", "0", "node2", "3"},
	} {
		write(x.pkg, x.cpu, "topology", "physical_package_id")
		write(x.core, x.cpu, "topology", "core_id")
		write("", x.cpu, x.node)
		write("3", x.cpu, "cache", "index3", "level")
		write(x.l3, x.cpu, "cache", "index3", "id")
		write("2", x.cpu, "cache", "index2", "level")
		write("77", x.cpu, "cache", "index2", "id")
	}
	for _, x := range []struct {
		cpus []int
		want Domains
	}{
		{[]int{0}, Domains{0, 0, 0, 0}},
		{[]int{0, 1}, Domains{0, 0, 0, 0}},
		{[]int{1, 2}, Domains{0, 0, -1, -1}},
		{[]int{2}, Domains{0, 0, 1, 1}},
		{[]int{2, 3}, Domains{0, -1, -1, -1}},
		{[]int{4}, Domains{1, 2, 3, 1 << 16}},
		{[]int{0, 4}, noDomains},
		{[]int{9}, noDomains},
		{nil, noDomains},
	} {
		require.Equal(t, x.want, domainsOf(root, x.cpus), "threads %v", x.cpus)
	}
	write("many", "cpu4", "topology", "core_id")
	require.Equal(t, Domains{1, 2, 3, -1}, domainsOf(root, []int{4}))
}
