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

// markEnv is an environment variable that Start sets for gorun. The ranks and all processes that they
// start get it too, but agents on other hosts do not.
const markEnv = "CLUSTER_TEST_RUN"

// mark is that variable with the value that this test process gives it.
var mark = fmt.Sprintf("%s=%d", markEnv, os.Getpid())

// limit bounds the time of one run of gorun, which usually takes seconds.
const limit = time.Minute

// Command describes a run of gorun.
type Command struct {
	Args   []string
	Exe    string        // path of the program; "": the gorun that Main has built
	Env    []string      // environment variables in addition to CleanEnv
	Host   *testbed.Host // where gorun runs; nil: on this machine
	Stdin  io.Reader     // nil: stdin is empty
	Stdout io.Writer     // nil: Result.Stdout gets the text
	Stderr io.Writer     // nil: Result.Stderr gets the text
}

// Result is the result of a gorun that has ended.
type Result struct {
	Code   int // exit code as a shell reports it: 128+N after signal N
	Stdout string
	Stderr string
	Report *Report // nil: gorun has not written one
}

// Gorun runs gorun with these arguments and waits until it has ended.
func Gorun(t testing.TB, args ...string) Result {
	t.Helper()
	return Command{Args: args}.Run(t)
}

// Run runs gorun and waits until it has ended.
func (c Command) Run(t testing.TB) Result {
	t.Helper()
	return c.Start(t).Wait()
}

// Process is a gorun that has been started.
type Process struct {
	t        testing.TB
	cmd      *exec.Cmd
	line     string // command line, for errors
	report   string // path of the report
	stdout   Text
	stderr   Text
	ended    chan struct{} // closed when gorun has ended
	err      error         // of cmd.Wait; must not be read before ended is closed
	timedOut bool          // gorun was killed after limit
}

// Start starts gorun. If gorun still runs at the end of the test, the test's cleanup kills it. If
// gorun was not killed, the cleanup checks that it has left nothing in its TMPDIR.
func (c Command) Start(t testing.TB) *Process {
	t.Helper()
	p := &Process{t: t, line: "gorun " + strings.Join(c.Args, " "), ended: make(chan struct{})}
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
	}
	p.cmd.Env = append(CleanEnv(), mark, "TMPDIR="+work, "WEFT_JOB_REPORT="+p.report)
	p.cmd.Env = append(p.cmd.Env, c.Env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	if c.Stdout == nil {
		p.cmd.Stdout = &p.stdout
	}
	if c.Stderr == nil {
		p.cmd.Stderr = &p.stderr
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Cancel = func() error { p.timedOut = true; return p.cmd.Process.Kill() }
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		cancel()
		t.Fatalf("%s: %v", p.line, err)
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
			t.Errorf("%s left %v in its TMPDIR", p.line, left)
		}
	})
	return p
}

// CleanEnv returns this process's environment without the variables that launchers set, so that gorun does
// not take itself for a part of another job.
func CleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		remove := false
		for _, prefix := range []string{"WEFT_", "SLURM_", "PMI", "OMPI_", "MV2_", "FLUX_", "HYDRA_", "PBS_", "LSB_", "PE_HOSTFILE=", "GOMAXPROCS=", "TMPDIR="} {
			remove = remove || strings.HasPrefix(kv, prefix)
		}
		if !remove {
			env = append(env, kv)
		}
	}
	return env
}

func (p *Process) killed() bool {
	ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stdout returns what gorun has written to stdout so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what gorun has written to stderr so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// Signal sends gorun a signal.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("%s: %v", p.line, err)
	}
}

// Running reports whether gorun still runs.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Wait waits until gorun has ended. If gorun was killed because it ran too long, the test fails.
func (p *Process) Wait() Result {
	p.t.Helper()
	<-p.ended
	if p.timedOut {
		p.t.Fatalf("%s: still running after %v\nstdout: %s\nstderr: %s", p.line, limit, cut(p.stdout.String()), cut(p.stderr.String()))
	}
	var exit *exec.ExitError
	if p.err != nil && !errors.As(p.err, &exit) {
		p.t.Fatalf("%s: %v", p.line, p.err)
	}
	r := Result{Code: p.cmd.ProcessState.ExitCode(), Stdout: p.stdout.String(), Stderr: p.stderr.String()}
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		r.Code = 128 + int(ws.Signal())
	}
	if _, err := os.Stat(p.report); err == nil {
		r.Report = ReadReport(p.t, p.report)
	}
	return r
}

// AwaitStdout waits until a pattern matches at least n times in what gorun has written to stdout,
// which is the output of the ranks. If gorun ends first, or after half a minute, the test fails.
// Command.Stdout must be nil.
func (p *Process) AwaitStdout(n int, pattern string) {
	p.t.Helper()
	p.await(&p.stdout, n, pattern)
}

// AwaitStderr is AwaitStdout for stderr. Command.Stderr must be nil.
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
			p.t.Fatalf("%s: ended before it wrote %s\nstdout: %s\nstderr: %s", p.line, pattern, cut(p.stdout.String()), cut(p.stderr.String()))
		}
		if found < n {
			return fmt.Errorf("%s: %d of %d matches of %s\nstdout: %s\nstderr: %s", p.line, found, n, pattern, cut(p.stdout.String()), cut(p.stderr.String()))
		}
		return nil
	})
}

// cut returns s. If s is long, cut leaves out its middle.
func cut(s string) string {
	const most = 4000
	if len(s) > most {
		return s[:most/2] + "\n…\n" + s[len(s)-most/2:]
	}
	return s
}

// Eventually calls f until f returns nil. After half a minute the test fails with the last error of f.
func Eventually(t testing.TB, f func() error) {
	t.Helper()
	if err := within(30*time.Second, f); err != nil {
		t.Fatal(err)
	}
}

// within calls f until f returns nil. After the time d it returns the last error of f.
func within(d time.Duration, f func() error) error {
	// pause grows, because an f that reads all of /proc slows down the processes that f waits for.
	pause := time.Millisecond
	for end := time.Now().Add(d); ; time.Sleep(pause) {
		err := f()
		if err == nil || time.Now().After(end) {
			return err
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
}

// Text collects what a process writes. Any goroutine may call String at any time.
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

// Children returns the ids of the child processes of a process.
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

// Args returns the command line of a process. If the process has ended, Args returns nil.
func Args(pid int) []string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}
