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

// envAllocated marks a gorun that salloc has started for another gorun. Its value is the descriptor
// of a pipe. The marked gorun writes to this pipe when it catches signals, and again when its job
// has ended: see toOuter.
const envAllocated = procs.EnvAllocated

// allocate gets an allocation for a job that wants Slurm and has none: salloc runs this
// gorun once more in the allocation, with the same arguments. allocate waits for salloc
// and returns its exit code. done is false if the job needs no allocation, or if err says
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
	// A signal to salloc releases the allocation. So salloc runs in a session of its own,
	// where it gets no signals from the terminal. runSalloc passes signals to the gorun that
	// salloc has started.
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

// allocationSize returns the number of ranks for which a job needs an allocation, or 0 if it is not
// known, and the nodes that the user names.
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

// runSalloc runs salloc and passes signals to the gorun that salloc starts, the inner one. It
// returns the exit code of the inner gorun's job, with which this gorun also exits. If a
// signal ended salloc before salloc had started the inner gorun, early is that signal.
//
// A terminating signal may come while salloc starts the inner gorun. As long as the
// inner gorun has no handler, the signal would kill it, and salloc would then exit with code
// 0. So runSalloc sends the signal to salloc and remembers it. When the inner gorun reports
// that it catches signals, runSalloc sends the signal to the inner gorun.
//
// salloc may hang after the signal, for two reasons in salloc.c of Slurm 22.05. The signal
// handler calls functions that take locks, and the interrupted thread may hold these locks.
// The thread that learns that the allocation is revoked may reap the child before the main
// thread does, and the main thread then calls waitpid for ever. So if salloc does not end in
// sallocTime, runSalloc kills it and releases its allocation.
func runSalloc(ctx context.Context, cmd *exec.Cmd) (code int, early syscall.Signal, err error) {
	signals, stop := catchSignals()
	defer stop()
	pipe, inherited, err := os.Pipe()
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = pipe.Close() }()
	cmd.ExtraFiles = []*os.File{inherited} // salloc leaves it open for the inner gorun
	cmd.Env = append(os.Environ(), envAllocated+"=3")
	runtime.LockOSThread() // the kernel sends Pdeathsig when the thread ends
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	_ = inherited.Close()
	if err != nil {
		return 0, 0, err
	}
	started := make(chan *os.Process, 1)
	said := make(chan int, 1) // the code of the inner gorun's job; closed at the pipe's end
	go func() {               // ends at the latest when pipe is closed
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
	go func() { // ends with salloc
		defer close(ended)
		_ = cmd.Wait()
	}()
	second := time.NewTicker(time.Second)
	defer second.Stop()
	cancelled := ctx.Done()
	var inner *os.Process // nil until it catches signals
	defer func() {
		if inner != nil {
			_ = inner.Release()
		}
	}()
	late, killed := 0, false // late: number of seconds since salloc should have ended
	for {
		var sig syscall.Signal
		select {
		case <-ended:
			_ = pipe.SetReadDeadline(time.Now().Add(time.Second)) // the pipe should be at its end already
			code, ok := <-said
			select {
			case inner = <-started: // for Release
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
			_ = inner.Signal(sig) // an error means that the job has ended
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

// sallocTime is the number of seconds that salloc gets to end, after the inner gorun has
// ended or after a signal. In this time salloc releases the allocation. After this time gorun
// kills salloc and releases the allocation itself. Tests change sallocTime.
var sallocTime = 5

// reapable reports whether a process has ended, even if its parent has not reaped it yet.
func reapable(p *os.Process) bool {
	if errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone) {
		return true
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
	_, fields, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	return strings.HasPrefix(fields, "Z")
}

// release cancels the allocation of a salloc that was killed. salloc was the leader of its
// session, and Slurm knows the session that has asked for an allocation. release returns
// early if a signal asks gorun to end.
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
		default: // the job may belong to a session with the same number on another host
			err = errors.New("job " + f[0])
		}
	}
	if err != nil {
		_, _ = fmt.Fprintf(salloc.Stderr, "gorun: salloc did not end and was killed; Slurm may still hold its allocation (%v): see squeue\n", err)
	}
}

// sallocCode returns the exit code of a job in an allocation that salloc got. known is true if the
// inner gorun has reported code.
func sallocCode(salloc *os.ProcessState, code int, known bool) int {
	ws, _ := salloc.Sys().(syscall.WaitStatus)
	switch {
	case known:
		return code
	case ws.Signaled():
		return proto.ExitSignalFloor + int(ws.Signal())
	case ws.ExitStatus() == 0:
		// salloc returns 0 if its command was ended by SIGKILL.
		return proto.ExitSignalFloor + int(syscall.SIGKILL)
	}
	return ws.ExitStatus()
}

// toOuter is the pipe to the gorun that waits for salloc. It is nil if there is none.
type toOuter struct{ pipe *os.File }

// readyForSignals tells the gorun that waits for salloc, if there is one, that this gorun
// catches signals. It writes its process id to the pipe.
func readyForSignals() *toOuter {
	fd, err := strconv.Atoi(os.Getenv(envAllocated))
	if err != nil {
		return nil
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil // salloc has closed the pipe, and the descriptor may belong to another file
	}
	unix.CloseOnExec(fd)
	o := &toOuter{os.NewFile(uintptr(fd), "pipe to the gorun that waits for salloc")}
	o.write(os.Getpid())
	return o
}

// ended tells the gorun that waits for salloc how the job has ended.
func (o *toOuter) ended(code int) {
	if o == nil {
		return
	}
	o.write(code)
	_ = o.pipe.Close()
}

func (o *toOuter) write(number int) {
	_, _ = fmt.Fprintln(o.pipe, number) // an error means that the other gorun has ended
}

// readNumber reads a line that toOuter.write has written. ok is false at the pipe's end.
func readNumber(pipe *bufio.Reader) (number int, ok bool) {
	line, err := pipe.ReadString('\n')
	if err != nil {
		return 0, false
	}
	number, err = strconv.Atoi(strings.TrimSuffix(line, "\n"))
	return number, err == nil
}
