//go:build linux

package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// joined returns an error unless the memory file works that the ranks share or, if the rank has no
// such file, listens returns nil. All ranks must call it.
func joined(ctx context.Context, w *bootstrap.World) error {
	if w.Memory == nil {
		return listens(w)
	}
	if w.Listener != nil {
		return errors.New("a listener for no transport")
	}
	if _, err := w.Memory.WriteAt([]byte{byte(w.Rank + 1)}, int64(w.Rank)); err != nil {
		return err
	}
	if err := w.KVS.Fence(ctx); err != nil {
		return err
	}
	all := make([]byte, w.Size)
	if _, err := w.Memory.ReadAt(all, 0); err != nil {
		return err
	}
	for i, b := range all {
		if int(b) != i+1 {
			return fmt.Errorf("the memory of the ranks has %d", all)
		}
	}
	return w.Memory.Close()
}

// listens returns an error unless the rank has a listener with the address that other ranks find in
// the job card or compute from it.
func listens(w *bootstrap.World) error {
	if w.Listener == nil {
		return errNoListener
	}
	l, err := net.FileListener(w.Listener)
	if err != nil {
		return err
	}
	// Shut down the listener, as the transport tcp does, and keep the descriptor open: the rank's
	// next program inherits it and listens again.
	defer l.Close()
	defer func() { _ = unix.Shutdown(int(w.Listener.Fd()), unix.SHUT_RD) }()
	want := fmt.Sprintf("%s:%d", w.Hosts[0], w.BasePort+w.Rank)
	if len(w.Addrs) > 0 {
		want = w.Addrs[w.Rank]
	}
	if l.Addr().String() != want {
		return fmt.Errorf("listens on %s, not %s", l.Addr(), want)
	}
	return nil
}

var errNoListener = errors.New("no listener")

func sortedLines(text string) []string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	sort.Strings(lines)
	return lines
}

func TestWorld(t *testing.T) {
	j := testJob(2, "world")
	j.Apps = append(j.Apps, job.App{Program: os.Args[0], Args: []string{"world"}, NP: 1})
	for _, use := range []string{"shm", "shm,tcp", "tcp", "tcp,shm"} {
		j.Params = &params.Set{}
		require.NoError(t, j.Params.Set("transport.use", use, params.FromFlag))
		require.NoError(t, j.Params.Set("engine.eager_limit", "4k", params.FromFlag))
		res, out, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, stderr)
		require.Nil(t, res.Failure)
		require.Empty(t, stderr)
		require.Equal(t, []string{
			"rank 0 of 3 app 0 by gorun nodes [0 0 0] got v=1 <nil> eager {4k flag}",
			"rank 1 of 3 app 0 by gorun nodes [0 0 0] got v=2 <nil> eager {4k flag}",
			"rank 2 of 3 app 1 by gorun nodes [0 0 0] got v=0 <nil> eager {4k flag}",
		}, sortedLines(out))
	}
}

func TestNamedInterfaceLeavesAddressesToTheRanks(t *testing.T) {
	for _, c := range []struct {
		key, use string
		listener bool
	}{
		{"transport.tcp.interface", "tcp", false},
		{"transport.libfabric.interface", "libfabric", false},
		{"transport.libfabric.interface", "tcp", true},
	} {
		j := testJob(1, "world")
		j.Params = &params.Set{}
		require.NoError(t, j.Params.Set(c.key, "lo", params.FromFile))
		require.NoError(t, j.Params.Set("transport.use", c.use, params.FromFile))
		res, out, _ := runJob(t, j)
		require.Zero(t, res.ExitCode)
		require.Equal(t, !c.listener, strings.Contains(out, "no listener\n"), out)
	}
}

func TestChildOfARankIsAWorldOfOne(t *testing.T) {
	res, out, stderr := runJob(t, testJob(2, "child"))
	require.Zero(t, res.ExitCode, stderr)
	require.Equal(t, 2, strings.Count(out, "child is 0 of 1 by none\n"), out)
	require.Equal(t, 2, strings.Count(out, "weft: this is a world of one, although PMI_SIZE=2 is set"), out)
}

func TestShellBetweenLauncherAndRank(t *testing.T) {
	// alone is the number of programs that have neither a memory file nor a listener. With shm,
	// that is the second program of each of the two ranks, because only a rank's first program uses
	// the memory file.
	for use, alone := range map[string]int{"tcp": 0, "shm": 2} {
		j := testJob(2)
		j.Params = &params.Set{}
		require.NoError(t, j.Params.Set("transport.use", use, params.FromFlag))
		j.Apps[0].Program = "sh"
		// Each rank runs the test binary twice.
		j.Apps[0].Args = []string{"-c", os.Args[0] + " world && " + os.Args[0] + " world"}
		res, out, stderr := runJob(t, j)
		require.Zero(t, res.ExitCode, stderr)
		require.Equal(t, 4, strings.Count(out, "of 2 app 0 by gorun"), out)
		require.Equal(t, alone, strings.Count(out, errNoListener.Error()+"\n"), out)
		require.Equal(t, 4+alone, strings.Count(out, "\n"), out)
	}
}

func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, []byte(text), mode))
		return p
	}
	self := os.Args[0]
	for _, c := range []struct {
		name    string
		program string
		args    []string
		code    int
		says    string
	}{
		{"well", self, []string{"exit", "0"}, 0, ""},
		{"code", self, []string{"exit", "3"}, 3, "exited with code 3"},
		{"one fails", self, []string{"fail", "1", "5"}, 5, "rank 1 exited with code 5"},
		{"panic", self, []string{"panic", "2"}, 2, "a rank panics"},
		{"killed", self, []string{"kill", "1"}, 137, "rank 1 was killed by signal 9 (SIGKILL)"},
		{"abort", self, []string{"abort", "1"}, 7, "rank 1 failed: the disk is full (exit code 7)"},
		{"early", self, []string{"early"}, 1, "rank 0 exited without Finalize"},
		{"leaves", self, []string{"leaves"}, 1, "rank 0 ended without Init, which other ranks have called"},
		{"not PMI", "sh", []string{"-c", "echo cmd=abort >&3; sleep 100"}, 1, "called Abort"},
		{"nonsense", "sh", []string{"-c", "echo nonsense >&3; sleep 100"}, 1, "does not speak PMI-1"},
		{"no program", "", nil, 2, "no program"},
		{"no file", "./none", nil, 127, "no such file"},
		{"no import path", "no/such/program", nil, 127, "no such file"},
		{"no command", "weft-no-such-command", nil, 127, "command not found"},
		{"not executable", write("data", "x", 0o644), nil, 126, "permission denied"},
		{"no format", write("noformat", "\x00\x01\x02", 0o755), nil, 126, "exec format error"},
		{"no interpreter", write("script", "#!/no/interpreter\n", 0o755), nil, 127, "interpreter"},
		{"directory", dir, nil, 126, "without Go files"},
		{"script", write("good", "#!/bin/sh\nexit 9\n", 0o755), nil, 9, "exited with code 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := testJob(4, c.args...)
			j.Apps[0].Program = c.program
			begun := time.Now()
			res, _, stderr := runJob(t, j)
			require.Equal(t, c.code, res.ExitCode, stderr)
			require.Contains(t, stderr, c.says)
			require.Equal(t, c.code != 0, res.Failure != nil)
			if raceFactor == 1 {
				require.Less(t, time.Since(begun), 10*time.Second)
			}
		})
	}
}

// TestSecondaryAfterExit: rank 1 is already exiting when rank 0 notices that and aborts. Rank 2
// exits with code 5 because the job ends. gorun must name rank 1 as the failed rank, even if the
// exit code of rank 1 is 0, because rank 1 has not called Finalize.
func TestSecondaryAfterExit(t *testing.T) {
	for code, want := range map[string]string{
		"7": "rank 1 exited with code 7", "0": "rank 1 exited without Finalize",
	} {
		j := testJob(3, "dying", code)
		j.Apps[0].Wdir = t.TempDir()
		res, _, stderr := runJob(t, j)
		require.Contains(t, stderr, "gorun: "+want)
		require.Equal(t, 1, res.Failure.Rank)
		require.Equal(t, max(res.Failure.ExitCode, proto.ExitFailed), res.ExitCode)
	}
}

func TestSummary(t *testing.T) {
	for _, files := range []bool{false, true} {
		j := testJob(3, "fail", "1", "5")
		if files {
			j.OutputDir = t.TempDir()
		}
		res, _, stderr := runJob(t, j)
		f := res.Failure
		require.NotNil(t, f)
		require.Equal(t, []any{1, 5, os.Args[0], hostname()}, []any{f.Rank, f.ExitCode, f.Program, f.Host})
		require.Positive(t, f.PID)
		require.Len(t, f.Stderr, 10)
		require.Equal(t, []string{"line 2", "line 11"}, []string{f.Stderr[0], f.Stderr[9]})
		_, summary, _ := strings.Cut(stderr, "gorun: ")
		want := fmt.Sprintf("rank 1 exited with code 5: %s, pid %d on %s; the other 2 ranks were ended\n", f.Program, f.PID, f.Host)
		// Without files, the rank's lines are on gorun's stderr already, so gorun does not repeat
		// them.
		if files {
			want += fmt.Sprintf("gorun: the last lines that rank 1 wrote to stderr:\ngorun:   %s\n", strings.Join(f.Stderr, "\ngorun:   "))
		}
		require.Equal(t, want, summary)
		require.ErrorContains(t, f, "rank 1 exited with code 5")
	}
}

func TestRanksThatDoNotEndAreKilled(t *testing.T) {
	j := testJob(2)
	j.Grace = 50 * time.Millisecond
	j.Apps[0].Program = "sh"
	j.Apps[0].Args = []string{"-c", `trap "" TERM; [ $PMI_RANK = 0 ] && exit 4; while :; do sleep 1; done`}
	begun := time.Now()
	res, _, _ := runJob(t, j)
	require.Equal(t, 4, res.ExitCode)
	require.Less(t, time.Since(begun), 30*time.Second, "rank 1 ran until the test's context ended the job")
}

func TestStoppedRanksEnd(t *testing.T) {
	j := testJob(2)
	j.Grace = time.Minute
	j.Apps[0].Program = "sh"
	j.Apps[0].Args = []string{"-c", `[ $PMI_RANK = 0 ] && kill -STOP $$; exit 4`}
	res, _, _ := runJob(t, j)
	require.Equal(t, 4, res.ExitCode)
}

func TestTimeout(t *testing.T) {
	j := testJob(2, "wait")
	j.Timeout = 100 * time.Millisecond
	res, _, stderr := runJob(t, j)
	require.Equal(t, 124, res.ExitCode)
	// At the timeout the ranks may not run yet. Then gorun prints only the last line.
	require.Regexp(t, "^(gorun: after 100ms, its timeout, the job does this:\n"+
		`(gorun:   .* not in comm: .*\n)+)?gorun: the job ran longer than its timeout of 100ms(, while .*)?\n$`, stderr)
	require.Equal(t, -1, res.Failure.Rank)
}

func TestCancel(t *testing.T) {
	for _, when := range []string{"before", "during"} {
		ctx, cancel := context.WithCancel(t.Context())
		if when == "before" {
			cancel()
		}
		w := writerFunc(func(p []byte) (int, error) { // called when the ranks print that they are ready
			cancel()
			return len(p), nil
		})
		res := Run(ctx, testJob(2, "wait"), Stdio{Out: w})
		require.Equal(t, 1, res.ExitCode, when)
		cancel()
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestInvalidJobs(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*job.Job)
		code  int
	}{
		"no ranks":  {func(j *job.Job) { j.Apps = nil }, 2},
		"zero":      {func(j *job.Job) { j.Apps = append(j.Apps, job.App{Program: "true"}) }, 2},
		"directory": {func(j *job.Job) { j.Apps[0].Wdir = "/no/such/directory" }, 1},
		"slots":     {func(j *job.Job) { j.Slots, j.StrictSlot = 1, true }, 2},
		"output":    {func(j *job.Job) { j.OutputDir = "/proc/none" }, 1},
	} {
		j := testJob(2, "exit", "0")
		c.spoil(j)
		res, _, stderr := runJob(t, j)
		require.Equal(t, c.code, res.ExitCode, name)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.True(t, strings.HasPrefix(stderr, "gorun: "), stderr)
	}
	j := testJob(2, "exit", "0")
	j.Slots = 1
	res, _, stderr := runJob(t, j)
	require.Zero(t, res.ExitCode)
	require.Equal(t, "gorun: warning: 2 ranks share the 1 slot of this machine\n", stderr)
}

func TestTooFewFiles(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) }()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	most := 256 + len(open) // leaves 256 descriptors besides those that this process has open
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(most), Max: limit.Max}))
	ranks := most / 5
	res, out, stderr := runJob(t, testJob(ranks, "exit", "0"))
	require.Equal(t, proto.ExitFailed, res.ExitCode)
	require.Empty(t, out)
	require.Equal(t, fmt.Sprintf("gorun: %d ranks need %d open files here, and %d are allowed: raise the limit (ulimit -n)\n", ranks, 5*ranks+24, most), stderr)
	res, _, stderr = runJob(t, testJob(46, "exit", "0"))
	require.Zero(t, res.ExitCode, stderr)
}

func TestEnvironment(t *testing.T) {
	t.Setenv("WEFT_T_INHERITED", "i")
	t.Setenv("WEFT_T_CHANGED", "old")
	t.Setenv("PMI_SPAWNED", "outer")
	t.Setenv("OMPI_COMM_WORLD_RANK", "7")
	j := testJob(1)
	dir := t.TempDir()
	j.Env = []job.EnvVar{{Name: "WEFT_T_CHANGED", Value: "new"}, {Name: "WEFT_T_APP", Value: "job"}, {Name: "PMI_RANK", Value: "9"}}
	j.Apps[0] = job.App{Program: "sh", Args: []string{"-c", "env; echo here=$(pwd)"}, NP: 1, Wdir: dir,
		Env: []job.EnvVar{{Name: "WEFT_T_APP", Value: "a=b c"}}}
	_, out, _ := runJob(t, j)
	lines := strings.Split(out, "\n")
	for _, want := range []string{"WEFT_T_INHERITED=i", "WEFT_T_CHANGED=new", "WEFT_T_APP=a=b c", "PMI_RANK=0", "PMI_SIZE=1", "GOMAXPROCS=2",
		"MPI_LOCALNRANKS=1", "PWD=" + dir, "here=" + dir} {
		if strings.HasPrefix(want, "GOMAXPROCS") && len(place.Allowed()) > 2 {
			continue
		}
		require.Contains(t, lines, want)
	}
	require.NotContains(t, out, "PMI_SPAWNED")
	require.NotContains(t, out, "OMPI_COMM")
}

func TestSecretIsNotInArgvOrEnvironment(t *testing.T) {
	j := testJob(1)
	j.Apps[0] = job.App{Program: "sh", Args: []string{"-c", "cat /proc/$$/environ /proc/$$/cmdline; cat /proc/$$/fd/4"}, NP: 1}
	_, out, _ := runJob(t, j)
	public, card, found := strings.Cut(out, "weftjob1")
	require.True(t, found)
	_, secret, found := strings.Cut(card, `"secret":"`)
	require.True(t, found, card)
	secret, _, _ = strings.Cut(secret, `"`)
	require.Len(t, secret, 44)
	require.NotContains(t, public, secret)
}

func TestProgramFromWdirAndPath(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prog"), []byte("#!/bin/sh\necho $0\n"), 0o755))
	j := testJob(1)
	j.Apps[0] = job.App{Program: "./prog", NP: 1, Wdir: dir}
	_, out, stderr := runJob(t, j)
	require.Equal(t, filepath.Join(dir, "prog")+"\n", out, stderr)
	j.Apps[0] = job.App{Program: "prog", NP: 1, Env: []job.EnvVar{{Name: "PATH", Value: "/nowhere::" + dir}}}
	_, out, stderr = runJob(t, j)
	require.Equal(t, filepath.Join(dir, "prog")+"\n", out, stderr)
}

func TestSignalNames(t *testing.T) {
	require.Equal(t, "signal 2 (SIGINT)", signalName(syscall.SIGINT))
	require.Equal(t, "signal 45", signalName(45))
}
