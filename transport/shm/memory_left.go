//go:build linux && !portable

package shm

import (
	"bufio"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The available memory
//
// The kernel accepts an allocation of shared memory that is larger than the memory of the
// host, and later kills processes for lack of memory. So the heap reads the available
// memory before it allocates, from proc(5) and the files of cgroups(7). It is the minimum of
// the memory that the host has available and of what the limits of this process's control
// groups leave.

// memoryLeft returns how many bytes can still be allocated, according to the files under
// root. A file that cannot be read sets no limit.
func memoryLeft(root string) int64 {
	mem := fieldsOf(filepath.Join(root, "proc/meminfo"))
	left := int64(math.MaxInt64)
	if free, ok := mem["MemAvailable:"]; ok {
		left = (free + mem["SwapFree:"]) << 10
	}
	f, err := os.Open(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return left
	}
	defer f.Close() //nolint:errcheck // the file was only read
	for s := bufio.NewScanner(f); s.Scan(); {
		id, rest, _ := strings.Cut(s.Text(), ":")
		kind, path, _ := strings.Cut(rest, ":")
		switch {
		case id == "0" && kind == "":
			left = min(left, groupLeft(filepath.Join(root, "sys/fs/cgroup"), path, "memory.max", "memory.current", "inactive_file"))
		case kind == "memory":
			left = min(left, groupLeft(filepath.Join(root, "sys/fs/cgroup/memory"), path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"))
		}
	}
	return left
}

// groupLeft returns the minimum of the bytes that the limits of a control group and of its
// ancestors leave. top is the directory of the hierarchy, and path the group in it. limit and usage
// name files of a group. cache names a field of its memory.stat, the file cache that was not used
// recently, which counts as free.
func groupLeft(top, path, limit, usage, cache string) int64 {
	left := int64(math.MaxInt64)
	for dir := filepath.Join(top, path); strings.HasPrefix(dir, top); dir = filepath.Dir(dir) {
		most, ok := number(filepath.Join(dir, limit))
		used, ok2 := number(filepath.Join(dir, usage))
		if ok && ok2 {
			left = min(left, max(0, most-used+fieldsOf(filepath.Join(dir, "memory.stat"))[cache]))
		}
	}
	return left
}

// number reads a file that holds one number. It returns false for any other content, such as
// "max", which stands for no limit.
func number(name string) (int64, bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// fieldsOf reads a file whose lines consist of a name and a number.
func fieldsOf(name string) map[string]int64 {
	m := make(map[string]int64)
	text, err := os.ReadFile(name)
	if err != nil {
		return m
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				m[f[0]] = n
			}
		}
	}
	return m
}
