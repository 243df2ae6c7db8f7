package remote

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
)

// child is a process that this one has started: an ssh, whose stdin and stdout are the stream to an
// agent, or an srun, which starts agents.
type child struct {
	name   string   // name of its program
	pid    int      // its process id, which is also the number of its process group
	in     *os.File // write end of its stdin
	out    *os.File // read end of its stdout
	stderr tail     // the last lines of its stderr

	grace time.Duration // time for which [child.end] waits before SIGTERM, and again before SIGKILL

	mu     sync.Mutex // guards reaped, and is held while a signal is sent
	reaped bool       // the process is being reaped or was reaped, so pid may be another process's

	ended chan struct{}    // closed when the process was reaped and its stderr was read
	state *os.ProcessState // how the process has ended; set before ended is closed
}

const (
	endGrace = 300 * time.Millisecond // default of child.grace
	// causeWait is how long [child.cause] waits for the child's end after the end of its stream.
	causeWait = time.Second
	// stderrWait is the time to read stderr after the child's end. Another process may keep stderr
	// open for longer.
	stderrWait = 100 * time.Millisecond
)

// start starts a process in a session of its own, so that it has no terminal on which it could ask
// a question. On Linux the process gets SIGKILL when this process dies. note, if not nil, gets each
// line of its stderr.
func start(argv, env []string, note func(line string)) (*child, error) {
	c := &child{name: filepath.Base(argv[0]), grace: endGrace, ended: make(chan struct{})}
	c.stderr.note = note
	var ends [6]*os.File // pipes for stdin, stdout and stderr: read end, write end
	for i := 0; i < len(ends); i += 2 {
		var err error
		if ends[i], ends[i+1], err = os.Pipe(); err != nil {
			closeFiles(ends[:]...)
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	c.in, c.out = ends[1], ends[2]
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = ends[0], ends[3], ends[5]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	sys.DieWithParent(cmd.SysProcAttr, syscall.SIGKILL)

	started := make(chan error)
	go c.watch(cmd, started, ends[4]) // ends after the process has ended; end waits for it
	if err := <-started; err != nil {
		closeFiles(ends[:]...)
		if cause := errors.Unwrap(err); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("%s cannot be started: %w", argv[0], err)
	}
	closeFiles(ends[0], ends[3], ends[5])
	return c, nil
}

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// watch starts the process and waits for it. The kernel sends the process its PR_SET_PDEATHSIG when
// the thread that forked it ends. So watch keeps its thread as long as the process lives.
func (c *child) watch(cmd *exec.Cmd, started chan<- error, errs *os.File) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if err == nil {
		c.pid = cmd.Process.Pid
	}
	started <- err
	if err != nil {
		return
	}
	read := make(chan struct{})
	go func() { // ends at the end of stderr, or by the deadline below
		defer close(read)
		_, _ = io.Copy(&c.stderr, errs)
	}()
	err = sys.AwaitExit(c.pid)
	if err != nil {
		_ = cmd.Wait()
	}
	c.mu.Lock()
	if err == nil {
		// The process is not reaped yet, so no other group has its id. The signal ends the
		// processes that it leaves behind, for example a ProxyCommand.
		_ = syscall.Kill(-c.pid, syscall.SIGKILL)
	}
	c.reaped = true
	c.mu.Unlock()
	_ = cmd.Wait()
	// An ssh master that stays for connection sharing may keep stderr open.
	_ = errs.SetReadDeadline(time.Now().Add(stderrWait))
	<-read
	_ = errs.Close()
	c.state = cmd.ProcessState
	close(c.ended)
}

// signal sends a signal to the process group of the process, unless the process was reaped.
func (c *child) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		_ = syscall.Kill(-c.pid, sig)
	}
}

// wait waits until the process has ended, at most for d. It reports whether the process has ended.
func (c *child) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.ended:
		return true
	case <-t.C:
		return false
	}
}

// end ends the process and returns when it was reaped. It closes stdin, at which the process usually
// ends by itself, then sends SIGTERM, then SIGKILL.
func (c *child) end() error {
	_ = c.in.Close()
	_ = c.out.Close()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if c.wait(c.grace) {
			return nil
		}
		c.signal(sig)
	}
	<-c.ended
	return nil
}

// cause returns why the process has ended: the signal that ended it, a line of its stderr, or its
// exit status. It returns nil if the process has exited with status 0, or still runs after
// causeWait.
func (c *child) cause() error {
	reason := func(otherwise string) error {
		if w := c.stderr.reason(); w != "" {
			return errors.New(w)
		}
		return errors.New(otherwise)
	}
	if !c.wait(causeWait) {
		return nil
	}
	ws, ok := c.state.Sys().(syscall.WaitStatus)
	switch {
	case !ok || ws.ExitStatus() == 0:
		return nil
	case ws.Signaled():
		return fmt.Errorf("%s was ended by signal %d (%s)", c.name, ws.Signal(), ws.Signal())
	}
	switch code := ws.ExitStatus(); code {
	case sshFailed:
		return reason(fmt.Sprintf("%s ended with status %d and no message: the connection broke, or the agent was killed", c.name, code))
	case 126:
		return reason("the agent cannot be executed (status 126)")
	case 127:
		return reason("a program to be run on the host does not exist (status 127)")
	default:
		return reason(fmt.Sprintf("the agent ended with status %d", code))
	}
}

// sshFailed is the exit status of ssh if ssh itself has failed. Any other status is that of the
// agent.
const sshFailed = 255
