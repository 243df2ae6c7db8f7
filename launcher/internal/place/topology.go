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

// Topology is what the ranks of a host may be bound to: the hardware threads
// that may be used there, and how they belong together. The order is hwloc's:
// packages and nodes by their lowest thread, cores package after package and
// node after node, so that neighbours in a list are neighbours in the machine
// also where the kernel numbers threads across packages. Check says what else
// holds.
//
// The zero value is a host of which nothing is known.
type Topology struct {
	CPUs     []int   // in ascending order, as in each of the lists below
	Quota    int     // hardware threads' worth of time that a cgroup allows; 0: no limit
	Cores    [][]int // the threads of each physical core; all of CPUs, or nil: not known
	NUMA     [][]int // whole cores; not all of CPUs where a core is of no node
	Packages [][]int // sockets, of whole cores; all of CPUs, or nil: not known
}

// MaxCPUs bounds the numbers of hardware threads.
const MaxCPUs = sys.MaxCPUs

// Here is the topology of this machine as far as this process may use it, with
// the limit that a cgroup sets.
func Here() Topology {
	t := ReadTopology("/sys/devices/system", Allowed())
	if sys.Bind(t.CPUs) != nil { // a rank cannot be bound to what is not known to be there
		t.Cores, t.NUMA, t.Packages = nil, nil, nil
	}
	t.Quota = Quota()
	return t
}

// ReadTopology reads a tree as /sys/devices/system is, as far as it is about
// the allowed hardware threads, which ascend; threads that are offline do not
// count. What the tree does not tell is taken to be one thread per core, one
// node and one package.
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

	packages := make(map[string][]int) // by physical id, which may be any number
	for _, core := range t.Cores {
		text, _ := os.ReadFile(filepath.Join(dir(core[0]), "physical_package_id")) // "" is an id, too
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

// readNodes returns the cores' threads node after node. A core is of the first
// node that has one of its threads: nodes that the kernel makes up for a test of
// memory have threads in common.
func readNodes(sys string, cores [][]int) (nodes [][]int) {
	core := make(map[int]int) // of a thread, as long as that is of no node
	for i, threads := range cores {
		for _, c := range threads {
			core[c] = i
		}
	}
	files, _ := filepath.Glob(filepath.Join(sys, "node", "node[0-9]*", "cpulist")) // a folder with * in its name has none
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
		if len(node) > 0 { // else it is memory alone
			slices.Sort(node)
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// sort brings the lists of units into the order that Topology describes.
func (t *Topology) sort() {
	lowest := func(a, b []int) int { return cmp.Compare(a[0], b[0]) }
	slices.SortFunc(t.NUMA, lowest)
	slices.SortFunc(t.Packages, lowest)
	node, pkg := t.unitOf(t.NUMA), t.unitOf(t.Packages)
	slices.SortFunc(t.Cores, func(a, b []int) int {
		return cmp.Or(cmp.Compare(pkg[a[0]], pkg[b[0]]), cmp.Compare(node[a[0]], node[b[0]]), lowest(a, b))
	})
}

// unitOf says in which of the units each hardware thread stands; -1: in none.
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

// bound is above the number of each hardware thread.
func (t *Topology) bound() int {
	if len(t.CPUs) == 0 {
		return 0
	}
	return t.CPUs[len(t.CPUs)-1] + 1
}

// alike says whether two hosts have the same units.
func (t *Topology) alike(u *Topology) bool {
	same := func(a, b [][]int) bool { return slices.EqualFunc(a, b, slices.Equal[[]int]) }
	return slices.Equal(t.CPUs, u.CPUs) && same(t.Cores, u.Cores) && same(t.NUMA, u.NUMA) && same(t.Packages, u.Packages)
}

// Usable is how many hardware threads the ranks can keep busy at once.
func (t Topology) Usable() int {
	if t.Quota > 0 {
		return min(t.Quota, len(t.CPUs))
	}
	return len(t.CPUs)
}

// Place returns the hardware threads of rank number local of a host's np ranks;
// nil: it is not bound. It may be a part of t, which nobody changes.
//
// With job.BindCore the ranks share out the cores in order: each has its own
// whole cores where there are enough, else neighbours share one. With
// job.BindNUMA each has one of the nodes, which neighbours share likewise.
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

// share is the part of units that the i-th of np ranks has.
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

// MaxProcs is GOMAXPROCS for one of a host's ranks, which are np: the hardware
// threads it is bound to, else its share of them, and never below 2, since a
// computing goroutine on a single one would keep transfers from moving on.
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

// Quota is what the Go runtime has found of a cgroup's limit, which it takes to
// be 2 or more, or else how many hardware threads it uses; 0: it has not looked,
// as GOMAXPROCS is set.
func Quota() int {
	if os.Getenv("GOMAXPROCS") != "" {
		return 0
	}
	return runtime.GOMAXPROCS(0)
}

// Allowed are the hardware threads that this process may use, ascending.
func Allowed() []int {
	list := sys.Allowed(0)
	if len(list) == 0 { // a sandbox does not let us ask, or the system has no such thing
		for c := range runtime.NumCPU() {
			list = append(list, c)
		}
	}
	return list
}
