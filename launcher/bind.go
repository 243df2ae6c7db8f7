package launcher

import (
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// topology is what the ranks may be bound to: the hardware threads that this
// process may use, grouped by core and by NUMA node, each in ascending order.
type topology struct {
	cpus  []int
	quota int // hardware threads' worth of time that a cgroup allows; 0: no limit
	cores [][]int
	numa  [][]int
}

// readTopology reads /sys/devices/system; what it does not tell is taken to be
// one thread per core and one node.
func readTopology(sys string, allowed []int) topology {
	t := topology{cpus: allowed}
	may := make(map[int]bool, len(allowed))
	for _, c := range allowed {
		may[c] = true
	}
	seen := make(map[int]bool)
	for _, c := range allowed {
		if seen[c] {
			continue
		}
		core := []int{c}
		dir := filepath.Join(sys, "cpu", "cpu"+strconv.Itoa(c), "topology")
		for _, name := range []string{"core_cpus_list", "thread_siblings_list"} {
			if l := filter(readCPUList(filepath.Join(dir, name)), may); len(l) > 0 {
				core = l
				break
			}
		}
		for _, c := range core {
			seen[c] = true
		}
		t.cores = append(t.cores, core)
	}
	nodes, _ := filepath.Glob(filepath.Join(sys, "node", "node[0-9]*", "cpulist"))
	for _, file := range nodes {
		if l := filter(readCPUList(file), may); len(l) > 0 {
			t.numa = append(t.numa, l)
		}
	}
	sort.Slice(t.numa, func(i, k int) bool { return t.numa[i][0] < t.numa[k][0] })
	if len(t.numa) == 0 {
		t.numa = [][]int{allowed}
	}
	return t
}

// place returns the hardware threads of a rank; nil: it is not bound.
//
// With BindCore, np ranks share out the cores in order: each has its own
// whole cores where there are enough, else they take turns. With BindNUMA they
// share out the nodes likewise.
func (t topology) place(bind job.Bind, rank, np int) []int {
	units := t.cores
	switch bind {
	case job.BindCore:
	case job.BindNUMA:
		units = t.numa
	case job.BindNone:
		return nil
	default:
		return nil
	}
	n := len(units)
	if n == 0 {
		return nil
	}
	if np > n {
		return units[rank*n/np] // neighbours stay together
	}
	if bind == job.BindNUMA {
		return units[rank*n/np]
	}
	var set []int
	for _, u := range units[rank*n/np : (rank+1)*n/np] {
		set = append(set, u...)
	}
	sort.Ints(set)
	return set
}

// maxprocs is GOMAXPROCS for a rank: the hardware threads it is bound to, else
// its share of them, and never below 2, since a computing goroutine on a single
// one would keep transfers from moving on.
func (t topology) maxprocs(bound []int, np int) int {
	n := len(bound)
	if n == 0 {
		n = len(t.cpus) / np
	}
	if t.quota > 0 {
		n = min(n, t.quota/np)
	}
	return max(n, 2)
}

// cpuQuota is what the Go runtime has found of a cgroup's limit.
func cpuQuota() int {
	if os.Getenv("GOMAXPROCS") != "" {
		return 0 // the runtime has not looked
	}
	return runtime.GOMAXPROCS(0)
}

// usableCores is how many hardware threads the ranks can keep busy at once.
func usableCores() int {
	if q := cpuQuota(); q > 0 {
		return min(q, runtime.NumCPU())
	}
	return runtime.NumCPU()
}

// allowedCPUs are the hardware threads that this process may use.
func allowedCPUs() []int {
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

func cpuSet(cpus []int) *unix.CPUSet {
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	return &set
}

func readCPUList(file string) []int {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return parseCPUList(strings.TrimSpace(string(text)))
}

// parseCPUList reads the kernel's "0-3,8,10-11"; nil if it is something else.
func parseCPUList(text string) []int {
	var list []int
	for part := range strings.SplitSeq(text, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(lo)
		b := a
		if err == nil && isRange {
			b, err = strconv.Atoi(hi)
		}
		if err != nil || a < 0 || b < a || b >= 1<<16 {
			return nil
		}
		for c := a; c <= b; c++ {
			list = append(list, c)
		}
	}
	return list
}

func filter(list []int, may map[int]bool) []int {
	var out []int
	for _, c := range list {
		if may[c] {
			out = append(out, c)
		}
	}
	return out
}
