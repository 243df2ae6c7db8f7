//go:build linux

package testbed

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is one of a host's.
type Process struct {
	PID  int
	PPID int    // of its parent
	Exe  string // the path of its program, in the host
	Args []string
	env  []string
}

// Getenv is a variable of the environment that the process began with.
func (p Process) Getenv(name string) string {
	for _, v := range p.env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

func (p Process) String() string {
	return fmt.Sprintf("%d %s", p.PID, strings.Join(p.Args, " "))
}

// Processes are those of the host that match, however they came there; nil
// matches all but the daemons that make the host one: sshd, which has a child for
// each connection, and slurmd.
func (h *Host) Processes(match func(Process) bool) []Process {
	if match == nil {
		match = func(p Process) bool { return p.PPID != h.cluster.info.Keeper }
	}
	home, err := os.Readlink(h.info.Namespaces + "/mnt")
	if err != nil {
		h.cluster.fail("%s: %v", h.info.Name, err)
	}
	var found []Process
	for _, pid := range pids() {
		dir := "/proc/" + strconv.Itoa(pid)
		if ns, err := os.Readlink(dir + "/ns/mnt"); err != nil || ns != home {
			continue
		}
		p := Process{PID: pid, PPID: parent(pid), Args: zeroEnded(dir + "/cmdline"), env: zeroEnded(dir + "/environ")}
		exe, err := os.Readlink(dir + "/exe")
		if err != nil {
			continue // has ended
		}
		p.Exe = strings.TrimSuffix(exe, " (deleted)")
		if match(p) {
			found = append(found, p)
		}
	}
	return found
}

// Running is a match for Processes: of a program, by its path in the host.
func Running(exe string) func(Process) bool {
	return func(p Process) bool { return p.Exe == exe }
}

// WithEnv is a match for Processes: with a variable, and its value unless that
// is "".
func WithEnv(name, value string) func(Process) bool {
	return func(p Process) bool { v := p.Getenv(name); return v != "" && (value == "" || v == value) }
}

func zeroEnded(file string) []string {
	text, _ := os.ReadFile(file)
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

func pids() []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var list []int
	for _, dir := range dirs {
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// marked are the processes that have mounts of a cluster, which are those in its
// hosts. Numbers of namespaces are used again; marks are not.
func marked(mark string) []int {
	var list []int
	field := []byte(" - tmpfs " + mark + " ")
	for _, pid := range pids() {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid)); err == nil && bytes.Contains(text, field) {
			list = append(list, pid)
		}
	}
	return list
}

// parent is a process's, 0 if that has ended.
func parent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(f) > 1 { // "7 (a name) S 1 ..."
		ppid, _ := strconv.Atoi(string(f[1]))
		return ppid
	}
	return 0
}

func anyProcess(int) bool { return true }

// killAll ends the processes of a cluster's hosts that match, also those that
// appear meanwhile.
func killAll(mark string, match func(pid int) bool) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		list := slices.DeleteFunc(marked(mark), func(pid int) bool { return !match(pid) })
		if len(list) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v outlive SIGKILL", list)
		}
		for _, pid := range list {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
