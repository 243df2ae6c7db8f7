package place

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// Topology is what the ranks of a host may be bound to: the hardware threads
// that may be used there, and how they belong together. A thread stands in one
// core, in at most one NUMA node and in one package. The order is hwloc's:
// packages and nodes by their lowest thread, cores package after package and
// node after node, so that neighbours in a list are neighbours in the machine
// also where the kernel numbers threads across packages.
//
// The zero value is a host of which nothing is known.
type Topology struct {
	CPUs     []int   // in ascending order, as in each of the lists below
	Quota    int     // hardware threads' worth of time that a cgroup allows; 0: no limit
	Cores    [][]int // the threads of each physical core
	NUMA     [][]int
	Packages [][]int // sockets
}

// maxCPUs bounds the numbers of hardware threads; the kernel's own bound is
// lower.
const maxCPUs = 1 << 16

// Here is the topology of this machine as far as this process may use it, with
// the limit that a cgroup sets.
func Here() Topology {
	t := ReadTopology("/sys/devices/system", Allowed())
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

	left = setOf(t.CPUs)
	nodes, _ := filepath.Glob(filepath.Join(sys, "node", "node[0-9]*", "cpulist")) // a folder with * in its name has none
	for _, file := range nodes {
		l := filter(readCPUs(file), left)
		if len(l) == 0 { // memory alone
			continue
		}
		for _, c := range l {
			delete(left, c)
		}
		t.NUMA = append(t.NUMA, l)
	}
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

// sort brings the lists of units into the order that Topology describes.
func (t *Topology) sort() {
	lowest := func(a, b []int) int { return cmp.Compare(a[0], b[0]) }
	slices.SortFunc(t.NUMA, lowest)
	slices.SortFunc(t.Packages, lowest)
	node, pkg := indexUnits(t.NUMA), indexUnits(t.Packages)
	slices.SortFunc(t.Cores, func(a, b []int) int {
		return cmp.Or(cmp.Compare(pkg[a[0]], pkg[b[0]]), cmp.Compare(node[a[0]], node[b[0]]), lowest(a, b))
	})
}

// indexUnits says in which unit each hardware thread stands.
func indexUnits(units [][]int) map[int]int {
	at := make(map[int]int)
	for i, u := range units {
		for _, c := range u {
			at[c] = i
		}
	}
	return at
}

// Usable is how many hardware threads the ranks can keep busy at once.
func (t Topology) Usable() int {
	if t.Quota > 0 {
		return min(t.Quota, len(t.CPUs))
	}
	return len(t.CPUs)
}

// Place returns the hardware threads of one of a host's ranks, which are np;
// nil: it is not bound. It may be a part of t, which nobody changes.
//
// With job.BindCore the ranks share out the cores in order: each has its own
// whole cores where there are enough, else neighbours share one. With
// job.BindNUMA each has one of the nodes, which neighbours share likewise.
func (t Topology) Place(bind job.Bind, local, np int) []int {
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

// Quota is what the Go runtime has found of a cgroup's limit; 0: it has not
// looked, as GOMAXPROCS is set.
func Quota() int {
	if os.Getenv("GOMAXPROCS") != "" {
		return 0
	}
	return runtime.GOMAXPROCS(0)
}

// Allowed are the hardware threads that this process may use.
func Allowed() []int {
	var set unix.CPUSet
	var list []int
	if err := unix.SchedGetaffinity(0, &set); err == nil {
		for c := range len(set) * 64 {
			if set.IsSet(c) {
				list = append(list, c)
			}
		}
	}
	if len(list) == 0 { // more of them than a CPUSet holds
		for c := range runtime.NumCPU() {
			list = append(list, c)
		}
	}
	return list
}

// encoded is a Topology on its way from host to host; lists are written as the
// kernel writes them, units with a semicolon between.
type encoded struct {
	CPUs     string `json:"cpus"`
	Quota    int    `json:"quota,omitempty"`
	Cores    string `json:"cores,omitempty"`
	NUMA     string `json:"numa,omitempty"`
	Packages string `json:"packages,omitempty"`
}

// MarshalJSON writes what UnmarshalJSON reads; a large host takes about 1 KB.
func (t Topology) MarshalJSON() ([]byte, error) {
	return json.Marshal(encoded{FormatCPUs(t.CPUs), t.Quota, formatUnits(t.Cores), formatUnits(t.NUMA), formatUnits(t.Packages)})
}

// UnmarshalJSON refuses what no host can be: units of hardware threads that are
// not among the host's, or that stand in two of them.
func (t *Topology) UnmarshalJSON(text []byte) error {
	var e encoded
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("topology: %w", err)
	}
	cpus := ParseCPUs(e.CPUs)
	if cpus == nil && e.CPUs != "" {
		return fmt.Errorf("topology: expected a list of hardware threads, found %s", excerpt(e.CPUs))
	}
	if e.Quota < 0 {
		return fmt.Errorf("topology: expected a quota of 0 or more, found %d", e.Quota)
	}
	read := Topology{CPUs: cpus, Quota: e.Quota}
	for _, l := range []struct {
		name, text string
		units      *[][]int
	}{{"cores", e.Cores, &read.Cores}, {"numa", e.NUMA, &read.NUMA}, {"packages", e.Packages, &read.Packages}} {
		var ok bool
		if *l.units, ok = parseUnits(l.text, cpus); !ok {
			return fmt.Errorf("topology: %s: expected lists of different hardware threads of the host, found %s", l.name, excerpt(l.text))
		}
	}
	*t = read
	return nil
}

func formatUnits(units [][]int) string {
	texts := make([]string, len(units))
	for i, u := range units {
		texts[i] = FormatCPUs(u)
	}
	return strings.Join(texts, ";")
}

// parseUnits reads what formatUnits writes. Each thread stands there at most
// once, so what is read is not larger than the host.
func parseUnits(text string, cpus []int) (units [][]int, ok bool) {
	if text == "" {
		return nil, true
	}
	left := setOf(cpus)
	for part := range strings.SplitSeq(text, ";") {
		l := ParseCPUs(part)
		if l == nil {
			return nil, false
		}
		for _, c := range l {
			if !left[c] {
				return nil, false
			}
			delete(left, c)
		}
		units = append(units, l)
	}
	return units, true
}
