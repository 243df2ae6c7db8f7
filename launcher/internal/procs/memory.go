package procs

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// oomCount counts the processes that the kernel has killed because memory ran out. It counts those
// in the memory cgroup of this process, which the ranks inherit. If that cgroup cannot be found, it
// counts those of the whole host. The kernel counts before it sends SIGKILL (cgroup-v2,
// memory.events; cgroup-v1, memory.oom_control; /proc/vmstat).
type oomCount struct {
	file string // the file with the kernel's count
	dir  string // directory of the cgroup; "": file counts the kills of the whole host
	root string // directory of the cgroup hierarchy
	// seen is the part of the kernel's count that the method reason must not use: the kills before
	// newOOMCount, those that reason has used, and those that the method forget has dropped.
	seen   int64
	before int64 // the kernel's count at the last call of forget
}

// newOOMCount returns a count of the kills from now on. proc and sys are the directories /proc and
// /sys/fs/cgroup; tests give others.
func newOOMCount(proc, sys string) *oomCount {
	c := &oomCount{file: filepath.Join(proc, "vmstat")}
	text, _ := os.ReadFile(filepath.Join(proc, "self", "cgroup"))
	// A line is, for example, 0::/a/b (version 2) or 4:memory:/a/b (version 1).
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		root, name := "", ""
		switch f[1] {
		case "":
			root, name = sys, "memory.events"
		case "memory":
			root, name = filepath.Join(sys, "memory"), "memory.oom_control"
		default:
			continue
		}
		// In a container, the path in the line may be valid only on the host.
		for _, dir := range []string{filepath.Join(root, f[2]), root} {
			file := filepath.Join(dir, name)
			if _, ok := readKey(file, "oom_kill"); ok && c.dir == "" {
				c.file, c.dir, c.root = file, dir, root
			}
		}
	}
	c.seen, _ = readKey(c.file, "oom_kill")
	c.before = c.seen
	return c
}

// forget drops the kills that the kernel had counted at the previous call of forget. If one of them
// had hit a rank, the Manager would have noticed the rank's end between the two calls.
func (c *oomCount) forget() {
	c.seen = max(c.seen, c.before)
	c.before, _ = readKey(c.file, "oom_kill")
}

// readKey returns the number after a key in a file of lines "key number". ok is false if the file
// cannot be read or has no such line.
func readKey(file, key string) (n int64, ok bool) {
	text, _ := os.ReadFile(file) // if the file cannot be read, ok is false
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == key {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// reason returns a text with the reason why a rank got SIGKILL, if the kernel has counted a kill
// that neither an earlier call of reason has used nor forget has dropped. It uses one kill. If
// there is none, it returns "".
func (c *oomCount) reason() string {
	n, _ := readKey(c.file, "oom_kill")
	if n <= c.seen {
		return ""
	}
	c.seen++
	if c.dir == "" {
		return "perhaps because memory ran out: the kernel has killed a process of its host for that"
	}
	if limit := c.limit(); limit > 0 {
		return fmt.Sprintf("because memory ran out: its cgroup may use %d MiB", limit>>20)
	}
	return "because memory ran out"
}

// limit returns how many bytes the cgroup may use; 0: no limit.
func (c *oomCount) limit() int64 {
	const none = 1 << 60 // version 1 stores a huge number for no limit
	if n, ok := readKey(filepath.Join(c.dir, "memory.stat"), "hierarchical_memory_limit"); ok {
		if n >= none {
			return 0
		}
		return n
	}
	least := int64(math.MaxInt64)
	for dir := c.dir; strings.HasPrefix(dir, c.root); dir = filepath.Dir(dir) {
		text, _ := os.ReadFile(filepath.Join(dir, "memory.max")) // "max", or a number
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			least = min(least, n)
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}
