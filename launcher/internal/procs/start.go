package procs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"golang.org/x/sys/unix"
)

// status is how a process ended: by a signal, or, if signal is 0, with an exit code. The zero
// status is an exit with code 0.
type status struct {
	code   int
	signal syscall.Signal
}

// rank is the state of one rank's process.
type rank struct {
	app     int   // index of its program in Manager.apps
	cpus    []int // hardware threads that the rank is bound to; empty: it is not bound
	rebound bool  // [Manager.claimCores] has bound the rank to another core than the plan

	// Manager.mu guards pid, pidfd and at until the rank has started.
	pid   int // 0: not started
	pidfd int
	at    time.Time // time of the start

	ctl      int // this process's end of the rank's control channel; -1: closed
	notify   int // this process's end of the channel for failure notifications; -1: none
	answers  answers
	in       []byte // bytes that were read from ctl and not handled: the beginning of a line
	unsent   []byte // bytes to be sent on notify as soon as it has room
	exited   bool   // [Manager.recordExit] has handled the rank's end
	termDone bool   // [Manager.terminate] has sent the rank SIGTERM, or must not do so
	signaled bool   // the rank has got SIGTERM or SIGKILL because the job ends
	idle     int    // number of consecutive checks before SIGTERM that found the rank idle
	stuck    bool   // SIGKILL has not ended the rank; it counts as ended all the same
	ctlDone  bool   // the rank has called Abort or broken the PMI-1 protocol: ctl is no longer read
	status   status
	// exiting: the rank was ending when the job failed, and not because of that failure. See
	// [Manager.recordFailure].
	exiting     bool
	killPending bool // another process had sent the rank SIGKILL when the job failed
	exit        proto.Exit
}

// app is one program of the job on this host.
type app struct {
	path string
	env  []string
	keep bool // the user has set GOMAXPROCS, so the process manager does not set it
}

// errStart is why a rank or a program cannot be started. code is gorun's exit code for it.
type errStart struct {
	code int
	msg  string
}

func (e *errStart) Error() string { return e.msg }

// forkAll starts the ranks one after the other, and then waits until Manager.finish closes
// allExited. The kernel sends a rank its PR_SET_PDEATHSIG when the *thread* that forked the rank
// ends, so this thread must live as long as the ranks. forkAll does not unlock the thread; so the
// runtime ends it together with the goroutine, and no other goroutine inherits its affinity.
func (c *Manager) forkAll(ends childEnds) {
	defer close(c.forked)
	runtime.LockOSThread()
	var err error
	n := 0
	for ; n < len(c.ranks) && err == nil && !c.stopped(); n++ {
		if err = c.fork(n, ends); err != nil {
			break
		}
	}
	ends.close()
	c.ports.close()
	_ = c.card.Close()
	c.records.inherited()
	c.in.started()
	c.post(started{n, err})
	<-c.allExited
}

// Descriptor numbers in a rank, after stdin, stdout and stderr.
const (
	childControl = 3 // control channel, for PMI-1
	childCard    = 4 // file with the job card
	childMemory  = 5 // memory file, if the ranks share memory
	childListen  = 6 // the rank's listening socket, if there is one
	childNotify  = 7 // failure notifications, if the job continues after the failure of a rank
	childInspect = 8 // channel for inspections
	childRecord  = 9 // memory file for the rank's record, if there is one
	// childFiles is the number of these descriptors, with stdin, stdout and stderr. The files of
	// Prepare.RankFiles have the next numbers.
	childFiles = 10

	// noFile stands for a descriptor that a rank does not inherit.
	noFile = ^uintptr(0)
)

// childEnds holds the ends of channels that ranks inherit, by local rank. -1: the end is closed in
// this process.
type childEnds struct {
	control, inspect []int
	notify           []int // empty: the ranks get no failure notifications

	// rankFiles has, by local rank, the files of Prepare.RankFiles. They belong to shared.files,
	// and stay open. Empty: there are none.
	rankFiles [][]*os.File
}

func (e *childEnds) all() [][]int { return [][]int{e.control, e.inspect, e.notify} }

// closeOf closes this process's copies of the ends for local rank i.
func (e *childEnds) closeOf(i int) {
	for _, list := range e.all() {
		if i < len(list) && list[i] >= 0 {
			_ = unix.Close(list[i])
			list[i] = -1
		}
	}
}

func (e *childEnds) close() {
	for i := range e.control {
		e.closeOf(i)
	}
}

// fork starts local rank i.
func (c *Manager) fork(i int, ends childEnds) error {
	rk := &c.ranks[i]
	if err := c.bind(rk.cpus); err != nil {
		return &errStart{proto.ExitFailed, fmt.Sprintf("rank %d: %v", c.rankOf(i), err)}
	}
	reads, writes, err := outputs()
	if err != nil {
		return &errStart{proto.ExitFailed, err.Error()}
	}
	listens := len(c.ports.fds) > 0
	var left []*os.File
	if len(ends.rankFiles) > 0 {
		left = ends.rankFiles[i]
	}
	files := make([]uintptr, childFiles+len(left))
	for k := range files {
		files[k] = noFile
	}
	files[0], files[1], files[2] = uintptr(c.in.fd(i)), uintptr(writes[0]), uintptr(writes[1])
	files[childControl], files[childCard], files[childInspect] = uintptr(ends.control[i]), c.card.Fd(), uintptr(ends.inspect[i])
	if c.mem != nil {
		files[childMemory] = c.mem.Fd()
	}
	if listens {
		files[childListen] = uintptr(c.ports.fds[i])
	}
	if c.records != nil && c.records.file != nil {
		files[childRecord] = c.records.file.Fd()
	}
	if len(ends.notify) > 0 {
		files[childNotify] = uintptr(ends.notify[i])
	}
	for k, f := range left {
		if !c.job.RankFiles[k].Host {
			files[childFiles+k] = f.Fd()
		}
	}
	name, path, argv := c.job.Apps[rk.app].Name, c.apps[rk.app].path, c.job.Apps[rk.app].Argv
	if w := c.wrap.Of(c.rankOf(i), c.cfg.Host, path); w != nil {
		argv = slices.Concat(w, argv[1:])
		name = w[0]
		if path, err = exec.LookPath(name); err != nil {
			path = name // the error is that of the start
		}
	}
	pid, pidfd, err := forkExec(path, argv, &syscall.ProcAttr{
		Dir:   c.job.Apps[rk.app].Wdir,
		Env:   c.rankEnv(i, listens),
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	}, c.cgroup)
	for _, fd := range writes {
		_ = unix.Close(fd)
	}
	ends.closeOf(i)
	if listens {
		c.ports.release(i)
	}
	if err != nil {
		for _, fd := range reads {
			_ = unix.Close(fd)
		}
		return execError(name, err)
	}
	err = c.output.add(i, reads[0], reads[1])
	c.mu.Lock() // control must not handle the rank's events before pid is set
	if err == nil && pidfd >= 0 {
		err = c.poller.Add(pidfd, i, sys.In)
	}
	if err == nil {
		rk.pid, rk.pidfd, rk.at = pid, pidfd, time.Now()
	}
	late := c.stop
	c.mu.Unlock()
	if err != nil {
		if pidfd >= 0 {
			_ = unix.Close(pidfd)
		}
		signalGroup(pid, syscall.SIGKILL)
		reap(pid, leftoverLimit)
		return &errStart{proto.ExitFailed, err.Error()}
	}
	if pidfd < 0 {
		// Where there are no pidfds, a rank does not die with this process, so the watchdog must
		// kill it.
		c.cfg.Watchdog.groups([]int{pid})
		c.post(childEnded{}) // if the rank ended before pid was set, control has missed that
	}
	if late { // beginEnd has run during this start, and the signals after it have missed the rank
		signalGroup(pid, syscall.SIGKILL)
	}
	return nil
}

// outputs makes the pipes for a rank's stdout and stderr, and returns their read and write
// ends.
func outputs() (reads, writes [2]int, err error) {
	for k := range writes {
		r, w, err := sys.Pipe()
		if err != nil {
			if k == 1 {
				_ = unix.Close(reads[0])
				_ = unix.Close(writes[0])
			}
			return reads, writes, err
		}
		reads[k], writes[k] = r, w
	}
	return reads, writes, nil
}

// execError turns the error of forkExec into an *errStart. Its code is ExitNotFound if there is no
// such program, ExitNotExec if the program cannot be executed, and otherwise ExitFailed. execError
// returns an *errStart as it is.
func execError(program string, err error) error {
	var started *errStart
	switch {
	case errors.As(err, &started):
		return err
	case errors.Is(err, syscall.ENOENT):
		return &errStart{proto.ExitNotFound, program + ": cannot be started: no such file, or it names an interpreter that does not exist"}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EPERM),
		errors.Is(err, syscall.ETXTBSY), errors.Is(err, syscall.EISDIR), errors.Is(err, errLibrary):
		return &errStart{proto.ExitNotExec, program + ": cannot be executed: " + err.Error()}
	}
	return &errStart{proto.ExitFailed, program + ": cannot be started: " + err.Error()}
}

// bind binds this thread, and so the rank that the thread forks next, to cpus. If cpus is empty,
// bind lets the thread use all cpus that it could use before it was bound. If these are not known,
// bind returns an error.
func (c *Manager) bind(cpus []int) error {
	if len(cpus) == 0 {
		if !c.bound {
			return nil
		}
		if cpus = c.free; len(cpus) == 0 {
			return errors.New("cannot be started without binding after a rank that is bound: sched_getaffinity does not say where gorun may run")
		}
	}
	if !c.bound {
		c.free, c.bound = c.allowed(0), true
	}
	if err := sys.Bind(cpus); err != nil {
		return fmt.Errorf("bind to cpus %v: %w", cpus, err)
	}
	return nil
}

// allStarted handles started. It emits Started, and records in the shared memory which ranks were
// not started.
func (c *Manager) allStarted(m started) {
	c.numStarted = m.n
	c.cfg.Watchdog.groups(c.pids())
	for i := m.n; i < len(c.ranks); i++ {
		c.markEnded(i)
	}
	s := proto.Started{Group: c.job.Card.Group}
	for i := range m.n {
		rk := &c.ranks[i]
		started := proto.StartedRank{Rank: c.plan.Ranks[i].Rank, PID: rk.pid, At: rk.at.UnixNano()}
		if rk.rebound {
			started.CPUs = rk.cpus
		}
		s.Ranks = append(s.Ranks, started)
	}
	if m.err != nil {
		s.Failed = &proto.StartFailure{Rank: c.plan.Ranks[m.n].Rank, Code: proto.ExitFailed, Reason: m.err.Error()}
		var se *errStart
		if errors.As(m.err, &se) {
			s.Failed.Code = se.code
		}
	}
	c.cfg.Emit(s)
}

// rankOf returns the rank in its group of local rank i. plan.Ranks has its number in the whole job.
func (c *Manager) rankOf(i int) int { return c.plan.Ranks[i].Rank - c.job.First }

// pids returns the pids of the ranks that were started. Each is also the number of the rank's
// process group.
func (c *Manager) pids() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var pids []int
	for i := range c.ranks {
		if pid := c.ranks[i].pid; pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids
}

// closeFiles closes those of files that are not nil.
func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
