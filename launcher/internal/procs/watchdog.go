package procs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// The watchdog is a process that runs this executable, in a session of its own. Besides /dev/null,
// it inherits only the read end of a pipe. Lines on the pipe describe the job. If the pipe ends
// without the line "end", gorun, or its agent on this host, was killed. Then the watchdog kills the
// processes of the job on this host and removes its files. On Linux the ranks themselves die by
// PR_SET_PDEATHSIG; the watchdog is for their children.
//
//	job ID      the job's id, which its processes have in their environment;
//	            the watchdog forgets all other ids, process groups and cgroups
//	also ID     likewise for the processes of a group that ranks have spawned; nothing is forgotten
//	over ID     these processes have ended
//	group PID   a rank's process group
//	gone PID    this rank was reaped, so its number may become another process's
//	clear PID   the process group was killed
//	cgroup PATH cgroup of ranks, whose processes must be killed, and which must be removed
//	empty PATH  the cgroup was removed
//	dir PATH    a directory to be removed
//	segments T  the ranks may have made shared memory segments since the time T, in ns since 1970
//	end         the job has ended normally
const (
	watchdogName = "gorun-watchdog" // argv[0]
	watchdogFD   = 3
	// leftoverLimit is the time limit of a search for leftover processes, and of a wait for their
	// end.
	leftoverLimit = 5 * time.Second
)

// init turns the process into a watchdog if it was started as one. It is here and not in main, so
// that every program that imports this package can be a watchdog, including test programs.
func init() {
	if len(os.Args) == 1 && os.Args[0] == watchdogName && os.Getppid() != 0 {
		signal.Ignore()
		os.Exit(watchdogMain(os.NewFile(watchdogFD, "gorun")))
	}
}

func watchdogMain(from io.Reader) int {
	if from == nil {
		return proto.ExitUsage
	}
	var ids, cgroups []string
	var groups []int
	reaped := make(map[int]bool)
	without := func(list []string, text string) []string {
		return slices.DeleteFunc(list, func(s string) bool { return s == text })
	}
	var dirs []string
	var begun int64 // T of the line "segments"; 0: no such line came
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "job":
			ids, groups, cgroups = []string{rest}, nil, nil
			clear(reaped)
		case "also":
			ids = append(ids, rest)
		case "over":
			ids = without(ids, rest)
		case "group":
			if pid, err := strconv.Atoi(rest); err == nil && pid > 1 {
				groups = append(groups, pid)
				delete(reaped, pid)
			}
		case "clear":
			if pid, err := strconv.Atoi(rest); err == nil {
				groups = slices.DeleteFunc(groups, func(g int) bool { return g == pid })
				delete(reaped, pid)
			}
		case "gone":
			if pid, err := strconv.Atoi(rest); err == nil {
				reaped[pid] = true
			}
		case "cgroup":
			cgroups = append(cgroups, rest)
		case "empty":
			cgroups = without(cgroups, rest)
		case "dir":
			dirs = append(dirs, rest)
		case "segments":
			begun, _ = strconv.ParseInt(rest, 10, 64)
		case "end":
			return 0
		}
	}
	for _, dir := range cgroups {
		endCgroup(dir, leftoverLimit)
	}
	own := slices.DeleteFunc(slices.Clone(groups), func(pid int) bool { return reaped[pid] && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	for _, id := range ids {
		newJobProcs(id, own).killLeftovers(leftoverLimit)
	}
	if begun != 0 {
		removeSegments(groups, time.Unix(0, begun))
	}
	for _, d := range dirs {
		_ = os.RemoveAll(d)
	}
	return 0
}

// Watchdog is a running watchdog process. The zero Watchdog has no process, and its methods do
// nothing.
type Watchdog struct {
	pid  int
	pipe *os.File
}

// StartWatchdog starts a watchdog for the job whose id is id. If the system cannot do so, it
// returns a Watchdog without a process, and the job runs without one. The caller must call End.
func StartWatchdog(id string) *Watchdog {
	exe, err := sys.Executable()
	if err != nil {
		return &Watchdog{}
	}
	r, wr, err := sys.Pipe()
	if err != nil {
		return &Watchdog{}
	}
	defer func() { _ = unix.Close(r) }()
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(wr)
		return &Watchdog{}
	}
	defer func() { _ = unix.Close(null) }()
	n := uintptr(null)
	pid, err := syscall.ForkExec(exe, []string{watchdogName}, &syscall.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1"},
		Files: []uintptr{n, n, n, watchdogFD: uintptr(r)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		_ = unix.Close(wr)
		return &Watchdog{}
	}
	w := &Watchdog{pid: pid, pipe: os.NewFile(uintptr(wr), "watchdog")}
	w.send("job", id)
	return w
}

// send writes a line to the watchdog.
func (w *Watchdog) send(word, rest string) {
	if w.pipe != nil {
		_, _ = fmt.Fprintf(w.pipe, "%s %s\n", word, rest)
	}
}

// Job makes the watchdog forget all that it knows about processes, and watch the processes of the job
// whose id is id. The caller has already sent SIGKILL to the earlier ones.
func (w *Watchdog) Job(id string) { w.send("job", id) }

// RemoveDir makes the watchdog remove the directory path if this process is killed.
func (w *Watchdog) RemoveDir(path string) { w.send("dir", path) }

// also makes the watchdog watch the processes of another id, too.
func (w *Watchdog) also(id string) { w.send("also", id) }

// killed makes the watchdog forget the process groups with the numbers pids and the cgroup in. The
// caller has sent SIGKILL to them. in may be nil. If over is not empty, the watchdog also forgets
// this id.
func (w *Watchdog) killed(pids []int, in *cgroup, over string) {
	if w.pipe == nil {
		return
	}
	var b strings.Builder
	for _, pid := range pids {
		fmt.Fprintf(&b, "clear %d\n", pid)
	}
	if in != nil {
		fmt.Fprintf(&b, "empty %s\n", in.dir)
	}
	if over != "" {
		fmt.Fprintf(&b, "over %s\n", over)
	}
	_, _ = w.pipe.WriteString(b.String())
}

// cgroup tells the watchdog the control group in which the ranks are about to start.
func (w *Watchdog) cgroup(path string) { w.send("cgroup", path) }

// groups tells the watchdog the process groups with the numbers pids, in one write.
func (w *Watchdog) groups(pids []int) {
	var b strings.Builder
	for _, pid := range pids {
		fmt.Fprintf(&b, "group %d\n", pid)
	}
	if w.pipe != nil {
		_, _ = w.pipe.WriteString(b.String())
	}
}

// reaped tells the watchdog that a rank was reaped.
func (w *Watchdog) reaped(pid int) { w.send("gone", strconv.Itoa(pid)) }

// End ends the watchdog and waits for its end.
func (w *Watchdog) End() {
	if w.pipe == nil {
		return
	}
	w.send("end", "")
	_ = w.pipe.Close()
	w.pipe = nil
	_ = syscall.Kill(w.pid, syscall.SIGKILL) // the watchdog need not read "end" first
	var ws syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(w.pid, &ws, 0, nil); err != syscall.EINTR {
			return
		}
	}
}
