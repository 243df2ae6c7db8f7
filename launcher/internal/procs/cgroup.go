package procs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup is a control group for the ranks of this host, inside this process's group. All
// processes that ranks start stay in it, even if they change their environment or
// session. This process can make one only under cgroup version 2, and only as root or in
// a subtree that a service manager has delegated to it. Otherwise the cgroup is nil, and
// its methods do nothing.
type cgroup struct {
	dir  string
	file *os.File // the directory, for clone3(2)
	off  bool     // the kernel cannot start ranks in it
}

// cgroupRoots lists where version 2 is mounted: alone, or beside version 1.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

const cgroupKill = "cgroup.kill" // since Linux 5.14

func newCgroup(id string) *cgroup {
	text, _ := os.ReadFile("/proc/self/cgroup")
	_, path, found := strings.Cut("\n"+string(text), "\n0::")
	if !found {
		return nil
	}
	path, _, _ = strings.Cut(path, "\n")
	for _, root := range cgroupRoots {
		parent := filepath.Join(root, path)
		// To start a process in a child group, this process must be able to write here, too.
		procs := filepath.Join(parent, "cgroup.procs")
		if unix.Access(procs, unix.W_OK) != nil || !lists(procs, os.Getpid()) {
			continue
		}
		removeStale(parent)
		dir := filepath.Join(parent, fmt.Sprintf("weft-%s-%d", id, os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, cgroupKill)); err == nil {
			if f, err := os.Open(dir); err == nil {
				return &cgroup{dir: dir, file: f}
			}
		}
		_ = os.Remove(dir)
	}
	return nil
}

// removeStale removes the groups that a gorun or agent has left because it was killed
// together with its watchdog. A group with running processes stays.
func removeStale(parent string) {
	entries, _ := os.ReadDir(parent)
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, "weft-") {
			continue
		}
		if _, err := os.Stat("/proc/" + name[strings.LastIndexByte(name, '-')+1:]); errors.Is(err, os.ErrNotExist) {
			_ = removeGroup(filepath.Join(parent, name))
		}
	}
}

// lists reports whether a file of pids, one on each line, contains pid. A path of
// /proc/self/cgroup may mean another group than the one mounted there.
func lists(file string, pid int) bool {
	text, _ := os.ReadFile(file)
	return strings.Contains("\n"+string(text), fmt.Sprintf("\n%d\n", pid))
}

// removeGroup removes a group and the groups that ranks have made in it. If a process
// runs in one of them, it fails. A missing group is not an error.
func removeGroup(dir string) error {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			_ = removeGroup(filepath.Join(dir, e.Name()))
		}
	}
	if err := os.Remove(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// end kills the remaining processes of the group and removes the group.
func (g *cgroup) end(limit time.Duration) {
	if g != nil {
		_ = g.file.Close()
		endCgroup(g.dir, limit)
	}
}

func endCgroup(dir string, limit time.Duration) {
	if f, err := os.OpenFile(filepath.Join(dir, cgroupKill), os.O_WRONLY, 0); err == nil {
		_, _ = f.WriteString("1")
		_ = f.Close()
	}
	for end := time.Now().Add(limit); removeGroup(dir) != nil && time.Now().Before(end); time.Sleep(leftoverPause) {
	}
}
