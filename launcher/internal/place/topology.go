package place

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/job"
)

// Topology describes the hardware threads of a host that ranks may use, and the units to which they
// belong: cores, NUMA nodes and packages. The order of the units is that of hwloc. Packages and
// NUMA nodes are ordered by their lowest thread, cores by package, NUMA node and lowest thread. So
// neighbours in a list are neighbours in the machine, even if the kernel numbers threads
// alternately across packages. [Topology.Check] documents further properties.
//
// The zero value is a host whose hardware is not known.
type Topology struct {
	CPUs []int // the kernel's numbers of the hardware threads; they ascend, as in each unit below
	// Quota is the number of hardware threads whose CPU time the ranks may use together, as a
	// cgroup says; 0: not known, or there is no limit.
	Quota int
	Cores [][]int // threads of each physical core, together all of CPUs; nil: not known
	// NUMA has the threads of each NUMA node, which consists of whole cores; nil: not known. A core
	// may be in no node.
	NUMA [][]int
	// Packages has the threads of each package, together all of CPUs; nil: not known. A package is
	// a socket and consists of whole cores.
	Packages [][]int
}

// MaxCPUs is one more than the largest number of a hardware thread that this package accepts.
const MaxCPUs = sys.MaxCPUs

// Here returns the topology of the hardware threads of this machine that this process may use, with
// the quota of its cgroup. If the system does not let this process bind processes to threads,
// Cores, NUMA and Packages are nil.
func Here() Topology {
	t := ReadTopology("/sys/devices/system", Allowed())
	// Try to bind this process to the threads that it may use anyway. That fails if ranks cannot be
	// bound here.
	if sys.Bind(t.CPUs) != nil {
		t.Cores, t.NUMA, t.Packages = nil, nil, nil
	}
	t.Quota = Quota()
	return t
}

// ReadTopology reads the topology of the hardware threads in allowed, which must ascend, from the
// directory sys: /sys/devices/system, or a directory with the same form. It leaves out threads that
// are offline, unless all are. If files are missing, each thread counts as a core, and all threads
// as one NUMA node and one package.
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

	// packages has, by the package's physical id, which may be any number, the package's threads.
	packages := make(map[string][]int)
	for _, core := range t.Cores {
		// If the file is missing, the id is "".
		text, _ := os.ReadFile(filepath.Join(dir(core[0]), "physical_package_id"))
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

// readNodes returns the threads of each NUMA node. A core belongs to the first node that has one of
// its threads. That matters if nodes share threads, as with the kernel parameter numa=fake.
func readNodes(sys string, cores [][]int) (nodes [][]int) {
	core := make(map[int]int) // by thread that is not in a node yet: the index of its core
	for i, threads := range cores {
		for _, c := range threads {
			core[c] = i
		}
	}
	// An error means that the path sys has characters of a pattern. Then there are no nodes.
	files, _ := filepath.Glob(filepath.Join(sys, "node", "node[0-9]*", "cpulist"))
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

// sort sorts Cores, NUMA and Packages into the order that Topology documents.
func (t *Topology) sort() {
	lowest := func(a, b []int) int { return cmp.Compare(a[0], b[0]) }
	slices.SortFunc(t.NUMA, lowest)
	slices.SortFunc(t.Packages, lowest)
	node, pkg := t.unitOf(t.NUMA), t.unitOf(t.Packages)
	slices.SortFunc(t.Cores, func(a, b []int) int {
		return cmp.Or(cmp.Compare(pkg[a[0]], pkg[b[0]]), cmp.Compare(node[a[0]], node[b[0]]), lowest(a, b))
	})
}

// unitOf returns, by number of a hardware thread, the index in units of the unit that has this
// thread; -1: there is none.
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

// bound returns one more than the largest number of a hardware thread of the host, or 0 if it has
// none.
func (t *Topology) bound() int {
	if len(t.CPUs) == 0 {
		return 0
	}
	return t.CPUs[len(t.CPUs)-1] + 1
}

// equal reports whether t and u have the same hardware threads, cores, NUMA nodes and packages. It
// does not compare the quotas.
func (t *Topology) equal(u *Topology) bool {
	same := func(a, b [][]int) bool { return slices.EqualFunc(a, b, slices.Equal[[]int]) }
	return slices.Equal(t.CPUs, u.CPUs) && same(t.Cores, u.Cores) && same(t.NUMA, u.NUMA) && same(t.Packages, u.Packages)
}

// Without returns the topology without the hardware threads in busy. If no core would be left, or the
// cores are not known, it returns the whole topology.
func (t Topology) Without(busy map[int]bool) Topology {
	free := func(units [][]int) (list [][]int) {
		for _, u := range units {
			if u = slices.DeleteFunc(slices.Clone(u), func(cpu int) bool { return busy[cpu] }); len(u) > 0 {
				list = append(list, u)
			}
		}
		return list
	}
	busy = maps.Clone(busy)
	var cores [][]int // a core is free only if none of its threads is busy
	for _, c := range t.Cores {
		if !slices.ContainsFunc(c, func(cpu int) bool { return busy[cpu] }) {
			cores = append(cores, c)
		} else {
			for _, cpu := range c {
				busy[cpu] = true
			}
		}
	}
	if len(busy) == 0 || len(cores) == 0 {
		return t
	}
	t.CPUs = slices.DeleteFunc(slices.Clone(t.CPUs), func(cpu int) bool { return busy[cpu] })
	t.Cores, t.NUMA, t.Packages = cores, free(t.NUMA), free(t.Packages)
	return t
}

// Usable returns the number of hardware threads that the ranks can use at the same time: all of the
// host, but no more than Quota, if that is not 0.
func (t Topology) Usable() int {
	if t.Quota > 0 {
		return min(t.Quota, len(t.CPUs))
	}
	return len(t.CPUs)
}

// Place returns the hardware threads to which a rank is bound, or nil if it is not bound, because
// bind says so or the cores or NUMA nodes are not known. local is the number of the rank among the
// np ranks of the host, from 0 on. The result may share memory with t, so the caller must not
// change its elements.
//
// With job.BindCore the ranks divide the cores among themselves, in order: each rank gets whole
// cores of its own or, if there are fewer cores than ranks, consecutive ranks share a core. With
// job.BindNUMA each rank gets one NUMA node, and consecutive ranks share a node in the same way.
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

// share returns the hardware threads of those units, cores or NUMA nodes, that rank i of np ranks
// gets, ascending, if the ranks divide the units among themselves in order. If there are fewer
// units than ranks, ranks share units.
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

// MaxProcs returns GOMAXPROCS for one of the np ranks of a host. bound holds the hardware threads
// to which the rank is bound; empty: it is not bound. The result is the number of these threads, or
// else the rank's share of all threads, but no more than its share of the quota. The result is at
// least 2, so that transfers continue while one goroutine computes.
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

// Quota returns the number of hardware threads whose CPU time the cgroup of this process allows it
// to use. Quota does not read the cgroup itself. It returns this process's GOMAXPROCS, because the
// Go runtime reads the cgroup to choose it. So without a limit the result is the number of hardware
// threads, and with a limit it is at least 2. If the environment variable GOMAXPROCS is set, the
// runtime does not read the cgroup, and Quota returns 0.
func Quota() int {
	if os.Getenv("GOMAXPROCS") != "" {
		return 0
	}
	return runtime.GOMAXPROCS(0)
}

// Allowed returns the hardware threads that this process may use, ascending.
func Allowed() []int {
	list := sys.Allowed(0)
	if len(list) == 0 { // a sandbox forbids the system call, or the system does not have it
		for c := range runtime.NumCPU() {
			list = append(list, c)
		}
	}
	return list
}
