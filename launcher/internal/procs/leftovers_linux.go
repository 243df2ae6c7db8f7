//go:build !portable

package procs

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"golang.org/x/sys/unix"
)

// jobProcs recognizes the processes of a job: by the job's id in their environment, which
// descendants inherit; by the process group of a rank; or because they have become children of
// this process.
type jobProcs struct {
	mark   []byte       // the job's entry in the environment of its processes: WEFT_JOB_ID=…
	groups map[int]bool // process groups of the ranks; a group's number is its rank's pid
	stuck  map[int]bool // by pid: ranks that SIGKILL has not ended
	others *others      // nil: a process is not recognized by being a child of this process
}

// others records the descendants of this process that do not belong to the job:
//
//   - all descendants that exist before the ranks start;
//   - later processes in the sessions of these, such as the master that ssh leaves for
//     connection sharing;
//   - processes in this process's own session that have neither the job's mark nor a rank's process
//     group: the program that runs the launcher may have started them.
//
// If a rank's process clears its environment and begins a session, it becomes a child of this
// process, the reaper, when its parent ends. It is in none of these sets, so adopted recognizes it.
type others struct {
	own      string          // id of this process's session, to which the ranks belong, too
	since    map[int]string  // by pid: start time of each descendant that newOthers has found
	sessions map[string]bool // ids of the sessions of these descendants, except own
}

// The indexes of fields of proc_pid_stat(5) in the result of statOf.
const (
	statState   = 0
	statParent  = 1
	statGroup   = 2
	statSession = 3
	statStarted = 19
)

// newOthers records all present descendants of this process.
func newOthers() *others {
	o := &others{since: make(map[int]string), sessions: make(map[string]bool)}
	if own := statOf(os.Getpid()); len(own) > statSession {
		o.own = own[statSession]
	}
	list := children()
	for len(list) > 0 {
		pid := list[0]
		list = list[1:]
		f := statOf(pid)
		if len(f) <= statStarted || o.since[pid] != "" {
			continue
		}
		o.since[pid] = f[statStarted]
		if f[statSession] != o.own {
			o.sessions[f[statSession]] = true
		}
		list = append(list, childrenOf(strconv.Itoa(pid))...)
	}
	return o
}

// adopted reports whether a process is a child of this process that a rank has left behind. f is
// the result of statOf(pid).
func (o *others) adopted(pid int, f []string) bool {
	return o != nil && len(f) > statStarted && f[statParent] == strconv.Itoa(os.Getpid()) &&
		o.since[pid] != f[statStarted] && f[statSession] != o.own && !o.sessions[f[statSession]]
}

func newJobProcs(id string, groups []int) jobProcs {
	b := jobProcs{mark: []byte(bootstrap.EnvJobID + "=" + id), groups: make(map[int]bool, len(groups)), stuck: make(map[int]bool)}
	for _, g := range groups {
		b.groups[g] = true
	}
	return b
}

// alive reports whether pid is a process of the job that is not a zombie. unsure means that alive
// cannot find out, because /proc does not show the whole environment of the process: for a moment
// during execve(2) it shows none.
func (b jobProcs) alive(pid int) (ours, unsure bool) {
	f := statOf(pid)
	if len(f) < 3 || f[statState] == "Z" || f[statState] == "X" {
		return false, false
	}
	if b.others.adopted(pid, f) {
		return true, false
	}
	if group, err := strconv.Atoi(f[2]); err == nil && b.groups[group] {
		return true, false
	}
	env, whole := environOf(pid, f)
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(kv, b.mark) {
			return true, false
		}
	}
	return false, !whole
}

// environOf returns the environment with which the program of a process was started. stat is the
// result of statOf for the process. whole is false if env may be incomplete or that of another
// program: during execve(2) /proc shows the environment of the old program, then none, then that of
// the new program. If this process may not read the environment, env is empty and whole is true.
func environOf(pid int, stat []string) (env []byte, whole bool) {
	const vsize, envStart, envEnd = 20, 47, 48 // see proc_pid_stat(5)
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil, true
	}
	defer func() { _ = f.Close() }()
	if len(stat) <= envEnd || stat[vsize] == "0" { // a kernel thread
		return nil, true
	}
	from, _ := strconv.ParseInt(stat[envStart], 10, 64)
	to, _ := strconv.ParseInt(stat[envEnd], 10, 64)
	size := min(max(to-from, 0), 8<<20)
	env = make([]byte, size+1)
	n, _ := f.Read(env) // in one read: two could return parts of two programs' environments
	return env[:n], to > 0 && int64(n) == size
}

// kill kills a process if it belongs to the job. unsure is as in alive. The pidfd makes sure that
// the process that alive has checked is the one that gets the signal.
func (b jobProcs) kill(pid int) (killed, unsure bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, false
	}
	defer func() { _ = unix.Close(fd) }()
	ours, unsure := b.alive(pid)
	return ours && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil, unsure
}

// leftoverPause is the time between two searches for processes to kill, and between two attempts of
// endCgroup to remove a group.
const leftoverPause = 2 * time.Millisecond

// killLeftovers kills every process of the job on this host. It searches until it finds none twice
// in a row, or until limit has passed. One search is not enough: while it runs, a process of the
// job may start a child, which is not in the list of /proc yet, and end. killLeftovers never kills
// this process.
func (b jobProcs) killLeftovers(limit time.Duration) {
	none := 0
	for end := time.Now().Add(limit); none < 2 && time.Now().Before(end); time.Sleep(leftoverPause) {
		found := false
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, e := range entries {
			if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
				killed, unsure := b.kill(pid)
				found = found || killed || unsure
			}
		}
		if none++; found {
			none = 0
		}
	}
}

// killLeftoverChildren kills and reaps the children of this process that belong to the job, except
// those in stuck: orphans of the ranks, which have become children of this process. Killing one may
// make its children orphans, so killLeftoverChildren repeats the search until it finds none or
// limit has passed.
func (b jobProcs) killLeftoverChildren(limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		again := false
		for _, pid := range children() {
			if b.stuck[pid] {
				continue
			}
			killed, unsure := b.kill(pid)
			switch {
			case killed:
				reap(pid, time.Until(end))
			case unsure:
				time.Sleep(leftoverPause)
			}
			again = again || killed || unsure
		}
		if !again {
			return
		}
	}
}

// reap waits at most limit until a killed child has ended, and reaps it if it has. A child that
// waits in the kernel may not end.
func reap(pid int, limit time.Duration) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		for {
			_, err := unix.Poll(p, int(max(limit.Milliseconds(), 1)))
			if !errors.Is(err, unix.EINTR) {
				break
			}
		}
		_ = unix.Close(fd)
	}
	reapNow(pid)
}

func reapNow(pid int) {
	for {
		_, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// reapOrphans reaps the orphans of ranks that have become children of this process and have ended.
// It recognizes them by a rank's process group, by b.others, or because they are in known. known
// holds the children that reapOrphans has recognized while they lived, because a zombie no longer
// shows the job's mark. reapOrphans leaves other children alone, because another part of the
// program may wait for them.
func (b jobProcs) reapOrphans(known map[int]bool) {
	for _, pid := range children() {
		if b.groups[pid] {
			continue // [Manager.finish] reaps the ranks
		}
		f := statOf(pid)
		if len(f) < 3 {
			continue
		}
		group, err := strconv.Atoi(f[2])
		switch {
		case f[0] == "Z":
			if known[pid] || err == nil && b.groups[group] || b.others.adopted(pid, f) {
				delete(known, pid)
				reapNow(pid)
			}
		case f[0] == "D": // in uninterruptible sleep: a read of its environment may block until it wakes
		case !known[pid]:
			if ours, _ := b.alive(pid); ours {
				known[pid] = true
			}
		}
	}
}

// statOf returns the fields of /proc/pid/stat after the name: state, parent, process group, and so
// on. It returns nil if there is no such process.
func statOf(pid int) []string { return fieldsOf("/proc/" + strconv.Itoa(pid) + "/stat") }

// fieldsOf returns the same fields from the file called name: the stat file of a process, or of a
// thread.
func fieldsOf(name string) []string {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	// The process's name, which is in parentheses, may contain blanks and parentheses.
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
}

// children returns the children of this process.
func children() []int { return childrenOf("self") }

// childrenOf returns the children of a process. process is a pid or self: the name of the process's
// directory in /proc. If the kernel does not list children, childrenOf checks the parent of every
// process.
func childrenOf(process string) []int {
	var pids []int
	dir := "/proc/" + process + "/task/"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	for _, t := range tasks {
		text, err := os.ReadFile(dir + t.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) {
			if _, err := os.Stat(dir + t.Name()); err == nil {
				return childrenByParent(process)
			}
			continue // the thread has ended since ReadDir
		}
		for f := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func childrenByParent(process string) []int {
	if process == "self" {
		process = strconv.Itoa(os.Getpid())
	}
	var pids []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if f := statOf(pid); len(f) > statParent && f[statParent] == process {
			pids = append(pids, pid)
		}
	}
	return pids
}
