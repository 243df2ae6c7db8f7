package sys

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OwnDomains returns the domains of this process.
func OwnDomains() Domains {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return noDomains
	}
	var cpus []int
	for cpu := 0; len(cpus) < set.Count() && cpu < MaxCPUs; cpu++ {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return domainsOf("/sys/devices/system/cpu", cpus)
}

// domainsOf returns the domains of a process that may run on the hardware threads cpus. root is
// /sys/devices/system/cpu, or a directory of the same form.
func domainsOf(root string, cpus []int) Domains {
	common := noDomains
	for i, cpu := range cpus {
		d := domainsOfThread(filepath.Join(root, "cpu"+strconv.Itoa(cpu)))
		if i == 0 {
			common = d
		}
		for k := range common {
			if common[k] != d[k] {
				common[k] = -1
			}
		}
		if common == noDomains {
			break
		}
	}
	return common
}

// domainsOfThread returns the domains of a hardware thread, which dir describes.
func domainsOfThread(dir string) Domains {
	d := noDomains
	d[Package] = readNumber(filepath.Join(dir, "topology", "physical_package_id"))
	if core := readNumber(filepath.Join(dir, "topology", "core_id")); core >= 0 && d[Package] >= 0 {
		d[Core] = d[Package]<<16 | core // the kernel numbers the cores of each package
	}
	nodes, _ := filepath.Glob(filepath.Join(dir, "node[0-9]*"))
	for _, node := range nodes {
		if n, err := strconv.ParseInt(strings.TrimPrefix(filepath.Base(node), "node"), 10, 32); err == nil {
			d[NUMA] = int32(n)
		}
	}
	caches, _ := filepath.Glob(filepath.Join(dir, "cache", "index*"))
	for _, cache := range caches {
		if readNumber(filepath.Join(cache, "level")) == 3 {
			d[L3Cache] = readNumber(filepath.Join(cache, "id"))
		}
	}
	return d
}

// readNumber returns the number in a file, or -1 if the file has none.
func readNumber(file string) int32 {
	text, err := os.ReadFile(file)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return -1
	}
	return int32(n)
}
