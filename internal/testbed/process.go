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

// Process is a process of a host.
type Process struct {
	PID  int
	PPID int    // the parent's PID
	Exe  string // path of the program in the host
	Args []string
	env  []string
}

// Getenv returns a variable of the process's initial environment.
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

// Processes returns the host's processes for which match returns true, regardless of how they were
// started. If match is nil, it returns all processes except the daemons that the keeper has started:
// sshd and slurmd. It includes the children of these daemons, such as the sshd of a connection.
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
			continue // the process has ended
		}
		p.Exe = strings.TrimSuffix(exe, " (deleted)")
		if match(p) {
			found = append(found, p)
		}
	}
	return found
}

// Running returns a match function for Processes. It selects the processes whose program has the path
// exe in the host.
func Running(exe string) func(Process) bool {
	return func(p Process) bool { return p.Exe == exe }
}

// WithEnv returns a match function for Processes. It selects the processes in whose environment the
// variable has this value. If value is "", any value except "" matches.
func WithEnv(name, value string) func(Process) bool {
	return func(p Process) bool { v := p.Getenv(name); return v != "" && (value == "" || v == value) }
}

// zeroEnded returns the zero-terminated strings in a file.
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

// marked returns the processes in the hosts of a cluster. It recognizes them by their mounts, whose
// source is the cluster's mark. The numbers of namespaces would not identify them, because the kernel
// uses these numbers again.
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

// parent returns the PID of a process's parent; 0 if the process has ended.
func parent(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if f := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(f) > 1 { // "7 (a name) S 1 ..."
		ppid, _ := strconv.Atoi(string(f[1]))
		return ppid
	}
	return 0
}

func anyProcess(int) bool { return true }

// killAll kills the processes in the hosts of the cluster with this mark for which match returns
// true. It repeats this until there are none, because processes may start others meanwhile. After
// 10 seconds it returns an error.
func killAll(mark string, match func(pid int) bool) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		list := slices.DeleteFunc(marked(mark), func(pid int) bool { return !match(pid) })
		if len(list) == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v still run after SIGKILL", list)
		}
		for _, pid := range list {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
