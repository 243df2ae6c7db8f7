//go:build linux

package launcher

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/job"
)

// The test binary also serves as gorun, and as the program of the ranks. Environment variables say
// which of them a process is.
const (
	roleEnv = "WEFT_LAUNCHER_TEST" // "rank" or "gorun"; absent: the process runs the tests
	jobEnv  = "WEFT_LAUNCHER_JOB"  // for gorun: the job.Job that it runs, as JSON
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "rank":
		os.Exit(rankMain(os.Args[1:]))
	case "gorun":
		j := &job.Job{}
		if err := json.Unmarshal([]byte(os.Getenv(jobEnv)), j); err != nil {
			panic(err)
		}
		os.Exit(Run(context.Background(), j, Stdio{os.Stdin, os.Stdout, os.Stderr}).ExitCode)
	}
	if raceFactor > 1 && os.Getenv("GORACE") == "" {
		// Otherwise the race detector makes every rank sleep for a second before it exits.
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	for _, s := range caught {
		// If a signal is ignored, for example HUP under nohup, catch it. Then the processes that
		// this process starts do not ignore it.
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	before := openFiles()
	code := m.Run()
	if code == 0 {
		if err := leaked(before); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// openFiles returns the open descriptors of this process, except those of files in /proc, as keys
// "NUMBER FILE".
func openFiles() map[string]bool {
	files := map[string]bool{}
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "/proc/") {
			files[e.Name()+" "+to] = true
		}
	}
	return files
}

// leaked returns an error if tests have left goroutines, descriptors or child processes behind.
// before is what openFiles returned before the tests.
func leaked(before map[string]bool) error {
	const own = 3 // goroutines that exist without any test, for example this one and that of os/signal
	for i := 0; runtime.NumGoroutine() > own && i < 1000; i++ {
		time.Sleep(time.Millisecond) // goroutines may be ending
	}
	if n := runtime.NumGoroutine(); n > own {
		buf := make([]byte, 1<<16)
		return fmt.Errorf("%d goroutines are left:\n%s", n, buf[:runtime.Stack(buf, true)])
	}
	for f := range openFiles() {
		// The descriptors eventpoll and eventfd belong to the Go runtime's poller.
		if !before[f] && !strings.Contains(f, "anon_inode:[event") {
			return fmt.Errorf("descriptor %s is left open", f)
		}
	}
	if pids := children(); len(pids) > 0 {
		what, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pids[0]))
		return fmt.Errorf("children %v are left: %s", pids, what)
	}
	return nil
}

// exiting reports whether the first thread of a process is in exit(2) or has ended.
func exiting(pid int) bool {
	const pfExiting = 4 // proc_pid_stat(5), flags
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 7 {
		return false
	}
	flags, err := strconv.Atoi(fields[6])
	return err == nil && flags&pfExiting != 0
}

// children returns the child processes of this process, zombies too.
func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, name := range lists {
		text, _ := os.ReadFile(name)
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// rankMain is the main function of the ranks in the tests. args[0] says what the rank does.
// rankMain returns the exit code.
func rankMain(args []string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	rank := os.Getenv("PMI_RANK")
	arg := func(i int) string { return append(args, "", "", "")[i] }
	open := func() *bootstrap.World {
		w, err := bootstrap.Open(ctx)
		if err != nil {
			fmt.Fprintln(os.Stderr, "bootstrap:", err)
			os.Exit(90)
		}
		return w
	}
	if only, err := strconv.Atoi(arg(1)); err == nil && arg(0) != "exit" && arg(0) != "dying" && strconv.Itoa(only) != rank {
		// args[1] names the one rank that does what args[0] says. The others only wait.
		return waitForEnd(false)
	}
	switch arg(0) {
	case "spawn":
		return spawnMain(ctx, open(), arg(1))
	case "spawned":
		return spawnedMain(ctx, open(), args[1:])
	case "exit":
		n, _ := strconv.Atoi(arg(1))
		return n
	case "fail": // args: "fail", rank, exit code
		n, _ := strconv.Atoi(arg(2))
		for i := range 12 {
			fmt.Fprintln(os.Stderr, "line", i)
		}
		return n
	case "panic":
		panic("a rank panics")
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "abort":
		_ = open().KVS.Abort(bootstrap.Abort{Code: 7, Reason: "the disk is full"})
		return 8 // the rank exits although it has called Abort
	case "dying":
		return dying(ctx, open(), arg(1))
	case "early": // rank 0 exits after Init and without Finalize, while the others wait for it in a fence
		w := open()
		if w.Rank != 0 {
			_ = w.KVS.Fence(ctx)
		}
		return 0
	case "leaves": // rank 0 exits without Init, while the others wait for it in a fence
		if rank != "0" {
			_ = open().KVS.Fence(ctx)
		}
		return 0
	case "world":
		return showWorld(ctx, open())
	case "child": // a rank that starts a weft program of its own
		w := open()
		cmd := exec.Command(os.Args[0], "alone")
		out, err := cmd.CombinedOutput()
		fmt.Printf("%s%v\n", out, err)
		_ = w.KVS.Finalize()
		return 0
	case "alone":
		w := open()
		fmt.Printf("child is %d of %d by %s\n", w.Rank, w.Size, w.Launcher)
		return 0
	case "lines":
		for i := range 1000 {
			fmt.Printf("%s %d %s\n", rank, i, strings.Repeat("x", i%200))
		}
		return 0
	case "place":
		text, _ := os.ReadFile("/proc/self/status")
		for line := range strings.Lines(string(text)) {
			if list, ok := strings.CutPrefix(line, "Cpus_allowed_list:"); ok {
				fmt.Printf("%s cpus %s procs %s\n", rank, strings.TrimSpace(list), os.Getenv("GOMAXPROCS"))
			}
		}
		return 0
	case "wait":
		return waitForEnd(false)
	case "deaf": // prints the signals that it gets, and continues even after SIGTERM
		return trap(false)
	case "trap":
		return trap(true)
	case "family":
		// The rank starts three processes: one in its process group, one in a session of its own,
		// and one that starts an orphan.
		for _, script := range []string{"%s", "setsid %s", "(setsid %s &) ; exec sleep 1000"} {
			cmd := exec.Command("sh", "-c", fmt.Sprintf(script, `sh -c "echo up; exec sleep 1000"`))
			// With this the process keeps the pipe to the launcher open, even when the rank has
			// exited.
			cmd.Stderr = os.Stderr
			up, err := cmd.StdoutPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				panic(err)
			}
			if _, err := io.ReadFull(up, make([]byte, 3)); err != nil {
				panic(err)
			}
			fmt.Println("pid", cmd.Process.Pid)
		}
		fmt.Println("pid", os.Getpid())
		if arg(2) == "leave" {
			return 0
		}
		return waitForEnd(true)
	}
	fmt.Fprintln(os.Stderr, "no role", args)
	return 91
}

// waitForEnd prints "ready", unless quiet is set, and blocks until a signal ends the process.
func waitForEnd(quiet bool) int {
	if !quiet {
		fmt.Println("ready")
	}
	select {}
}

// trap prints "ready", and then the signals that the rank gets. If ends is set, the rank exits with
// code 0 after SIGTERM.
func trap(ends bool) int {
	c := make(chan os.Signal, 10)
	signal.Notify(c, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	fmt.Println("ready")
	for s := range c {
		fmt.Println("got", signalName(s.(syscall.Signal)))
		if s == syscall.SIGTERM && ends {
			return 0
		}
	}
	return 1
}

// showWorld publishes a value by PMI, reads that of the next rank, and prints it with what the rank
// knows about the job. It returns the exit code.
func showWorld(ctx context.Context, w *bootstrap.World) int {
	key := func(r int) string { return "k" + strconv.Itoa(r) }
	if err := w.KVS.Put(key(w.Rank), fmt.Sprintf("v=%d", w.Rank)); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := w.KVS.Fence(ctx); err != nil {
		fmt.Println(err)
		return 1
	}
	v, err := w.KVS.Get(key((w.Rank + 1) % w.Size))
	fmt.Printf("rank %d of %d app %d by %s nodes %v got %s %v eager %s\n", w.Rank, w.Size, w.AppNum, w.Launcher, w.HostOf, v, err,
		w.Params.Get("engine.eager_limit"))
	if err := joined(ctx, w); err != nil {
		fmt.Println(err)
	}
	if err := w.KVS.Finalize(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func init() {
	if len(os.Args) > 1 && os.Args[1] == "dying" {
		// This makes main run on the first thread of the process, the thread that the function
		// dying ends.
		runtime.LockOSThread()
	}
}

// dying is what ranks do in TestSecondaryAfterExit. Rank 1 ends its first thread, so that /proc
// shows it as a process that is exiting. When rank 0 sees that, it aborts. At SIGTERM rank 1 exits
// with the exit code code, and rank 2 with 5.
func dying(ctx context.Context, w *bootstrap.World, code string) int {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	if err := w.KVS.Fence(ctx); err != nil {
		return 91
	}
	switch w.Rank {
	case 0:
		for {
			if text, err := os.ReadFile("pid"); err == nil {
				if pid, err := strconv.Atoi(string(text)); err == nil && exiting(pid) {
					break
				}
			}
			if ctx.Err() != nil {
				return 92
			}
			time.Sleep(time.Millisecond)
		}
		_ = w.KVS.Abort(bootstrap.Abort{Code: 1, Reason: "rank 1 is gone"})
		return waitForEnd(false)
	case 1:
		n, _ := strconv.Atoi(code)
		go func() { // ends at SIGTERM or with ctx, by ending the process
			select {
			case <-terminated:
			case <-ctx.Done():
			}
			os.Exit(n)
		}()
		if err := os.WriteFile("pid", strconv.AppendInt(nil, int64(unix.Gettid()), 10), 0o600); err != nil || unix.Gettid() != os.Getpid() {
			return 93
		}
		// This ends the thread, which is the first one, but not the process.
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
	}
	<-terminated
	return 5
}

// testJob returns a job of np ranks on this host. They run this binary, which calls rankMain with
// args.
func testJob(np int, args ...string) *job.Job {
	return &job.Job{
		Name: "test", Grace: time.Second, Stdin: job.StdinNone, Bind: job.BindNone, Slots: 1 << 10,
		Env:  []job.EnvVar{{Name: roleEnv, Value: "rank"}},
		Apps: []job.App{{Program: os.Args[0], Args: args, NP: np}},
	}
}

// runJob runs a job in this process, for at most a minute, and returns its result, stdout and
// stderr.
func runJob(t *testing.T, j *job.Job) (res Result, out, err string) {
	t.Helper()
	var o, e bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	res = Run(ctx, j, Stdio{Out: &o, Err: &e})
	return res, o.String(), e.String()
}

// gorun is a process that runs one job, as the command gorun does.
type gorun struct {
	cmd    *exec.Cmd
	pipe   io.Closer     // the pipe that out reads
	out    *bufio.Reader // gorun's stdout
	stderr syncBuffer
}

// syncBuffer is a buffer that one goroutine may read while another writes to it.
type syncBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// awaitStarted waits until gorun has reported that all ranks have started. The job must have
// Verbose set. Tests that send gorun a signal for the ranks call it first, because a terminating
// signal that comes earlier fails the job.
func (g *gorun) awaitStarted(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(g.stderr.String(), " ranks started after ") }, time.Minute, time.Millisecond)
}

// gorunCommand returns the command of a process that runs the job, as the command gorun does.
func gorunCommand(t *testing.T, j *job.Job) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(j)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"=gorun", jobEnv+"="+string(text))
	return cmd
}

// startGorun starts a process that runs the job, as the command gorun does. The test must call
// wait, or end the process itself.
func startGorun(t *testing.T, j *job.Job) *gorun {
	t.Helper()
	g := &gorun{cmd: gorunCommand(t, j)}
	g.cmd.Stderr = &g.stderr
	pipe, err := g.cmd.StdoutPipe()
	require.NoError(t, err)
	g.pipe, g.out = pipe, bufio.NewReader(pipe)
	require.NoError(t, g.cmd.Start())
	return g
}

// lines reads the next n lines of gorun's stdout, and returns them without newlines.
func (g *gorun) lines(t *testing.T, n int) []string {
	t.Helper()
	var lines []string
	for range n {
		line, err := g.out.ReadString('\n')
		require.NoError(t, err, "after %q; stderr: %s", lines, &g.stderr)
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines
}

// wait reads the rest of gorun's stdout, waits for gorun to end, and returns its exit code. The test
// fails if a signal ended gorun.
func (g *gorun) wait(t *testing.T) int {
	t.Helper()
	_, _ = g.out.WriteTo(&bytes.Buffer{})
	err := g.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode()
	}
	require.NoError(t, err, g.stderr.String())
	return 0
}
