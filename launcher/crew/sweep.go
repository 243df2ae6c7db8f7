package crew

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

// belongs recognizes the processes of a job wherever they have gone: by the
// job's id in their environment, which descendants inherit, or by the process
// group of a rank.
type belongs struct {
	mark   []byte // WEFT_JOB_ID=…
	groups map[int]bool
	stuck  map[int]bool // that SIGKILL does not end
}

func newBelongs(id string, groups []int) belongs {
	b := belongs{mark: []byte(bootstrap.EnvJobID + "=" + id), groups: make(map[int]bool, len(groups)), stuck: make(map[int]bool)}
	for _, g := range groups {
		b.groups[g] = true
	}
	return b
}

// alive says whether a pid is a process of the job that is not a zombie. It cannot be
// told (unsure) of one that is in execve(2), which shows no environment for a moment.
func (b belongs) alive(pid int) (ours, unsure bool) {
	f := statOf(pid)
	if len(f) < 3 || f[0] == "Z" || f[0] == "X" {
		return false, false
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

// environOf is the environment that the program of a process was started with, and
// whether that is all of it: in execve there is one program's for a while, then none,
// then the next one's. stat is the process's, of before. It is empty for who must not
// see it.
func environOf(pid int, stat []string) (env []byte, whole bool) {
	const vsize, envStart, envEnd = 20, 47, 48 // see proc_pid_stat(5)
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil, true
	}
	defer func() { _ = f.Close() }()
	if len(stat) <= envEnd || stat[vsize] == "0" { // a thread of the kernel
		return nil, true
	}
	from, _ := strconv.ParseInt(stat[envStart], 10, 64)
	to, _ := strconv.ParseInt(stat[envEnd], 10, 64)
	size := min(max(to-from, 0), 8<<20)
	env = make([]byte, size+1)
	n, _ := f.Read(env) // at once, or it may be of two programs
	return env[:n], to > 0 && int64(n) == size
}

// kill kills a process if it is one of the job's. A pidfd makes sure that the
// process that is looked at is the one that gets the signal.
func (b belongs) kill(pid int) (killed, unsure bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, false
	}
	defer func() { _ = unix.Close(fd) }()
	ours, unsure := b.alive(pid)
	return ours && unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil, unsure
}

// sweepPause is given to processes that were killed, before they are looked
// for again.
const sweepPause = 2 * time.Millisecond

// sweepAll kills every process of the job on this machine, again until there
// is none, and none of which it cannot be told, or limit has passed. The caller is not
// itself one of them. It looks twice: who was not in the list yet may be the child of
// one that had ended when it was looked at.
func (b belongs) sweepAll(limit time.Duration) {
	none := 0
	for end := time.Now().Add(limit); none < 2 && time.Now().Before(end); time.Sleep(sweepPause) {
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

// sweepChildren kills and reaps those children of this process that belong to
// the job: orphans of the ranks, whose reaper it is. Killing one may make its
// children ours, so it looks again until there is none.
func (b belongs) sweepChildren(limit time.Duration) {
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
				time.Sleep(sweepPause)
			}
			again = again || killed || unsure
		}
		if !again {
			return
		}
	}
}

// reap waits for a child that was killed, but not for ever: one that is stuck
// in the kernel does not die.
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

// reapOrphans reaps children of ranks that have become ours and have ended: those in a
// rank's process group, and those that are known, as they bore the job's mark when they
// lived, which a zombie does not show. Others may be waited for by somebody else.
func (b belongs) reapOrphans(known map[int]bool) {
	for _, pid := range children() {
		if b.groups[pid] {
			continue // a rank
		}
		f := statOf(pid)
		if len(f) < 3 {
			continue
		}
		group, err := strconv.Atoi(f[2])
		switch {
		case f[0] == "Z":
			if known[pid] || err == nil && b.groups[group] {
				delete(known, pid)
				reapNow(pid)
			}
		case f[0] == "D": // its environment may not be readable before it wakes
		case !known[pid]:
			if ours, _ := b.alive(pid); ours {
				known[pid] = true
			}
		}
	}
}

// statOf is what stands behind the name in /proc/pid/stat: state, parent, process
// group and so on; nil where there is no such process.
func statOf(pid int) []string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	return strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the name may hold anything
}

// children lists the children of this process. A kernel that does not list
// them has them all looked at.
func children() []int {
	var pids []int
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil
	}
	for _, t := range tasks {
		text, err := os.ReadFile("/proc/self/task/" + t.Name() + "/children")
		if errors.Is(err, os.ErrNotExist) {
			if _, err := os.Stat("/proc/self/task/" + t.Name()); err == nil {
				return childrenByParent()
			}
			continue // the thread has ended meanwhile
		}
		for f := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func childrenByParent() []int {
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
		if f := statOf(pid); len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			pids = append(pids, pid)
		}
	}
	return pids
}
