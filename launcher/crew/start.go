package crew

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/launcher/place"
	"github.com/weft-hpc/weft/launcher/proto"
	"golang.org/x/sys/unix"
)

// status is how a process ended: by a signal, or with an exit code.
type status struct {
	code   int
	signal syscall.Signal
}

// rank is one process of the job.
type rank struct {
	app  int
	cpus []int // that it is bound to; nil: all

	// Crew.mu guards these until the rank has started.
	pid   int
	pidfd int
	at    time.Time // when it was started

	ctl    int    // our end of its control channel; -1: closed
	news   int    // our end of its channel for news; -1: it has none
	in     []byte // from ctl, not yet a whole line
	unsent []byte // for news, which was full; not empty: epoll tells when it is not
	exited bool
	stuck  bool  // it has not really: it does not end by SIGKILL
	errAt  int64 // where what it writes begins in its file of stderr
	wanted bool  // it has called Abort, or made no sense, and is not heard any more
	status status
	dying  bool // it was on its way out when another, which still ran, failed the job
	doomed bool // it had been sent SIGKILL, not by us, when the job failed of what another did
	exit   proto.Exit
}

// app is a program as this host runs it.
type app struct {
	path string
	env  []string
	keep bool // the user has set GOMAXPROCS
}

// errStart is why a rank, or a program, cannot be started, and gorun's exit code
// then.
type errStart struct {
	code int
	msg  string
}

func (e *errStart) Error() string { return e.msg }

// forkAll starts the ranks, one after the other, then stays until the job has
// ended: PR_SET_PDEATHSIG is sent when the *thread* that forked dies, so that
// thread lives as long as the job. It is never unlocked, and the runtime ends
// it with the goroutine, along with the affinity that it was given. Crew.finish
// ends it and waits for it.
func (c *Crew) forkAll(ends, news []int) {
	defer close(c.forked)
	runtime.LockOSThread()
	var err error
	n := 0
	for ; n < len(c.ranks) && err == nil && !c.stopped(); n++ {
		if err = c.fork(n, ends, news); err != nil {
			break
		}
	}
	for _, fd := range append(ends, news...) {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	c.ports.close()
	_ = c.card.Close()
	c.in.started()
	c.post(started{n, err})
	<-c.over
}

// The numbers under which a rank inherits its descriptors, behind stdio.
const (
	childControl = 3 // PMI-1
	childCard    = 4
	childMemory  = 5 // where ranks share memory
	childListen  = 6
	childNews    = 7 // where a job goes on without ranks that have failed
	childFiles   = 8

	// noFile stands for a descriptor that a rank does not inherit.
	noFile = ^uintptr(0)
)

func (c *Crew) fork(i int, ends, news []int) error {
	rk := &c.ranks[i]
	if err := c.bind(rk.cpus); err != nil {
		return &errStart{proto.ExitFailed, fmt.Sprintf("bind rank %d to cpus %v: %v", c.plan.Ranks[i].Rank, rk.cpus, err)}
	}
	reads, writes, err := c.outputs(i)
	if err != nil {
		return &errStart{proto.ExitFailed, err.Error()}
	}
	listens := len(c.ports.fds) > 0
	files := make([]uintptr, childFiles)
	for k := range files {
		files[k] = noFile
	}
	files[0], files[1], files[2] = uintptr(c.in.fd(i)), uintptr(writes[0]), uintptr(writes[1])
	files[childControl], files[childCard] = uintptr(ends[i]), c.card.Fd()
	if c.mem != nil {
		files[childMemory] = c.mem.Fd()
	}
	if listens {
		files[childListen] = uintptr(c.ports.fds[i])
	}
	if len(news) > 0 {
		files[childNews] = uintptr(news[i])
	}
	a := &c.apps[rk.app]
	pidfd := -1
	pid, err := syscall.ForkExec(a.path, c.job.Apps[rk.app].Argv, &syscall.ProcAttr{
		Dir:   c.job.Apps[rk.app].Wdir,
		Env:   c.rankEnv(i, listens),
		Files: files,
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd},
	})
	for _, fd := range writes {
		_ = unix.Close(fd)
	}
	_ = unix.Close(ends[i])
	ends[i] = -1
	if len(news) > 0 {
		_ = unix.Close(news[i])
		news[i] = -1
	}
	if listens {
		c.ports.release(i)
	}
	if err != nil {
		for _, fd := range reads {
			if fd >= 0 {
				_ = unix.Close(fd)
			}
		}
		return execError(c.job.Apps[rk.app].Name, err)
	}
	if pidfd < 0 {
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			reapNow(pid)
			return &errStart{proto.ExitFailed, "pidfd_open: " + err.Error() + ": the kernel is older than Linux 5.4"}
		}
	}
	err = c.output.add(i, reads[0], reads[1])
	c.mu.Lock() // control sees the rank with its events
	if err == nil {
		err = watch(c.ep, pidfd, i)
	}
	if err == nil {
		rk.pid, rk.pidfd, rk.at = pid, pidfd, time.Now()
	}
	late := c.stop
	c.mu.Unlock()
	if err != nil {
		_ = unix.Close(pidfd)
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		reap(pid, sweepLimit)
		return &errStart{proto.ExitFailed, "epoll: " + err.Error()}
	}
	if late { // the job was ended while this one was being started
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	return nil
}

// outputs makes what a rank writes to: pipes, whose read ends it returns too,
// or files.
func (c *Crew) outputs(i int) (reads, writes [2]int, err error) {
	reads, writes = [2]int{-1, -1}, [2]int{-1, -1}
	for k := range writes {
		if c.cfg.OutputDir == "" {
			var p [2]int
			err = unix.Pipe2(p[:], unix.O_CLOEXEC)
			reads[k], writes[k] = p[0], p[1]
		} else {
			name := c.outputFile(i, k)
			flags := unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND | unix.O_CLOEXEC
			if c.job.Card.Epoch == 0 { // a job that begins anew goes on in them
				flags |= unix.O_TRUNC
			}
			writes[k], err = unix.Open(name, flags, 0o666)
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			} else if k == 1 {
				c.ranks[i].errAt, _ = unix.Seek(writes[k], 0, unix.SEEK_END) // 0 where it cannot be sought
			}
		}
		if err != nil {
			for _, fd := range []int{reads[0], writes[0]} {
				if k == 1 && fd >= 0 {
					_ = unix.Close(fd)
				}
			}
			return reads, writes, err
		}
	}
	return reads, writes, nil
}

// outputFile is where a rank's stdout, or stderr, stands.
func (c *Crew) outputFile(i, stream int) string {
	return OutputFile(c.cfg.OutputDir, c.plan.Ranks[i].Rank, stream == 1)
}

// OutputFile is the name of the file that has a rank's stdout or stderr.
func OutputFile(dir string, rank int, stderr bool) string {
	ext := ".out"
	if stderr {
		ext = ".err"
	}
	return filepath.Join(dir, strconv.Itoa(rank)+ext)
}

// execError gives a failed start the exit code of a shell.
func execError(program string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return &errStart{proto.ExitNotFound, program + ": cannot be started: no such file, or it names an interpreter that does not exist"}
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EPERM),
		errors.Is(err, syscall.ETXTBSY), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ELIBBAD):
		return &errStart{proto.ExitNotExec, program + ": cannot be executed: " + err.Error()}
	}
	return &errStart{proto.ExitFailed, program + ": cannot be started: " + err.Error()}
}

// bind has this thread, and with it the rank that it forks next, run on cpus, or where
// it began if these are none.
func (c *Crew) bind(cpus []int) error {
	if c.free == nil {
		if len(cpus) == 0 {
			return nil
		}
		free := unix.NewCPUSet(place.MaxCPUs)
		if err := unix.SchedGetaffinityDynamic(0, free); err != nil {
			return err
		}
		c.free = free
	}
	set := c.free
	if len(cpus) > 0 {
		set = cpuSet(cpus)
	}
	return unix.SchedSetaffinityDynamic(0, set)
}

func cpuSet(cpus []int) unix.CPUSetDynamic {
	set := unix.NewCPUSet(slices.Max(cpus) + 1)
	for _, c := range cpus {
		set.Set(c)
	}
	return set
}

// allStarted tells that forkAll is through.
func (c *Crew) allStarted(m started) {
	c.allUp = m.n
	c.cfg.Watchdog.groups(c.pids())
	for i := m.n; i < len(c.ranks); i++ {
		c.noteEnd(i)
	}
	s := proto.Started{}
	for i := range m.n {
		s.Ranks = append(s.Ranks, proto.StartedRank{Rank: c.plan.Ranks[i].Rank, PID: c.ranks[i].pid, At: c.ranks[i].at.UnixNano()})
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

// pids are the ranks that were started; their pids name their groups.
func (c *Crew) pids() []int {
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

// BecomeReaper makes orphans of the ranks children of this process.
func BecomeReaper() (restore func()) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return func() {}
	}
	return func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }
}

// closeFiles closes files that may not be there.
func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
