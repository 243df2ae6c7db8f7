package mpi_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/mpi"
	"github.com/weft-hpc/weft/internal/params"
)

// programVar is the environment variable that makes the test binary run one of programs instead of
// the tests.
const programVar = "COMM_TEST_PROGRAM"

var programs = map[string]func(c *comm.Comm) error{
	"good": func(c *comm.Comm) error {
		dir, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return err
		}
		for _, fd := range dir { // a job of one rank opens no socket
			if to, _ := os.Readlink("/proc/self/fd/" + fd.Name()); strings.HasPrefix(to, "socket:") {
				return fmt.Errorf("%s is %s", fd.Name(), to)
			}
		}
		return c.Barrier()
	},
	"ended":  func(c *comm.Comm) error { return c.Finalize() },
	"error":  func(*comm.Comm) error { return errors.New("no such grid") },
	"code":   func(*comm.Comm) error { return fmt.Errorf("save: %w", exit(7)) },
	"code0":  func(*comm.Comm) error { return exit(0) },
	"panic":  func(*comm.Comm) error { panic("out of cheese") },
	"goexit": func(*comm.Comm) error { runtime.Goexit(); return nil },
	"abort":  func(c *comm.Comm) error { c.Abort(77); return nil },
	"abort0": func(c *comm.Comm) error { c.Abort(0); return nil },
	"refused": func(c *comm.Comm) error {
		comm.Isend(c, []int{1}, 77, 0)
		return nil
	},
	"several": func(c *comm.Comm) error {
		comm.Isend(c, []int{1}, 77, 0)
		comm.Irecv(c, []*int{nil}, 0, 4)
		comm.Iallreduce(nil, []int{1}, []int{1}, comm.Sum)
		comm.Isend(c, make([]int, 3), 0, 5)
		comm.Irecv(c, make([]int, 2), 0, 5) // the buffer is shorter than the message
		return nil
	},
	"both": func(c *comm.Comm) error {
		comm.Isend(c, []int{1}, 77, 0)
		return first(comm.Send(c, []int{1}, 0, 5), c.Finalize())
	},
	"matched": func(c *comm.Comm) error {
		if err := comm.Send(c, make([]int, 3), 0, 5); err != nil {
			return err
		}
		m, _, err := c.Mprobe(0, 5)
		comm.Imrecv(m, make([]int, 2)) // the buffer is shorter than the message
		return err
	},
	// This program starts more requests than the free entries that the engine keeps in its table of
	// requests (slotsKept).
	"burst": func(c *comm.Comm) error {
		rs := make([]comm.Request, 6000)
		for i := range rs {
			rs[i] = comm.Irecv(c, make([]int, 1), 0, i)
		}
		for i := range rs {
			if err := comm.Send(c, []int{i}, 0, i); err != nil {
				return err
			}
		}
		return comm.WaitAll(rs)
	},
	"besides": func(c *comm.Comm) error {
		comm.Isend(c, []int{1}, 77, 0)
		return errors.New("no such grid")
	},
	"left": func(c *comm.Comm) error {
		comm.Irecv(c, []int{1}, 0, 3)
		comm.Isend(c, make([]int, 1<<20), 0, 4)
		return comm.Send(c, []int{1}, 0, 5)
	},
	"freed": func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		comm.Irecv(c, []int{1}, 0, 3)
		return first(comm.Send(c, []int{1}, 0, 5), c.Free())
	},
	"rounds": func(world *comm.Comm) error {
		for range 300 {
			c, err := world.Dup()
			if err != nil {
				return err
			}
			comm.Irecv(c, []int{1}, 0, 3)
			comm.Isend(c, []int{1}, 0, 5)
			if err := c.Free(); err != nil {
				return err
			}
		}
		if n := len(mpi.Pending((*mpi.Comm)(world))); n > mpi.MinSweep {
			return fmt.Errorf("the checker has %d operations", n)
		}
		return nil
	},
	"tidy": func(c *comm.Comm) error {
		comm.Isend(c, []int{1}, 0, 5)
		_, err := comm.Recv(c, []int{1}, 0, 5)
		refused := comm.Isend(c, []int{1}, 77, 0)
		again := refused
		r := comm.Irecv(c, []int{1}, 0, 3)
		if err := r.Cancel(); err != nil {
			return err
		}
		late := comm.Irecv(ended(c), []int{1}, 0, 3)
		_, lateErr := late.Wait()
		return first(err, wantErr("Isend", wait(again), comm.ErrRank, ""), wantErr("Irecv", lateErr, context.Canceled, ""))
	},
}

// exit is an error with an exit code.
type exit int

func (e exit) Error() string { return fmt.Sprintf("exit %d", int(e)) }
func (e exit) ExitCode() int { return int(e) }

// contextPrograms run by MainContext.
var contextPrograms = map[string]func(ctx context.Context, c *comm.Comm) error{
	// This program ends in good order after SIGTERM.
	"signal": func(ctx context.Context, c *comm.Comm) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		_, err := comm.Recv(c, []int{1}, 0, 0)
		if err := wantErr("Recv", err, context.Canceled, "Recv (world, rank 0, tag 0)"); err != nil {
			return err
		}
		if ctx.Err() == nil || c.Context() != ctx {
			return errors.New("the context of c has not ended")
		}
		return c.WithContext(context.WithoutCancel(ctx)).Barrier()
	},
	"signal error": func(_ context.Context, c *comm.Comm) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		_, err := comm.Recv(c, []int{1}, 0, 0)
		return err
	},
	// MainContext gives the signal back soon after ctx has ended. There are pauses between the signals,
	// because a process dies from SIGSEGV if SIGTERM arrives again and again while Go's runtime gives it
	// back (3 of 100 programs that only use os/signal, go1.26).
	"two signals": func(context.Context, *comm.Comm) error {
		for ; ; time.Sleep(5 * time.Millisecond) {
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				return err
			}
		}
	},
}

// TestMainContext: SIGTERM ends the context.
func TestMainContext(t *testing.T) {
	for name, want := range map[string]string{
		"signal":       "",
		"signal error": "rank 0: comm: Recv (world, rank 0, tag 0): context canceled\n",
		"two signals":  "",
	} {
		t.Run(name, func(t *testing.T) {
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self)
			cmd.Env = append(os.Environ(), programVar+"="+name)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err = cmd.Run()
			require.Equal(t, want, stderr.String())
			switch {
			case name == "two signals":
				end, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
				require.True(t, ok && end.Signaled() && end.Signal() == syscall.SIGTERM, err)
			case want == "":
				require.NoError(t, err)
			default:
				require.Equal(t, 1, cmd.ProcessState.ExitCode())
			}
		})
	}
}

// beforeTests are called before the tests, but not in ranks that run one of programs. Files with
// build tags add to it.
var beforeTests []func()

// TestMain runs one of programs, or the tests. If goroutines are left after the tests, it fails
// them.
func TestMain(m *testing.M) {
	if p, ok := programs[os.Getenv(programVar)]; ok {
		comm.Main(p)
		os.Exit(0)
	}
	if p, ok := contextPrograms[os.Getenv(programVar)]; ok {
		comm.MainContext(context.Background(), p)
		os.Exit(0)
	}
	for _, f := range beforeTests {
		f()
	}
	// The goroutine of os/signal never ends. A fuzz test starts it, so start it before the count.
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGUSR2)
	signal.Stop(c)
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "8") // parallel tests mostly wait
	}
	before := runtime.NumGoroutine()
	code := m.Run()
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); code == 0 && n > before {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "%d goroutines are left, from %d:\n%s\n", n, before, buf[:runtime.Stack(buf, true)])
		code = 1
	}
	os.Exit(code)
}

// inheritNothing makes processes that this one starts not inherit its descriptors. libfabric opens
// sockets without FD_CLOEXEC, and some are open as long as the process.
func inheritNothing(t *testing.T) {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range dir {
		if n, err := strconv.Atoi(fd.Name()); err == nil && n > 2 {
			syscall.CloseOnExec(n)
		}
	}
}

func TestPrograms(t *testing.T) {
	inheritNothing(t)
	for name, want := range map[string]struct {
		code   int
		stderr []string
	}{
		"good":   {0, nil},
		"ended":  {0, nil},
		"error":  {1, []string{"rank 0: no such grid"}},
		"code":   {7, []string{"rank 0: save: exit 7"}},
		"code0":  {1, []string{"rank 0: exit 0"}},
		"panic":  {2, []string{"rank 0: panic: out of cheese", "main_test.go"}},
		"goexit": {1, []string{"rank 0: the program ended its main goroutine"}},
		"abort":  {77, nil},
		"abort0": {1, nil},
		"tidy":   {0, nil},
		"burst":  {0, nil},
		"refused": {1, []string{"rank 0: 1 request failed, and the program did not wait for it: " +
			"comm: Isend (world, rank 77, tag 0): rank out of range: the communicator has 1 (WEFT_CHECK=1 names the line that started it)"}},
		"refused check": {1, []string{"the communicator has 1, started at main_test.go:"}},
		"several": {1, []string{"rank 0: 4 requests failed, and the program did not wait for them: " +
			"comm: Isend (world, rank 77, tag 0): rank out of range: the communicator has 1; and 3 more (WEFT_CHECK=1 lists them, with the lines that started them)"}},
		"several check": {1, []string{
			"rank 0: 4 requests failed", "the communicator has 1, started at main_test.go:", "; comm: Irecv (world, rank 0, tag 4): type cannot be sent",
			"; comm: Iallreduce: cannot be used any more", "; comm: Irecv (world, rank 0, tag 5): message longer than the receive buffer: 24 bytes into 16, started at main_test.go:",
		}},
		"matched": {1, []string{"the program did not wait for it: comm: Imrecv (world, rank 0, tag 5): message longer than the receive buffer"}},
		"both":    {1, []string{"rank 0: comm: Finalize (world): 1 request failed, and the program did not wait for it: comm: Isend"}},
		"besides": {1, []string{"rank 0: no such grid; 1 request failed, and the program did not wait for it: comm: Isend"}},
		"left":    {0, []string{"weft: rank 0: 2 requests did not complete, and 2 messages were not received (WEFT_CHECK=1 lists them)\n"}},
		"left check": {0, []string{
			"weft: rank 0: 2 requests did not complete: Irecv (world, rank 0, tag 3), started at main_test.go:", "; Isend (world, rank 0, tag 4), started at main_test.go:",
			", and 2 messages were not received: from rank 0 of the world, tag 4, 8388608 bytes (world); from rank 0 of the world, tag 5, 8 bytes (world)\n",
		}},
		"freed":       {0, []string{"weft: rank 0: 1 request did not complete, and 1 message was not received (WEFT_CHECK=1 lists them)\n"}},
		"freed check": {0, []string{"Irecv (comm 0.1, rank 0, tag 3), started at", "from rank 0 of the world, tag 5, 8 bytes (comm 0.1)"}},
		"rounds check": {0, []string{
			"weft: rank 0: 300 requests did not complete: Irecv (comm 0.1, rank 0, tag 3), started at main_test.go:", "; and 292 more, and 300 messages were not received: ",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			self, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), self)
			program, check, _ := strings.Cut(name, " ")
			cmd.Env = append(os.Environ(), programVar+"="+program)
			if check != "" {
				cmd.Env = append(cmd.Env, "WEFT_CHECK=1")
			}
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			err = cmd.Run()
			code := 0
			if exit := new(exec.ExitError); errors.As(err, &exit) {
				code = exit.ExitCode()
			} else {
				require.NoError(t, err)
			}
			require.Equal(t, want.code, code, stderr.String())
			for _, text := range want.stderr {
				require.Contains(t, stderr.String(), text)
			}
			if want.stderr == nil {
				require.Empty(t, stderr.String())
			}
			if want.code != 0 { // Finalize writes its line only if it returns no error
				require.NotContains(t, stderr.String(), "not received")
			}
		})
	}
}

// TestConsequence: isConsequence returns true for errors that follow from the end of another rank,
// or from Revoke, and false if such an error is joined with one of another cause.
func TestConsequence(t *testing.T) {
	disk := errors.New("the disk is full")
	left := fmt.Errorf("%w: %w", comm.ErrPort, bootstrap.Gone("rank 1 has gone"))
	require.True(t, mpi.IsConsequence(left))
	require.False(t, mpi.IsConsequence(errors.Join(left, disk)))
	require.False(t, mpi.IsConsequence(fmt.Errorf("%w: %w", comm.ErrPort, disk)))
	require.False(t, mpi.IsConsequence(comm.ErrPort))
	ranks(t, 3, func(world *comm.Comm) error {
		c, err := world.Dup()
		if err != nil {
			return err
		}
		switch c.Rank() {
		case 1:
			commtest.Kill(c)
			return nil
		case 2:
			_, err := comm.Recv(world, make([]int, 1), 0, 1)
			commtest.Kill(c)
			return err
		}
		calls := map[string]func() error{
			"Recv":    func() error { _, err := comm.Recv(c, make([]int, 1), 1, 0); return err },
			"Send":    func() error { return comm.Send(c, make([]int, 1<<18), 1, 0) },
			"Barrier": func() error { return c.Barrier() },
			"Revoke":  func() error { return first(c.Revoke(), comm.Send(c, make([]int, 1), 2, 0)) },
		}
		for _, name := range []string{"Recv", "Send", "Barrier", "Revoke"} {
			err := calls[name]()
			if !isErr(err, comm.ErrProcFailed) && !isErr(err, comm.ErrRevoked) {
				return fmt.Errorf("%s: %w", name, err)
			}
			if !mpi.IsConsequence(err) {
				return fmt.Errorf("%s: no consequence: %w", name, err)
			}
			for _, both := range []error{errors.Join(err, disk), &comm.Error{Op: name, Err: errors.Join(err, disk)}, fmt.Errorf("%w: %w", err, disk)} {
				if mpi.IsConsequence(both) {
					return fmt.Errorf("%s: a consequence: %w", name, both)
				}
			}
		}
		err = comm.Send(world, []int{1}, 2, 1)
		commtest.Kill(c)
		return err
	})
}

// lostKVS is the key-value space of a launcher that has ended, so that Abort returns an error.
type lostKVS struct{ bootstrap.KVS }

func (lostKVS) Abort(bootstrap.Abort) error { return errors.New("the launcher has ended") }
func (lostKVS) Finalize() error             { return nil }

// goodKVS is the key-value space of a launcher that gets the reason of an abort.
type goodKVS struct{ bootstrap.KVS }

func (goodKVS) Abort(bootstrap.Abort) error { return nil }
func (goodKVS) Finalize() error             { return nil }

// TestWhoWritesTheReason: under gorun, guard does not write an error that follows from the failure
// of another rank, because gorun writes the failure. It writes the error if the error holds another
// cause, or if gorun does not get the reason.
func TestWhoWritesTheReason(t *testing.T) {
	failed := &comm.Error{Op: "Recv", Comm: "world", Peer: 1, Tag: 0, Err: comm.ErrProcFailed}
	revoked := &comm.Error{Op: "Barrier", Comm: "world", Peer: comm.Undefined, Tag: comm.Undefined, Err: comm.ErrRevoked}
	disk := errors.New("the disk is full")
	for name, x := range map[string]struct {
		kvs    bootstrap.KVS
		err    error
		writes bool
	}{
		"failed":                {goodKVS{}, failed, false},
		"wrapped":               {goodKVS{}, fmt.Errorf("step 3: %w", failed), false},
		"both follow":           {goodKVS{}, errors.Join(failed, revoked), false},
		"own":                   {goodKVS{}, disk, true},
		"own and failed":        {goodKVS{}, errors.Join(failed, disk), true},
		"failed for own":        {goodKVS{}, fmt.Errorf("%w: %w", disk, failed), true},
		"launcher ended":        {lostKVS{}, failed, true},
		"own, lost":             {lostKVS{}, disk, true},
		"joined wrapped":        {goodKVS{}, fmt.Errorf("step 3: %w", errors.Join(disk, failed)), true},
		"two in a call":         {goodKVS{}, &comm.Error{Op: "Free", Comm: "world", Err: errors.Join(failed, comm.ErrMismatch)}, true},
		"both halves":           {goodKVS{}, &comm.Error{Op: "Sendrecv", Comm: "world", Err: fmt.Errorf("%w; the receive failed too: %w", comm.ErrProcFailed, comm.ErrTruncate)}, true},
		"both follow in a call": {goodKVS{}, &comm.Error{Op: "Free", Comm: "world", Err: errors.Join(comm.ErrProcFailed, revoked)}, false},
		"differing calls":       {goodKVS{}, &comm.Error{Op: "Barrier", Err: fmt.Errorf("%w: %w", comm.ErrRevoked, comm.ErrMismatch)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			aborted := 0
			c, err := mpi.Init(t.Context(), mpi.Setup{
				World: &bootstrap.World{Size: 1, HostOf: []int{0}, Launcher: "gorun", Params: &params.Set{}, KVS: x.kvs},
				Exit:  func(int, string) { aborted++ },
			})
			require.NoError(t, err)
			r, w, err := os.Pipe()
			require.NoError(t, err)
			stderr := os.Stderr
			os.Stderr = w
			mpi.Guard(c, func(*mpi.Comm) error { return x.err })
			os.Stderr = stderr
			require.NoError(t, w.Close())
			wrote, err := io.ReadAll(r)
			require.NoError(t, err)
			require.NoError(t, r.Close())
			require.Equal(t, 1, aborted)
			want := ""
			if x.writes {
				want = "rank 0: " + x.err.Error() + "\n"
			}
			require.Equal(t, want, string(wrote))
			require.NoError(t, c.Finalize())
		})
	}
}
