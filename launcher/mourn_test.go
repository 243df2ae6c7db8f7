package launcher

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/launcher/hosts"
	"github.com/weft-hpc/weft/launcher/job"
	"github.com/weft-hpc/weft/launcher/proto"
)

// mournPatience bounds what a test here waits for.
const mournPatience = 20 * time.Second

// pidIn waits until a file has a process id.
func pidIn(name string) (int, error) {
	for end := time.Now().Add(mournPatience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(name)
		if pid, whole := strings.CutSuffix(string(text), "\n"); whole {
			return strconv.Atoi(pid)
		}
	}
	return 0, fmt.Errorf("no process id in %s", name)
}

// hasEnded says whether a process is a zombie, or not even that any more.
func hasEnded(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')'):]), ") Z")
}

// holdDying has rank 0 kill itself, and holds it on the way out, where the kernel
// does not report its end yet, until gorun has ended rank 2 because of what rank 1
// does meanwhile. It ends with the thread that it runs on, and then holds nothing.
func holdDying(dir string) error {
	runtime.LockOSThread() // for good: what it traces goes on when the thread ends
	pid, err := pidIn(filepath.Join(dir, "pid0"))
	if err != nil {
		return err
	}
	bystander, err := pidIn(filepath.Join(dir, "pid2"))
	if err != nil {
		return err
	}
	if err := unix.PtraceAttach(pid); err != nil {
		return err
	}
	for attached := false; ; {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != nil {
			return err
		}
		pass := 0
		switch {
		case !ws.Stopped():
			return fmt.Errorf("rank 0 has ended: %#x", ws)
		case ws.TrapCause() == unix.PTRACE_EVENT_EXIT:
			if err := os.WriteFile(filepath.Join(dir, "dying"), nil, 0o600); err != nil {
				return err
			}
			for end := time.Now().Add(mournPatience); ; time.Sleep(time.Millisecond) {
				if hasEnded(bystander) {
					return unix.PtraceDetach(pid)
				}
				if time.Now().After(end) {
					return errors.New("gorun does not end the job")
				}
			}
		case !attached:
			attached = true
			if err := unix.PtraceSetOptions(pid, unix.PTRACE_O_TRACEEXIT); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, "die"), nil, 0o600); err != nil {
				return err
			}
		default:
			pass = int(ws.StopSignal())
		}
		if err := unix.PtraceCont(pid, pass); err != nil {
			return err
		}
	}
}

// TestMourned: rank 0 is killed, and rank 1, which has noticed, is faster to tell
// gorun than the kernel.
func TestMourned(t *testing.T) {
	for _, last := range []string{"echo cmd=abort >&3", "exit 3"} {
		for _, grace := range []time.Duration{0, time.Second} {
			t.Run(fmt.Sprintf("%s, grace %v", last, grace), func(t *testing.T) {
				j := testJob(3, "-c", `
					await() { until test -e $1; do sleep .01; done; }
					echo $$ >pid$PMI_RANK
					case $PMI_RANK in
					0) await die; kill -9 $$;;
					1) await dying; `+last+`;;
					esac
					while :; do sleep .1; done`)
				dir := t.TempDir()
				j.Apps[0].Program, j.Apps[0].Wdir, j.Grace = "sh", dir, grace
				held := make(chan error, 1)
				go func() { // ends with rank 0, if not before; received from below
					err := holdDying(dir)
					if err != nil { // the job ends all the same
						_ = os.WriteFile(filepath.Join(dir, "die"), nil, 0o600)
					}
					held <- err
				}()
				res, _, stderr := runJob(t, j)
				err := <-held
				if errors.Is(err, unix.EPERM) {
					t.Skip("no process may be traced here")
				}
				require.NoError(t, err, stderr)
				require.Equal(t, 137, res.ExitCode, stderr)
				require.Contains(t, stderr, "rank 0 was killed by signal 9 (SIGKILL)")
				require.Zero(t, res.Failure.Rank)
			})
		}
	}
}

// TestFirstFailureStays: others die of the first failure, or because the job ends.
func TestFirstFailureStays(t *testing.T) {
	for first, want := range map[string]struct {
		code int
		says string
	}{
		"exit 3":             {3, "rank 1 exited with code 3"},
		"echo cmd=abort >&3": {1, "rank 1 called Abort"},
		"kill -SEGV $$":      {139, "rank 1 was killed by signal 11 (SIGSEGV)"},
	} {
		for _, then := range []string{"KILL", "ABRT"} {
			j := testJob(3, "-c", `
				case $PMI_RANK in
				0) trap 'kill -`+then+` $$' TERM; echo >ready0;;
				1) until test -e ready0 -a -e ready2; do sleep .01; done; `+first+`;;
				2) echo >ready2;; # and gorun knows that rank 1 runs
				esac
				while :; do sleep .1; done`)
			j.Apps[0].Program, j.Apps[0].Wdir = "sh", t.TempDir()
			res, _, stderr := runJob(t, j)
			require.Equal(t, want.code, res.ExitCode, "%s: %s", then, stderr)
			require.Contains(t, stderr, "gorun: "+want.says)
		}
	}
}

// TestEarlierElsewhere: a host may be faster to tell of a consequence than another of
// the cause. By clocks that are wrong nothing is judged.
func TestEarlierElsewhere(t *testing.T) {
	begun := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		clock time.Duration // of the host of rank 1 is ahead
		at    time.Duration // by the right clock, when rank 1 ended
		told  bool
		want  int
	}{
		"cause comes late": {0, -time.Millisecond, false, 1},
		"consequence":      {0, time.Millisecond, false, 0},
		"ended by gorun":   {0, -time.Millisecond, true, 0},
		"clock is slow":    {-time.Minute, time.Millisecond, false, 0},
	} {
		r := newRun(&session{job: &job.Job{Apps: []job.App{{Program: "p"}}}}, "id")
		r.hosts = []host{{Host: hosts.Host{Name: "a"}}, {Host: hosts.Host{Name: "b"}}}
		r.startSent, r.startDone = begun, begun.Add(time.Second)
		started := begun.Add(time.Second / 2)
		r.ranks = []rank{{host: 0, pid: 1, started: started}, {host: 1, pid: 2, started: started.Add(test.clock)}}
		r.phase, r.killed = phaseRunning, true // nothing is sent
		ended := begun.Add(time.Hour)
		r.exited(proto.Exit{Rank: 0, Code: 91, Early: true, At: ended.UnixNano()})
		r.exited(proto.Exit{Rank: 1, Code: 3, Early: true, Told: test.told, At: ended.Add(test.clock + test.at).UnixNano()})
		require.Equal(t, test.want, r.verdict.Rank, name)
	}
}

// TestDyingFirst: a rank that was on its way out by a signal has failed before who
// noticed it and says so, on one host.
func TestDyingFirst(t *testing.T) {
	for name, test := range map[string]struct {
		second proto.Exit
		want   int
	}{
		"struck, on its way out": {proto.Exit{Rank: 1, Signal: int(unix.SIGSEGV), Dying: true}, 1},
		"struck later":           {proto.Exit{Rank: 1, Signal: int(unix.SIGSEGV)}, 0},
		"told to end":            {proto.Exit{Rank: 1, Signal: int(unix.SIGTERM), Dying: true}, 0},
	} {
		r := newRun(&session{job: &job.Job{Apps: []job.App{{Program: "p"}}}}, "id")
		r.hosts = []host{{Host: hosts.Host{Name: "a"}}}
		r.ranks = []rank{{pid: 1}, {pid: 2}}
		r.phase, r.killed = phaseRunning, true // nothing is sent
		r.aborted(proto.Aborted{Rank: 0, Code: 1})
		r.exited(test.second)
		require.Equal(t, test.want, r.verdict.Rank, name)
	}
}
