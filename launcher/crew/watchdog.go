package crew

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/proto"
	"golang.org/x/sys/unix"
)

// The watchdog is this executable once more, in a session of its own, with
// nothing but the read end of a pipe. It learns from lines on the pipe what
// the job is, and when the pipe ends without "end", which means that gorun, or
// its agent on this host, was killed, it kills what is left of the job here and
// removes its files. The ranks themselves die by PR_SET_PDEATHSIG; the watchdog
// is for their children.
//
//	job ID      marks the processes; groups that were named before are gone
//	group PID   a rank's process group
//	dir PATH    to be removed
//	segments T  the ranks may have shared memory, since T, in ns since 1970
//	end         the job has ended well
const (
	watchdogName = "gorun-watchdog" // argv[0]
	watchdogFD   = 3
	sweepLimit   = 5 * time.Second
)

// init turns the process into a watchdog. It is here and not in main so that
// every program that imports this package, tests too, can be one.
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
	var id string
	var groups []int
	var dirs []string
	var begun int64 // of a job that may have segments
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "job":
			id, groups = rest, nil
		case "group":
			if pid, err := strconv.Atoi(rest); err == nil && pid > 1 {
				groups = append(groups, pid)
			}
		case "dir":
			dirs = append(dirs, rest)
		case "segments":
			begun, _ = strconv.ParseInt(rest, 10, 64)
		case "end":
			return 0
		}
	}
	if id != "" {
		newBelongs(id, groups).sweepAll(sweepLimit)
	}
	if begun != 0 {
		removeSegments(groups, time.Unix(0, begun))
	}
	for _, d := range dirs {
		_ = os.RemoveAll(d)
	}
	return 0
}

// Watchdog is a process's hold on its watchdog.
type Watchdog struct {
	pid  int
	pipe *os.File
}

// StartWatchdog starts one for a job; a machine that cannot has none, and the job
// runs.
func StartWatchdog(id string) *Watchdog {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return &Watchdog{}
	}
	defer func() { _ = unix.Close(p[0]) }()
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(p[1])
		return &Watchdog{}
	}
	defer func() { _ = unix.Close(null) }()
	n := uintptr(null)
	pid, err := syscall.ForkExec("/proc/self/exe", []string{watchdogName}, &syscall.ProcAttr{
		Dir: "/", Env: []string{"GOMAXPROCS=1"},
		Files: []uintptr{n, n, n, watchdogFD: uintptr(p[0])},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		_ = unix.Close(p[1])
		return &Watchdog{}
	}
	w := &Watchdog{pid: pid, pipe: os.NewFile(uintptr(p[1]), "watchdog")}
	w.tell("job", id)
	return w
}

func (w *Watchdog) tell(word, rest string) {
	if w.pipe != nil {
		_, _ = fmt.Fprintf(w.pipe, "%s %s\n", word, rest)
	}
}

// Job names the job that has begun; of the one before nothing is left.
func (w *Watchdog) Job(id string) { w.tell("job", id) }

// RemoveDir has a directory removed where this process cannot any more.
func (w *Watchdog) RemoveDir(path string) { w.tell("dir", path) }

// groups tells of all ranks in one write.
func (w *Watchdog) groups(pids []int) {
	var b strings.Builder
	for _, pid := range pids {
		fmt.Fprintf(&b, "group %d\n", pid)
	}
	if w.pipe != nil {
		_, _ = w.pipe.WriteString(b.String())
	}
}

// End dismisses the watchdog and waits for it.
func (w *Watchdog) End() {
	if w.pipe == nil {
		return
	}
	w.tell("end", "")
	_ = w.pipe.Close()
	w.pipe = nil
	_ = syscall.Kill(w.pid, syscall.SIGKILL) // it may not even have started to read
	var ws syscall.WaitStatus
	for {
		if _, err := syscall.Wait4(w.pid, &ws, 0, nil); err != syscall.EINTR {
			return
		}
	}
}
