package launcher

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/remote"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// envAllocated is a variable in the environment of the inner gorun, the gorun that salloc has
// started for another gorun, the outer one. Its value is the number of a descriptor: the write end
// of a pipe to the outer gorun. The inner gorun writes to the pipe when it begins to catch signals,
// and when its job has ended: see toOuter.
const envAllocated = procs.EnvAllocated

// allocate gets an allocation for a job that wants Slurm and has none: it runs salloc, which runs
// this executable again in the allocation, with the same arguments. allocate blocks until salloc
// has ended. If salloc has run, done is true, and code is the exit code of the job in the
// allocation, or that of salloc. Otherwise err is nil if the job needs no allocation, and else says
// why it gets none.
func allocate(ctx context.Context, j *job.Job) (code int, done bool, err error) {
	if j.Launcher != job.LaunchSlurm || hosts.Manager(os.Getenv) == hosts.Slurm {
		return 0, false, nil
	}
	if os.Getenv(envAllocated) != "" {
		return 0, false, errors.New("salloc has started gorun, but there is no allocation of Slurm")
	}
	salloc, err := exec.LookPath("salloc")
	if err != nil {
		return 0, false, &startError{proto.ExitNotFound, "-launcher slurm: there is no allocation of Slurm here, and no salloc on PATH"}
	}
	exe, err := os.Executable()
	if err != nil {
		return 0, false, err
	}
	np, nodes := allocationSize(j)
	line := remote.Salloc(j.SlurmArgs, np, nodes, exe, os.Args[1:])
	cmd := exec.Command(salloc, line[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// At a terminating signal, salloc releases the allocation, which ends the job. So salloc runs
	// in a session of its own, where it gets no signals from the terminal. runSalloc passes signals
	// to the inner gorun.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	sys.DieWithParent(cmd.SysProcAttr, syscall.SIGTERM)
	code, sig, err := runSalloc(ctx, cmd)
	switch {
	case err != nil:
		return 0, false, fmt.Errorf("%s: %w", salloc, err)
	case sig != 0:
		return 0, false, &startError{proto.ExitSignalFloor + int(sig),
			"ended by " + signalName(sig) + " before Slurm had started the job"}
	case ctx.Err() != nil:
		return 0, false, context.Cause(ctx)
	}
	return code, true, nil
}

// allocationSize returns what a job needs of an allocation: room for np ranks, and the nodes that
// the user names. np is 0 if the number of ranks is not known. nodes is nil if the user names none.
func allocationSize(j *job.Job) (np int, nodes []string) {
	slots := 0
	for _, h := range j.Hosts {
		nodes = append(nodes, h.Name)
		slots += max(h.Slots, 1)
	}
	if !j.NPGiven && len(j.Apps) == 1 {
		return slots, nodes
	}
	return j.NP(), nodes
}

// runSalloc runs salloc and passes signals to the inner gorun, which salloc starts. It blocks until
// salloc has ended, and returns the exit code of the job of the inner gorun, with which this gorun
// must exit. If a terminating signal came, and salloc ended before the inner gorun caught signals,
// early is that signal. The end of ctx counts as SIGTERM.
//
// A terminating signal may come while salloc starts the inner gorun. As long as the inner gorun has
// no handler, the signal would kill it, and salloc would then exit with code 0. So runSalloc sends
// the signal to salloc and remembers it. If the inner gorun later reports that it catches signals,
// runSalloc sends the signal to the inner gorun, too.
//
// salloc may hang after the signal, for two reasons in salloc.c of Slurm 22.05. The signal handler
// of salloc calls functions that take locks, and the interrupted thread may hold these locks. The
// thread that learns that the allocation is revoked may reap the child before the main thread does,
// and the main thread then calls waitpid for ever. So if salloc does not end within sallocTime,
// runSalloc kills salloc and releases its allocation.
func runSalloc(ctx context.Context, cmd *exec.Cmd) (code int, early syscall.Signal, err error) {
	signals, stop := catchSignals()
	defer stop()
	// The inner gorun writes to the pipe: see toOuter.
	pipe, inherited, err := os.Pipe()
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = pipe.Close() }()
	cmd.ExtraFiles = []*os.File{inherited} // descriptor 3 of salloc, which passes it on to the inner gorun
	cmd.Env = append(os.Environ(), envAllocated+"=3")
	// This keeps the thread alive. The kernel sends salloc Pdeathsig when the thread that has
	// started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	_ = inherited.Close()
	if err != nil {
		return 0, 0, err
	}
	started := make(chan *os.Process, 1) // gets the inner gorun when that catches signals
	// said gets the exit code that the inner gorun reports. It is closed when the pipe has ended.
	said := make(chan int, 1)
	// The goroutine ends after two lines or at the end of the pipe, at the latest when runSalloc
	// closes pipe.
	go func() {
		defer close(said)
		lines := bufio.NewReader(pipe)
		if pid, ok := readNumber(lines); ok && pid > 0 {
			if p, err := os.FindProcess(pid); err == nil {
				started <- p
			}
		}
		if code, ok := readNumber(lines); ok {
			said <- code
		}
	}()
	ended := make(chan struct{})
	go func() { // ends when salloc has ended
		defer close(ended)
		_ = cmd.Wait()
	}()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	cancelled := ctx.Done()
	var inner *os.Process // the inner gorun; nil: it does not catch signals yet
	defer func() {
		if inner != nil {
			_ = inner.Release()
		}
	}()
	// late is the number of seconds for which salloc has had a reason to end. killed says that
	// salloc has got SIGKILL.
	late, killed := 0, false
	for {
		var sig syscall.Signal
		select {
		case <-ended:
			// The pipe has usually ended, too, but another process may keep it open.
			_ = pipe.SetReadDeadline(time.Now().Add(time.Second))
			code, ok := <-said
			select {
			case inner = <-started: // so that the deferred function releases inner
			default:
			}
			if killed {
				release(cmd, signals)
			}
			return sallocCode(cmd.ProcessState, code, ok), early, nil
		case inner = <-started:
			sig, early, late = early, 0, 0
		case <-cancelled:
			cancelled, sig = nil, syscall.SIGTERM
		case s := <-signals:
			sig, _ = s.(syscall.Signal)
		case <-second.C:
			if inner == nil && early != 0 || inner != nil && reapable(inner) {
				late++
			}
			if late == sallocTime {
				killed = true
				_ = cmd.Process.Kill()
			}
		}
		switch {
		case sig == 0:
		case inner != nil:
			_ = inner.Signal(sig) // an error means that the inner gorun has ended
		case terminates(sig):
			early = sig
			_ = cmd.Process.Signal(sig)
		}
		if sig == syscall.SIGTSTP {
			suspend()
			if inner != nil {
				_ = inner.Signal(syscall.SIGCONT)
			}
		}
	}
}

// sallocTime is the number of seconds in which salloc must end, after the inner gorun has ended, or
// after a signal that came before the inner gorun caught signals. In this time salloc should
// release the allocation. If salloc has not ended then, gorun kills it and releases the allocation
// itself. Tests change sallocTime.
var sallocTime = 5

// reapable reports whether a process has ended. It also returns true for a zombie, which its parent
// has not reaped.
func reapable(p *os.Process) bool {
	if errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone) {
		return true
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
	_, fields, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	return strings.HasPrefix(fields, "Z")
}

// release cancels the allocation of a salloc that was killed. squeue lists, for each allocation of
// this user, the session and the working directory of the process that requested it. The session of
// that salloc has the pid of salloc as its number. release gives up after 30 seconds, or if a
// signal asks gorun to end. If it cannot cancel the allocation, it prints that.
func release(salloc *exec.Cmd, signals <-chan os.Signal) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // slurmctld may be busy
	defer cancel()
	ctx, stop := signalContext(ctx, signals)
	defer stop()
	session := strconv.Itoa(salloc.Process.Pid)
	dir, _ := syscall.Getwd()
	jobs, err := exec.CommandContext(ctx, "squeue", "--noheader", "--user", strconv.Itoa(os.Getuid()),
		"-O", "JobID:20,AllocSID:20,BatchFlag:20,WorkDir:"+strconv.Itoa(len(dir)+20)).Output()
	for line := range strings.Lines(string(jobs)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 3 || f[1] != session:
		case f[2] == "0" && strings.HasSuffix(strings.TrimSpace(line), " "+dir):
			err = exec.CommandContext(ctx, "scancel", f[0]).Run()
		default: // the allocation may belong to a session with the same number on another host
			err = errors.New("job " + f[0])
		}
	}
	if err != nil {
		_, _ = fmt.Fprintf(salloc.Stderr, "gorun: salloc did not end and was killed; Slurm may still hold its allocation (%v): see squeue\n", err)
	}
}

// sallocCode returns the exit code of a job that ran, or should have run, under salloc. If known is
// true, the inner gorun has reported the exit code code. Otherwise the result follows from salloc,
// the state with which salloc ended.
func sallocCode(salloc *os.ProcessState, code int, known bool) int {
	ws, _ := salloc.Sys().(syscall.WaitStatus)
	switch {
	case known:
		return code
	case ws.Signaled():
		return proto.ExitSignalFloor + int(ws.Signal())
	case ws.ExitStatus() == 0:
		// Without a report of the inner gorun, 0 means that SIGKILL has ended it: then salloc exits
		// with 0.
		return proto.ExitSignalFloor + int(syscall.SIGKILL)
	}
	return ws.ExitStatus()
}

// toOuter is the pipe from the inner gorun to the outer one, which waits for salloc. The inner
// gorun writes two lines to the pipe: its process id when it catches signals, and its exit code
// when its job has ended. A nil *toOuter is valid and writes nothing: that of a gorun that no other
// gorun has started by salloc.
type toOuter struct{ pipe *os.File }

// readyForSignals reports to the outer gorun that this gorun catches signals. It returns the pipe
// to the outer gorun, or nil if there is none. The caller must call ended.
func readyForSignals() *toOuter {
	fd, err := strconv.Atoi(os.Getenv(envAllocated))
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil // not a pipe: salloc has closed the descriptor, and its number now belongs to another file
	}
	unix.CloseOnExec(fd)
	o := &toOuter{os.NewFile(uintptr(fd), "pipe to the gorun that waits for salloc")}
	o.write(os.Getpid())
	return o
}

// ended reports the exit code of the job to the outer gorun, and closes the pipe.
func (o *toOuter) ended(code int) {
	if o == nil {
		return
	}
	o.write(code)
	_ = o.pipe.Close()
}

func (o *toOuter) write(number int) {
	_, _ = fmt.Fprintln(o.pipe, number) // an error means that the outer gorun has ended
}

// readNumber reads a line that toOuter.write has written. ok is false at the end of the pipe, or if
// the line is not a number.
func readNumber(pipe *bufio.Reader) (number int, ok bool) {
	line, err := pipe.ReadString('\n')
	if err != nil {
		return 0, false
	}
	number, err = strconv.Atoi(strings.TrimSuffix(line, "\n"))
	return number, err == nil
}
