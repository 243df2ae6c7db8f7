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

// How much memory there is
//
// The kernel takes an allocation of shared memory that is larger than what it
// has, and ends processes later. So it is asked before, by proc(5) and the
// files of cgroups(7): the least of what the host can give without ending
// anybody, and what the limits of the groups that this process is in leave.

// memoryLeft is how many bytes can still be had, as the files under root say. What
// cannot be read limits nothing.
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
	defer f.Close() //nolint:errcheck // it was read only
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

// groupLeft is the least that a group and those above it leave. The cache of
// files that nobody uses counts as free.
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

// number reads a file that is one number; false: it is not, as that of no limit.
func number(name string) (int64, bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// fieldsOf reads a file whose lines are a name and a number.
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
