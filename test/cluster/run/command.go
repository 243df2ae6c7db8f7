//go:build linux

package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weft-hpc/weft/internal/testbed"
)

// markEnv is in the environment of gorun, of the ranks and of all that they start,
// but not of agents on other hosts.
const markEnv = "CLUSTER_TEST_RUN"

// mark is this process's.
var mark = fmt.Sprintf("%s=%d", markEnv, os.Getpid())

// limit bounds a gorun, which takes seconds.
const limit = time.Minute

// Command is a gorun that is to be run.
type Command struct {
	Args   []string
	Exe    string        // "": the one that Main has built
	Env    []string      // over this process's environment, from which what a launcher sets is left out
	Dir    string        // "": this process's, which it always is on a Host
	Host   *testbed.Host // nil: this machine
	Stdin  io.Reader     // nil: none, at once at its end
	Stdout io.Writer     // nil: kept for the Result
	Stderr io.Writer     // nil: kept for the Result
	Group  bool          // it is the leader of a process group of its own
}

// Result is how gorun ended.
type Result struct {
	Code   int // of a shell: 128+N after signal N
	Stdout string
	Stderr string
	State  *os.ProcessState
	Report *Report // nil: it has not written any
}

// Gorun runs gorun and waits for its end.
func Gorun(t testing.TB, args ...string) Result {
	t.Helper()
	return Command{Args: args}.Run(t)
}

// Run runs a gorun and waits for its end.
func (c Command) Run(t testing.TB) Result {
	t.Helper()
	return c.Start(t).Wait()
}

// Process is a gorun that runs.
type Process struct {
	t      testing.TB
	cmd    *exec.Cmd
	what   string
	report string
	stdout Text
	stderr Text
	ended  chan struct{}
	err    error
	over   bool // its limit
}

// Start starts a gorun, which the end of the test ends if nothing else has.
func (c Command) Start(t testing.TB) *Process {
	t.Helper()
	p := &Process{t: t, what: "gorun " + strings.Join(c.Args, " "), ended: make(chan struct{})}
	exe := c.Exe
	if exe == "" {
		exe = Program("gorun")
	}
	tmp := t.TempDir()
	p.report = filepath.Join(tmp, "report.json")
	work := filepath.Join(tmp, "tmp")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	if c.Host != nil {
		p.cmd = c.Host.Command(ctx, exe, c.Args...)
	} else {
		p.cmd = exec.CommandContext(ctx, exe, c.Args...)
		p.cmd.Dir = c.Dir
	}
	p.cmd.Env = append(cleanEnv(), mark, "TMPDIR="+work, "WEFT_JOB_REPORT="+p.report)
	p.cmd.Env = append(p.cmd.Env, c.Env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	if c.Stdout == nil {
		p.cmd.Stdout = &p.stdout
	}
	if c.Stderr == nil {
		p.cmd.Stderr = &p.stderr
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: c.Group}
	p.cmd.Cancel = func() error { p.over = true; return p.cmd.Process.Kill() }
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		cancel()
		t.Fatalf("%s: %v", p.what, err)
	}
	go func() { // ends with the process; the cleanup waits for it
		defer close(p.ended)
		defer cancel()
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		select {
		case <-p.ended:
		default:
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
		if left, err := os.ReadDir(work); err == nil && len(left) > 0 && !p.killed() {
			t.Errorf("%s left %v in its TMPDIR", p.what, left)
		}
	})
	return p
}

// cleanEnv is this process's environment without what launchers set.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		ours := false
		for _, prefix := range []string{"WEFT_", "SLURM_", "PMI", "OMPI_", "MV2_", "PBS_", "LSB_", "PE_HOSTFILE=", "GOMAXPROCS=", "TMPDIR="} {
			ours = ours || strings.HasPrefix(kv, prefix)
		}
		if !ours {
			env = append(env, kv)
		}
	}
	return env
}

func (p *Process) killed() bool {
	ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// PID is the process's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stdout is what has come so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr is what has come so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// Signal sends gorun a signal.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("%s: %v", p.what, err)
	}
}

// Running says whether gorun has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Wait waits for the end.
func (p *Process) Wait() Result {
	p.t.Helper()
	<-p.ended
	if p.over {
		p.t.Fatalf("%s: not at an end after %v\nstdout: %s\nstderr: %s", p.what, limit, cut(p.stdout.String()), cut(p.stderr.String()))
	}
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		p.t.Fatalf("%s: %v", p.what, p.err)
	}
	r := Result{Code: p.cmd.ProcessState.ExitCode(), Stdout: p.stdout.String(), Stderr: p.stderr.String(), State: p.cmd.ProcessState}
	if ws, ok := r.State.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		r.Code = 128 + int(ws.Signal())
	}
	if _, err := os.Stat(p.report); err == nil {
		r.Report = ReadReport(p.t, p.report)
	}
	return r
}

// AwaitStdout waits until a pattern has matched n times in the ranks' output.
func (p *Process) AwaitStdout(n int, pattern string) {
	p.t.Helper()
	p.await(&p.stdout, n, pattern)
}

// AwaitStderr waits until a pattern has matched n times on stderr.
func (p *Process) AwaitStderr(n int, pattern string) {
	p.t.Helper()
	p.await(&p.stderr, n, pattern)
}

func (p *Process) await(text *Text, n int, pattern string) {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	Eventually(p.t, func() error {
		found := len(re.FindAllString(text.String(), -1))
		if found < n && !p.Running() {
			p.t.Fatalf("%s: ended without %s\nstdout: %s\nstderr: %s", p.what, pattern, cut(p.stdout.String()), cut(p.stderr.String()))
		}
		if found < n {
			return fmt.Errorf("%s: %d of %d times %s\nstdout: %s\nstderr: %s", p.what, found, n, pattern, cut(p.stdout.String()), cut(p.stderr.String()))
		}
		return nil
	})
}

func cut(s string) string {
	const most = 4000
	if len(s) > most {
		return s[:most/2] + "\n…\n" + s[len(s)-most/2:]
	}
	return s
}

// Eventually waits until f has no error to tell, for half a minute at most.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	if err := Within(30*time.Second, f); err != nil {
		t.Fatal(err)
	}
}

// Within waits until f has no error to tell, and returns the last one where that
// takes longer than d.
func Within(d time.Duration, f func() error) error {
	pause := time.Millisecond // who looks through all processes shall not be what they wait for
	for end := time.Now().Add(d); ; time.Sleep(pause) {
		err := f()
		if err == nil || time.Now().After(end) {
			return err
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// Text is what a process writes, to be read meanwhile.
type Text struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (x *Text) Write(b []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.Write(b)
}

func (x *Text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.String()
}

// Children are the processes that a process has started.
func Children(t testing.TB, pid int) (pids []int) {
	t.Helper()
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range lists {
		text, _ := os.ReadFile(name)
		for word := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, child)
		}
	}
	return pids
}

// Args is the command line of a process; nil: it has ended.
func Args(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}
