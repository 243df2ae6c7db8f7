package place

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
)

// shape describes a machine. Its hardware threads have indexes from 0 on. The threads with the
// indexes c and c+cores belong to the same core.
type shape struct {
	packages, cores, threads int // numbers of packages and cores in the machine, and of threads in each core
	nodes                    int // number of NUMA nodes
	// interleaved says that consecutive cores are in different packages and NUMA nodes, as some
	// firmware numbers them.
	interleaved bool
	numbers     []int // the kernel's number of each thread, by index; nil: the index
	offline     []int // the kernel's numbers of threads that are offline
}

// sys makes a directory with the files that ReadTopology reads in the machine's
// /sys/devices/system, and returns its path.
func (s shape) sys(t testing.TB) string {
	t.Helper()
	part := func(core, parts int) int {
		if s.interleaved {
			return core % parts
		}
		return core * parts / s.cores
	}
	files := make(map[string]string)
	var online []int
	nodes := make([][]int, s.nodes)
	for i, c := range s.all() {
		topology := fmt.Sprintf("cpu/cpu%d/topology/", c)
		if slices.Contains(s.offline, c) {
			files[fmt.Sprintf("cpu/cpu%d/online", c)] = "0" // an offline thread has no topology
			continue
		}
		core := i % s.cores
		var siblings []int
		for k := range s.threads {
			if c := s.all()[core+k*s.cores]; !slices.Contains(s.offline, c) {
				siblings = append(siblings, c)
			}
		}
		// New kernels have the first name, old ones the second. The tests use both.
		name := []string{"core_cpus_list", "thread_siblings_list"}[s.packages%2]
		files[topology+name] = FormatCPUs(siblings)
		files[topology+"physical_package_id"] = fmt.Sprint(36 * part(core, s.packages))
		online = append(online, c)
		if s.nodes > 0 {
			n := part(core, s.nodes)
			nodes[n] = append(nodes[n], c)
		}
	}
	files["cpu/online"] = FormatCPUs(online)
	for n, l := range nodes {
		files[fmt.Sprintf("node/node%d/cpulist", n)] = FormatCPUs(l)
	}
	if s.nodes > 0 {
		files[fmt.Sprintf("node/node%d/cpulist", s.nodes)] = "" // a NUMA node that has memory and no threads
	}
	return tree(t, files)
}

// tree makes files with one line each in a new directory, and returns the path of the directory.
// files maps the path of each file in the directory to its line.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		name := filepath.Join(dir, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text+"\n"), 0o644))
	}
	return dir
}

// all returns the kernel's numbers of all threads, by index.
func (s shape) all() []int {
	if s.numbers != nil {
		return s.numbers
	}
	return upTo(s.cores * s.threads)
}

// read returns the topology that ReadTopology finds if all threads of the machine are allowed.
func (s shape) read(t testing.TB) Topology {
	t.Helper()
	return ReadTopology(s.sys(t), s.all())
}

func upTo(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

var (
	twoCores = shape{packages: 1, cores: 2, threads: 1, nodes: 1} // a small virtual machine

	// twoSockets has 2 packages, each with 2 NUMA nodes of 2 cores with 2 threads. fourNodes has the
	// same packages and nodes, with twice as many cores in each.
	twoSockets = shape{packages: 2, cores: 8, threads: 2, nodes: 4}
	fourNodes  = shape{packages: 2, cores: 16, threads: 2, nodes: 4}

	// holes has 2 packages of 2 cores with 2 threads, and the numbers of its threads have gaps.
	holes = shape{packages: 2, cores: 4, threads: 2, nodes: 2, numbers: []int{0, 1, 4, 5, 64, 65, 68, 69}}
)

func TestReadTopology(t *testing.T) {
	for _, c := range []struct {
		name                  string
		shape                 shape
		allowed               []int
		cpus                  string
		cores, numa, packages string
	}{
		{"two cores", twoCores, upTo(2), "0-1", "0;1", "0-1", "0-1"},
		{"two sockets", twoSockets, upTo(16), "0-15", "0,8;1,9;2,10;3,11;4,12;5,13;6,14;7,15",
			"0-1,8-9;2-3,10-11;4-5,12-13;6-7,14-15", "0-3,8-11;4-7,12-15"},
		{"four nodes", fourNodes, upTo(32), "0-31",
			"0,16;1,17;2,18;3,19;4,20;5,21;6,22;7,23;8,24;9,25;10,26;11,27;12,28;13,29;14,30;15,31",
			"0-3,16-19;4-7,20-23;8-11,24-27;12-15,28-31", "0-7,16-23;8-15,24-31"},
		{"interleaved", shape{packages: 2, cores: 4, threads: 2, nodes: 2, interleaved: true}, upTo(8), "0-7", "0,4;2,6;1,5;3,7",
			"0,2,4,6;1,3,5,7", "0,2,4,6;1,3,5,7"},
		{"holes", holes, holes.all(), "0-1,4-5,64-65,68-69", "0,64;1,65;4,68;5,69", "0-1,64-65;4-5,68-69", "0-1,64-65;4-5,68-69"},
		{"more allowed than there are", holes, upTo(70), "0-1,4-5,64-65,68-69", "0,64;1,65;4,68;5,69", "0-1,64-65;4-5,68-69", "0-1,64-65;4-5,68-69"},
		{"some are offline", shape{packages: 2, cores: 4, threads: 2, nodes: 2, offline: []int{1, 4, 5}}, upTo(8), "0,2-3,6-7", "0;2,6;3,7",
			"0;2-3,6-7", "0;2-3,6-7"},
		{"a cpuset", twoSockets, []int{1, 2, 6, 10}, "1-2,6,10", "1;2,10;6", "1;2,10;6", "1-2,10;6"},
		{"one thread per core", shape{packages: 1, cores: 3, threads: 1, nodes: 1}, upTo(3), "0-2", "0;1;2", "0-2", "0-2"},
		{"no nodes", shape{packages: 1, cores: 2, threads: 2}, upTo(4), "0-3", "0,2;1,3", "0-3", "0-3"},
		{"nothing online is allowed", shape{packages: 1, cores: 2, threads: 1, nodes: 1}, []int{7, 9}, "7,9", "7;9", "7,9", "7,9"},
	} {
		topo := ReadTopology(c.shape.sys(t), c.allowed)
		require.Equal(t, c.cpus, FormatCPUs(topo.CPUs), c.name)
		require.Equal(t, c.cores, formatUnits(topo.Cores), c.name)
		require.Equal(t, c.numa, formatUnits(topo.NUMA), c.name)
		require.Equal(t, c.packages, formatUnits(topo.Packages), c.name)
		require.Zero(t, topo.Quota)
		require.NoError(t, topo.Check(), c.name)
	}
	none := ReadTopology("/nonexistent", upTo(2))
	require.Equal(t, Topology{CPUs: upTo(2), Cores: [][]int{{0}, {1}}, NUMA: [][]int{{0, 1}}, Packages: [][]int{{0, 1}}}, none)
	require.Equal(t, Topology{}, ReadTopology("/nonexistent", nil))
}

// TestReadTopologyOdd: ReadTopology must return a valid topology even if the files of the kernel
// contradict each other or are invalid.
func TestReadTopologyOdd(t *testing.T) {
	const siblings, id = "/topology/core_cpus_list", "/topology/physical_package_id"
	for _, c := range []struct {
		name                  string
		files                 map[string]string
		cores, numa, packages string
	}{
		{"nodes in common", map[string]string{"node/node0/cpulist": "0-3", "node/node1/cpulist": "0-3", "node/node2/cpulist": "2-3"},
			"0;1;2;3", "0-3", "0-3"},
		{"a core in two nodes", map[string]string{"cpu/cpu0" + siblings: "0,2", "node/node0/cpulist": "0-1", "node/node1/cpulist": "2-3"},
			"0,2;1;3", "0-2;3", "0-3"},
		{"a core in two packages", map[string]string{"cpu/cpu0" + siblings: "0,2", "cpu/cpu0" + id: "-1", "cpu/cpu2" + id: "7"},
			"0,2;1;3", "0-3", "0,2;1,3"},
		{"cores in common", map[string]string{"cpu/cpu0" + siblings: "0-1", "cpu/cpu1" + siblings: "0-2", "cpu/cpu2" + siblings: "1-3"},
			"0-1;2-3", "0-3", "0-3"},
		{"a core without itself", map[string]string{"cpu/cpu0" + siblings: "1", "cpu/cpu1" + siblings: "what"}, "0;1;2;3", "0-3", "0-3"},
		{"a thread of no node", map[string]string{"node/node0/cpulist": "0-1", "node/node1/cpulist": "3,9"}, "2;0;1;3", "0-1;3", "0-3"},
		{"nodes that are no lists", map[string]string{"node/node0/cpulist": "3-1", "node/nodes/cpulist": "0-3"}, "0;1;2;3", "0-3", "0-3"},
		{"a list of all numbers", map[string]string{"cpu/online": "0-99999999", "node/node0/cpulist": "0-65535"}, "0;1;2;3", "0-3", "0-3"},
	} {
		topo := ReadTopology(tree(t, c.files), upTo(4))
		require.Equal(t, upTo(4), topo.CPUs)
		require.Equal(t, c.cores, formatUnits(topo.Cores), c.name)
		require.Equal(t, c.numa, formatUnits(topo.NUMA), c.name)
		require.Equal(t, c.packages, formatUnits(topo.Packages), c.name)
		require.NoError(t, topo.Check(), c.name)
	}
}

func TestHere(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	topo := Here()
	require.NoError(t, topo.Check())
	require.NotEmpty(t, Allowed())
	require.Len(t, Allowed(), runtime.NumCPU())
	require.Equal(t, Allowed(), topo.CPUs)
	require.Equal(t, runtime.GOMAXPROCS(0), topo.Quota)
	require.Equal(t, min(topo.Quota, len(topo.CPUs)), topo.Usable())
	for _, units := range [][][]int{topo.Cores, topo.NUMA, topo.Packages} {
		all := slices.Concat(units...)
		slices.Sort(all)
		require.Equal(t, topo.CPUs, all)
	}
	t.Setenv("GOMAXPROCS", "1")
	require.Zero(t, Here().Quota)
	require.Equal(t, len(topo.CPUs), Here().Usable())
}

func TestPlace(t *testing.T) {
	topo := shape{packages: 1, cores: 4, threads: 2, nodes: 2}.read(t)
	for _, c := range []struct {
		bind job.Bind
		np   int
		want [][]int
	}{
		{job.BindNone, 2, [][]int{nil, nil}},
		{job.BindCore, 1, [][]int{{0, 1, 2, 3, 4, 5, 6, 7}}},
		{job.BindCore, 2, [][]int{{0, 1, 4, 5}, {2, 3, 6, 7}}},
		{job.BindCore, 3, [][]int{{0, 4}, {1, 5}, {2, 3, 6, 7}}},
		{job.BindCore, 4, [][]int{{0, 4}, {1, 5}, {2, 6}, {3, 7}}},
		{job.BindCore, 8, [][]int{{0, 4}, {0, 4}, {1, 5}, {1, 5}, {2, 6}, {2, 6}, {3, 7}, {3, 7}}},
		{job.BindNUMA, 1, [][]int{{0, 1, 4, 5}}},
		{job.BindNUMA, 3, [][]int{{0, 1, 4, 5}, {0, 1, 4, 5}, {2, 3, 6, 7}}},
	} {
		for r, want := range c.want {
			require.Equal(t, want, topo.Place(c.bind, r, c.np), "%s rank %d of %d", c.bind, r, c.np)
		}
	}
	for _, bind := range []job.Bind{job.BindNone, job.BindCore, job.BindNUMA, "?"} {
		require.Nil(t, Topology{}.Place(bind, 0, 1))
		require.Nil(t, topo.Place(bind, 0, 0), "there is no rank")
		require.Nil(t, topo.Place(bind, 2, 2), "there is no such rank")
		require.Nil(t, topo.Place(bind, -1, 2), "there is no such rank")
	}
}

func TestMaxProcs(t *testing.T) {
	topo := Topology{CPUs: upTo(8)}
	require.Equal(t, 4, topo.MaxProcs(nil, 2))
	require.Equal(t, 2, topo.MaxProcs(nil, 8))
	require.Equal(t, 8, topo.MaxProcs(nil, 0))
	require.Equal(t, 2, topo.MaxProcs([]int{3}, 1))
	require.Equal(t, 4, topo.MaxProcs([]int{0, 1, 2, 3}, 8))
	require.Equal(t, 2, topo.MaxProcs([]int{0, 1}, 1))
	require.Equal(t, 2, Topology{}.MaxProcs(nil, 3), "a host whose cores are not known")
	topo.Quota = 6
	require.Equal(t, 3, topo.MaxProcs(nil, 2))
	require.Equal(t, 6, topo.MaxProcs(upTo(8), 1))
}

func TestUsable(t *testing.T) {
	require.Zero(t, Topology{}.Usable())
	require.Zero(t, Topology{Quota: 3}.Usable())
	require.Equal(t, 8, Topology{CPUs: upTo(8)}.Usable())
	require.Equal(t, 3, Topology{CPUs: upTo(8), Quota: 3}.Usable())
	require.Equal(t, 8, Topology{CPUs: upTo(8), Quota: 30}.Usable())
}
