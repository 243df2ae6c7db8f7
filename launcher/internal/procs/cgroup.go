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

// cgroup is a control group for the ranks of this host, inside this process's group. All processes
// that ranks start stay in it, even if they change their environment or session. newCgroup makes
// one only under cgroup version 2, with the file cgroup.kill, and only if this process runs as root
// or in a subtree that a service manager has delegated to it. Otherwise it returns nil, and the
// methods do nothing.
type cgroup struct {
	dir  string   // path of the group's directory
	file *os.File // the open directory; clone3(2) takes its descriptor
	off  bool     // a rank could not be started in this group: later ranks do not start in it
}

// cgroupRoots lists the usual mount points of cgroup version 2. The first is for systems with
// version 2 alone, the second for systems that also use version 1.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// cgroupKill is a file in a group's directory. A 1 that is written to it makes the kernel kill all
// processes of the group. It exists since Linux 5.14.
const cgroupKill = "cgroup.kill"

func newCgroup(id string) *cgroup {
	text, _ := os.ReadFile("/proc/self/cgroup")
	_, path, found := strings.Cut("\n"+string(text), "\n0::")
	if !found {
		return nil
	}
	path, _, _ = strings.Cut(path, "\n")
	for _, root := range cgroupRoots {
		parent := filepath.Join(root, path)
		// clone3(2) starts a process in a child group only if this process may also write to
		// cgroup.procs of its own group.
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

// removeStale removes from parent the groups of gorun and agent processes that have ended. A group
// remains if its process was killed together with the watchdog. The name of a group ends with the
// pid of the process that made it. A group with running processes stays, because the kernel does
// not remove it.
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

// lists reports whether a file of pids, one on each line, contains pid. newCgroup checks this
// because the path in /proc/self/cgroup need not be valid under the mount point, for example in a
// container. The path may then be that of another group.
func lists(file string, pid int) bool {
	text, _ := os.ReadFile(file)
	return strings.Contains("\n"+string(text), fmt.Sprintf("\n%d\n", pid))
}

// removeGroup removes a group and the groups that ranks have made in it. If a process runs in one
// of these groups, removeGroup returns an error. If there is no such group, it returns nil.
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

// end kills the remaining processes of the group and removes the group. It waits at most limit for
// the processes to end. If they have not ended then, the group stays.
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
