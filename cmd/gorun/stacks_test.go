package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/sys"
)

// asGorun is an environment variable. If it is set, the test binary runs gorun's main and no tests.
const asGorun = "WEFT_TEST_AS_GORUN"

func TestMain(m *testing.M) {
	if os.Getenv(asGorun) != "" {
		_ = os.Unsetenv(asGorun)
		main()
	}
	os.Exit(m.Run())
}

// build builds testdata/hang, whose ranks wait for each other as their first argument says. It
// returns the path of the executable.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "hang")
	out, err := exec.Command("go", "build", "-o", program, "./testdata/hang").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// running is a gorun that runs in another process. All of its ranks have printed "up".
type running struct {
	cmd *exec.Cmd
	// stderr is gorun's stderr. Only [running.end] may read it, because gorun writes to it until
	// gorun has ended.
	stderr strings.Builder
	out    *bufio.Reader // gorun's stdout
}

// start starts gorun in another process, with the arguments -n ranks and args, and waits until all
// ranks have printed "up". The caller must end the job and call end.
func start(t *testing.T, ranks int, args ...string) *running {
	t.Helper()
	return startTo(t, ranks, nil, args...)
}

// startTo is start with a writer for gorun's stderr; nil: gorun writes to the field stderr.
func startTo(t *testing.T, ranks int, stderr io.Writer, args ...string) *running {
	t.Helper()
	j := &running{cmd: exec.Command(os.Args[0], append([]string{"-n", strconv.Itoa(ranks)}, args...)...)}
	j.cmd.Env = append(os.Environ(), asGorun+"=1")
	if j.cmd.Stderr = stderr; stderr == nil {
		j.cmd.Stderr = &j.stderr
	}
	pipe, err := j.cmd.StdoutPipe()
	require.NoError(t, err)
	j.out = bufio.NewReader(pipe)
	require.NoError(t, j.cmd.Start())
	t.Cleanup(func() { _ = j.cmd.Process.Kill() }) // for a test that fails before it calls end
	for range ranks {
		line, err := j.out.ReadString('\n')
		require.NoError(t, err, "stderr: %s", &j.stderr)
		require.Equal(t, "up\n", line)
	}
	return j
}

// end waits for gorun to end, and returns its exit code and stderr.
func (j *running) end(t *testing.T) (int, string) {
	t.Helper()
	_, _ = j.out.WriteTo(&strings.Builder{})
	_ = j.cmd.Wait()
	return j.cmd.ProcessState.ExitCode(), j.stderr.String()
}

// until runs gorun -stacks again and again until its output contains all parts, and returns that
// output. One run may not be enough, because the ranks may not have made their calls yet. After two
// minutes until fails the test.
func (j *running) until(t *testing.T, parts ...string) string {
	t.Helper()
	for begun := time.Now(); ; {
		code, out, errs := gorun(t, "-stacks", strconv.Itoa(j.cmd.Process.Pid))
		require.Zero(t, code, errs)
		all := true
		for _, part := range parts {
			all = all && strings.Contains(out, part)
		}
		if all {
			return out
		}
		require.Less(t, time.Since(begun), 2*time.Minute, out)
	}
}

// TestStacks: gorun -stacks must print what the ranks of a running job do, and which of them are in
// a deadlock. The job must continue after that, until SIGTERM ends it.
func TestStacks(t *testing.T) {
	program := build(t)
	for mode, test := range map[string]struct {
		ranks int
		parts []string
	}{
		"barrier": {5, []string{
			"4 ranks (0-3): comm.Barrier(world) at main.go:23\n", "rank 4: comm.Recv(world, from 0, tag 99) at main.go:25\n",
			"comm.Barrier(world) waits for rank 4\n", "\ndeadlock: rank 0 waits for 4, 4 for 0\n", "\ndeadlock: 3 more ranks that wait for these\n",
		}},
		"ring": {3, []string{
			"3 ranks (0-2): comm.Recv(world, from 1, 2, 0, tag 5) at main.go:28\n", "\ndeadlock: rank 0 waits for 1, 1 for 2, 2 for 0\n",
		}},
		"helper": {2, []string{
			"\npossible deadlock: rank 0 waits for 1, 1 for 0\n", "\nnot certain, because rank 0 has goroutines that sleep\n",
		}},
		"compute": {3, []string{
			"2 ranks (0-1): comm.Allreduce(world) at main.go:32\n", "rank 2: main.compute at main.go:", "comm.Allreduce(world) waits for rank 2\n",
		}},
	} {
		for _, transport := range []string{"shm", "tcp"} {
			t.Run(mode+"/"+transport, func(t *testing.T) {
				j := start(t, test.ranks, "-transport", transport, program, mode)
				out := j.until(t, test.parts...)
				require.Equal(t, mode != "compute", strings.Contains(out, "deadlock"), out)
				require.NoError(t, j.cmd.Process.Signal(syscall.SIGTERM))
				code, errs := j.end(t)
				require.Equal(t, 143, code)
				require.True(t, strings.HasSuffix(errs, "gorun: ended by signal 15 (SIGTERM)\n"), errs)
			})
		}
	}
}

// TestStacksOfALiveJob: the ranks exchange messages without end, so at any time some of them wait
// for each other, but only for a moment. gorun -stacks must never report a deadlock.
func TestStacksOfALiveJob(t *testing.T) {
	program := build(t)
	for mode, job := range map[string]struct {
		ranks     int
		transport string
	}{"pingpong": {2, "shm"}, "relay": {3, "tcp"}} {
		t.Run(mode, func(t *testing.T) {
			j := start(t, job.ranks, "-transport", job.transport, program, mode)
			for range 50 {
				require.NotContains(t, j.until(t), "deadlock")
			}
			require.NoError(t, j.cmd.Process.Signal(syscall.SIGTERM))
			code, _ := j.end(t)
			require.Equal(t, 143, code)
		})
	}
}

// TestStacksAtTimeout: the ranks are in a deadlock until the timeout of the job. gorun must then
// print the deadlock, and write the stacks of the ranks to files, before it ends the job.
func TestStacksAtTimeout(t *testing.T) {
	program := build(t)
	var dir, errs string
	// Try longer timeouts, because at a short one the ranks may not be in the deadlock yet.
	for limit := 5 * time.Second; ; limit *= 2 {
		require.Less(t, limit, 2*time.Minute, errs)
		dir = filepath.Join(t.TempDir(), "stacks")
		var code int
		code, _, errs = gorun(t, "-n", "3", "-timeout", limit.String(), "-stacks-dir", dir, program, "ring")
		require.Equal(t, 124, code, errs)
		require.Contains(t, errs, "gorun: the job ran longer than its timeout of "+limit.String())
		if strings.Contains(errs, "gorun:   deadlock: ") {
			break
		}
	}
	require.Contains(t, errs, "gorun:   3 ranks (0-2): comm.Recv(world, from 1, 2, 0, tag 5) at main.go:28\n")
	require.Contains(t, errs, "gorun:   deadlock: rank 0 waits for 1, 1 for 2, 2 for 0\n")
	for _, rank := range []string{"0", "1", "2"} {
		text, err := os.ReadFile(filepath.Join(dir, rank+".stacks"))
		require.NoError(t, err)
		require.Contains(t, string(text), "testdata/hang/main.go:28")
	}
}

// TestStacksAtQuit: gorun gets SIGQUIT while the ranks are in a deadlock. It must print what the
// ranks do, write their stacks to files and not to stderr, and end the job.
func TestStacksAtQuit(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	j := start(t, 3, build(t), "ring")
	j.until(t, "deadlock")
	require.NoError(t, j.cmd.Process.Signal(syscall.SIGQUIT))
	code, errs := j.end(t)
	require.Equal(t, 131, code, errs)
	require.Contains(t, errs, "comm.Recv(world, from 1, 2, 0, tag 5) at main.go:28\n")
	require.NotContains(t, errs, "goroutine ")
	require.True(t, strings.HasSuffix(errs, "gorun: ended by signal 3 (SIGQUIT)\n"), errs)
	files, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "gorun-stacks-*", "*.stacks"))
	require.NoError(t, err)
	require.Len(t, files, 3)
}

// TestStacksBySignal: sys.InspectSignal must make gorun print what the ranks do, and the job must
// continue. The ranks are shells and not weft programs, so gorun prints what the kernel knows about
// them. SIGQUIT must then end the job.
func TestStacksBySignal(t *testing.T) {
	j := start(t, 2, "sh", "-c", "echo up; exec sleep 1000")
	const asleep = "2 ranks (0-1): not in comm: sleep sleeps"
	j.until(t, asleep) // so that gorun knows that the ranks run when it gets the signal
	require.NoError(t, j.cmd.Process.Signal(sys.InspectSignal))
	j.until(t, asleep)
	require.NoError(t, j.cmd.Process.Signal(syscall.SIGQUIT))
	code, errs := j.end(t)
	require.Equal(t, 131, code, errs)
	require.Regexp(t, `(?s)^gorun: the job does this:\ngorun:   .*not in comm: .*\ngorun: ended by signal 3 \(SIGQUIT\)\n$`, errs)
}

// TestStacksOfAStoppedRank: rank 1 is stopped and cannot answer. gorun -stacks must still print
// what the other ranks do and their deadlocks, and must count rank 1 in no deadlock.
func TestStacksOfAStoppedRank(t *testing.T) {
	program := build(t)
	for mode, test := range map[string]struct {
		ranks    int
		want     []string
		deadlock bool // the other ranks are in a deadlock
	}{
		"ring":    {2, []string{"rank 0: comm.Recv(world, from 1, tag 5)", "rank 1: does not answer: hang is stopped"}, false},
		"barrier": {3, []string{"comm.Barrier(world) waits for rank 2, and perhaps for rank 1, which did not answer\n"}, true},
	} {
		t.Run(mode, func(t *testing.T) {
			stopRank1(t, test.ranks, program, mode, func(j *running) {
				out := j.until(t, test.want...)
				require.NotContains(t, out, "waits for rank 1")
				if !test.deadlock {
					require.NotContains(t, out, "deadlock")
				}
			})
		})
	}
}

// stopRank1 starts a job of testdata/hang with the argument mode, stops its rank 1, and calls f.
// Then it ends the job.
func stopRank1(t *testing.T, ranks int, program, mode string, f func(j *running)) {
	t.Helper()
	pids := t.TempDir()
	j := start(t, ranks, "sh", "-c", "echo $$ > "+pids+"/$WEFT_RANK; exec "+program+" "+mode)
	text, err := os.ReadFile(filepath.Join(pids, "1"))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	f(j)
	require.NoError(t, j.cmd.Process.Signal(syscall.SIGTERM))
	_ = syscall.Kill(pid, syscall.SIGCONT)
	_, _ = j.end(t)
}

func TestStacksOfNoJob(t *testing.T) {
	for _, name := range []string{strconv.Itoa(os.Getpid()), "0123456789abcdef", "-1"} {
		code, out, errs := gorun(t, "-stacks", name)
		require.Equal(t, 1, code)
		require.Empty(t, out)
		require.Equal(t, "gorun: -stacks: expected the id of a job of this user on this host, or the pid of its gorun, found \""+name+"\"\n", errs)
	}
}
