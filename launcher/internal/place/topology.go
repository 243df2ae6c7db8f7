package place

import (
	"cmp"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/job"
)

// Topology describes the hardware threads of a host that ranks may use, and the cores, NUMA nodes and
// packages that they form. The order is that of hwloc: packages and nodes by their lowest thread, cores by
// package and node. So neighbours in a list are neighbours in the machine, even if the kernel numbers
// threads across packages. Check documents further properties.
//
// The zero value is a host whose hardware is not known.
type Topology struct {
	CPUs     []int   // ascending, as is each list below
	Quota    int     // number of hardware threads whose time a cgroup allows; 0: no limit
	Cores    [][]int // threads of each physical core, together all of CPUs; nil: not known
	NUMA     [][]int // threads of each NUMA node: whole cores. A core may be in no node
	Packages [][]int // threads of each socket: whole cores, together all of CPUs; nil: not known
}

// MaxCPUs bounds the numbers of hardware threads.
const MaxCPUs = sys.MaxCPUs

// Here returns the topology of this machine as far as this process may use it, with the quota of its
// cgroup.
func Here() Topology {
	t := ReadTopology("/sys/devices/system", Allowed())
	if sys.Bind(t.CPUs) != nil { // ranks cannot be bound here
		t.Cores, t.NUMA, t.Packages = nil, nil, nil
	}
	t.Quota = Quota()
	return t
}

// ReadTopology reads the topology of the allowed hardware threads, which ascend, from a tree such as
// /sys/devices/system. It leaves out threads that are offline. If the tree lacks information, each thread
// counts as a core, and all threads as one node and one package.
func ReadTopology(sys string, allowed []int) Topology {
	t := Topology{CPUs: slices.Clone(allowed)}
	if online := filter(readCPUs(filepath.Join(sys, "cpu", "online")), setOf(allowed)); len(online) > 0 {
		t.CPUs = online
	}
	dir := func(cpu int) string { return filepath.Join(sys, "cpu", "cpu"+strconv.Itoa(cpu), "topology") }
	left := setOf(t.CPUs)
	for _, c := range t.CPUs {
		if !left[c] {
			continue
		}
		core := []int{c}
		for _, name := range []string{"core_cpus_list", "thread_siblings_list"} {
			if l := filter(readCPUs(filepath.Join(dir(c), name)), left); slices.Contains(l, c) {
				core = l
				break
			}
		}
		for _, c := range core {
			delete(left, c)
		}
		t.Cores = append(t.Cores, core)
	}

	t.NUMA = readNodes(sys, t.Cores)
	if len(t.NUMA) == 0 && len(t.CPUs) > 0 {
		t.NUMA = [][]int{t.CPUs}
	}

	packages := make(map[string][]int) // by physical id, which is any number
	for _, core := range t.Cores {
		text, _ := os.ReadFile(filepath.Join(dir(core[0]), "physical_package_id")) // "" counts as an id
		id := strings.TrimSpace(string(text))
		packages[id] = append(packages[id], core...)
	}
	for _, l := range packages {
		slices.Sort(l)
		t.Packages = append(t.Packages, l)
	}
	t.sort()
	return t
}

// readNodes returns the threads of each NUMA node. A core belongs to the first node with one of its
// threads, because the fake nodes that a kernel makes for tests (numa=fake) share threads.
func readNodes(sys string, cores [][]int) (nodes [][]int) {
	core := make(map[int]int) // core of each thread that is not in a node yet
	for i, threads := range cores {
		for _, c := range threads {
			core[c] = i
		}
	}
	files, _ := filepath.Glob(filepath.Join(sys, "node", "node[0-9]*", "cpulist")) // if sys contains *, there are no nodes
	for _, file := range files {
		var node []int
		for _, c := range readCPUs(file) {
			if i, ok := core[c]; ok {
				node = append(node, cores[i]...)
				for _, c := range cores[i] {
					delete(core, c)
				}
			}
		}
		if len(node) > 0 { // a node may have only memory
			slices.Sort(node)
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// sort sorts the units into the order that Topology documents.
func (t *Topology) sort() {
	lowest := func(a, b []int) int { return cmp.Compare(a[0], b[0]) }
	slices.SortFunc(t.NUMA, lowest)
	slices.SortFunc(t.Packages, lowest)
	node, pkg := t.unitOf(t.NUMA), t.unitOf(t.Packages)
	slices.SortFunc(t.Cores, func(a, b []int) int {
		return cmp.Or(cmp.Compare(pkg[a[0]], pkg[b[0]]), cmp.Compare(node[a[0]], node[b[0]]), lowest(a, b))
	})
}

// unitOf returns the index of the unit of each hardware thread; -1: none.
func (t *Topology) unitOf(units [][]int) []int {
	at := make([]int, t.bound())
	for c := range at {
		at[c] = -1
	}
	for i, u := range units {
		for _, c := range u {
			at[c] = i
		}
	}
	return at
}

// bound returns a number above that of each hardware thread.
func (t *Topology) bound() int {
	if len(t.CPUs) == 0 {
		return 0
	}
	return t.CPUs[len(t.CPUs)-1] + 1
}

// equal reports whether two hosts have the same hardware threads and units.
func (t *Topology) equal(u *Topology) bool {
	same := func(a, b [][]int) bool { return slices.EqualFunc(a, b, slices.Equal[[]int]) }
	return slices.Equal(t.CPUs, u.CPUs) && same(t.Cores, u.Cores) && same(t.NUMA, u.NUMA) && same(t.Packages, u.Packages)
}

// Usable returns the number of hardware threads that the ranks can use at the same time.
func (t Topology) Usable() int {
	if t.Quota > 0 {
		return min(t.Quota, len(t.CPUs))
	}
	return len(t.CPUs)
}

// Place returns the hardware threads of rank number local of the np ranks of a host; nil: it is not bound.
// The result may share memory with t, so the caller must not change it.
//
// With job.BindCore the ranks divide the cores in order: each has whole cores of its own, or, if there are
// fewer cores than ranks, neighbours share one. With job.BindNUMA they divide the nodes in the same way.
func (t Topology) Place(bind job.Bind, local, np int) []int {
	if local < 0 || local >= np {
		return nil
	}
	switch bind {
	case job.BindCore:
		return share(t.Cores, local, np)
	case job.BindNUMA:
		if n := len(t.NUMA); n > 0 {
			return t.NUMA[local*n/np]
		}
	case job.BindNone:
	default:
	}
	return nil
}

// share returns the part of units for the i-th of np ranks.
func share(units [][]int, i, np int) []int {
	n := len(units)
	lo, hi := i*n/np, (i+1)*n/np
	switch {
	case n == 0:
		return nil
	case hi <= lo+1:
		return units[lo]
	}
	set := slices.Concat(units[lo:hi]...)
	slices.Sort(set)
	return set
}

// MaxProcs returns GOMAXPROCS for one of the np ranks of a host: the number of hardware threads that it is
// bound to, or else its share of all threads. The result is at least 2, so that transfers continue while
// one goroutine computes.
func (t Topology) MaxProcs(bound []int, np int) int {
	np = max(np, 1)
	n := len(bound)
	if n == 0 {
		n = len(t.CPUs) / np
	}
	if t.Quota > 0 {
		n = min(n, t.Quota/np)
	}
	return max(n, 2)
}

// Quota returns the number of hardware threads whose time the cgroup allows. It is the default of
// GOMAXPROCS, for which the Go runtime reads the cgroup; so it is at least 2 if there is a limit. Quota
// returns 0 if GOMAXPROCS is set, because then the runtime does not read the cgroup.
func Quota() int {
	if os.Getenv("GOMAXPROCS") != "" {
		return 0
	}
	return runtime.GOMAXPROCS(0)
}

// Allowed returns the hardware threads that this process may use, ascending.
func Allowed() []int {
	list := sys.Allowed(0)
	if len(list) == 0 { // a sandbox forbids the call, or the system does not have it
		for c := range runtime.NumCPU() {
			list = append(list, c)
		}
	}
	return list
}
