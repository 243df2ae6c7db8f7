//go:build linux

package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// testTimeout bounds waits of the tests in this file.
const testTimeout = 20 * time.Second

// pidIn waits until a file holds a process id and a newline, and returns the id. It gives up after
// testTimeout.
func pidIn(name string) (int, error) {
	for end := time.Now().Add(testTimeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		text, _ := os.ReadFile(name)
		if pid, whole := strings.CutSuffix(string(text), "\n"); whole {
			return strconv.Atoi(pid)
		}
	}
	return 0, fmt.Errorf("no process id in %s", name)
}

// hasEnded reports whether a process is a zombie or does not exist any more.
func hasEnded(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.HasPrefix(string(stat[strings.LastIndexByte(string(stat), ')'):]), ") Z")
}

// holdDying makes rank 0 kill itself, and holds it by ptrace(2) while it exits, so that the kernel
// does not report its end to gorun yet. Meanwhile rank 1 fails, and gorun ends rank 2 because of
// that. Then holdDying lets rank 0 go. dir is the working directory of the ranks. In it they write
// their process ids, rank 0 waits for the file die, and rank 1 for the file dying.
func holdDying(dir string) error {
	// The thread is never unlocked, so it ends with this goroutine. The kernel then stops tracing
	// rank 0.
	runtime.LockOSThread()
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
			for end := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
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

// TestSecondaryBeforeKill: rank 0 kills itself by SIGKILL. While it exits, rank 1 fails, so gorun
// gets the failure of rank 1 first. gorun must name rank 0 as the failed rank.
func TestSecondaryBeforeKill(t *testing.T) {
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
				go func() { // ends at the latest when rank 0 has ended; the test waits for the result in held
					err := holdDying(dir)
					if err != nil { // rank 0 must kill itself all the same, so that the job ends
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

// TestFirstFailureStays: rank 1 fails first, and gorun must name rank 1. Rank 0 then handles the
// SIGTERM by which gorun ends the job, and ends itself by another signal. That must not change the
// outcome.
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

// TestEarlierElsewhere: gorun gets the exit of rank 0 on host a, and then that of rank 1 on host b.
// If rank 1 ended earlier by the clocks of the hosts, the outcome must name rank 1, because the
// failure of rank 1 may have caused that of rank 0. There are two exceptions: the clock of host b
// is known to differ from gorun's, or gorun itself has ended rank 1.
func TestEarlierElsewhere(t *testing.T) {
	begun := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		clock time.Duration // how far the clock of host b is ahead of gorun's
		// at is the time from the end of rank 0 to the end of rank 1, by a correct clock. It is
		// negative if rank 1 ended first.
		at   time.Duration
		told bool // gorun had begun to end rank 1
		want int  // the rank of the outcome
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
		// With killed set, [run.fail] sends no End. The run has no tree of agents to send it to.
		r.phase, r.killed = phaseRunning, true
		ended := begun.Add(time.Hour)
		r.exited(proto.Exit{Rank: 0, Code: 91, Early: true, At: ended.UnixNano()})
		r.exited(proto.Exit{Rank: 1, Code: 3, Early: true, AfterEnd: test.told, At: ended.Add(test.clock + test.at).UnixNano()})
		require.Equal(t, test.want, r.outcome.Rank, name)
	}
}

// TestDyingFirst: rank 0 aborts, and then gorun gets the end of rank 1 of the same host by a
// signal. If rank 1 had crashed and was already exiting when rank 0 aborted, the outcome must name
// rank 1, because rank 0 may have aborted because of that crash. Otherwise it must name rank 0.
func TestDyingFirst(t *testing.T) {
	for name, test := range map[string]struct {
		second proto.Exit
		want   int
	}{
		"crashed, and exiting": {proto.Exit{Rank: 1, Signal: int(unix.SIGSEGV), Exiting: true}, 1},
		"crashed later":        {proto.Exit{Rank: 1, Signal: int(unix.SIGSEGV)}, 0},
		"ended by gorun":       {proto.Exit{Rank: 1, Signal: int(unix.SIGTERM), Exiting: true}, 0},
	} {
		r := newRun(&session{job: &job.Job{Apps: []job.App{{Program: "p"}}}}, "id")
		r.hosts = []host{{Host: hosts.Host{Name: "a"}}}
		r.ranks = []rank{{pid: 1}, {pid: 2}}
		// With killed set, [run.fail] sends no End. The run has no tree of agents to send it to.
		r.phase, r.killed = phaseRunning, true
		r.aborted(proto.Aborted{Rank: 0, Code: 1})
		r.exited(test.second)
		require.Equal(t, test.want, r.outcome.Rank, name)
	}
}

// TestConsequenceFirst: gorun first gets the aborts of ranks 0 and 2, which name the failure of
// another rank as their reason. Then it gets another message, second, about rank 1 or 2. If second
// reports a failure of rank 1 that has another cause, the outcome must name rank 1. Otherwise it
// must name rank 0: after a normal exit, a result of gorun's SIGTERM, another consequence, or the
// exit of rank 2. want is the rank of the outcome.
func TestConsequenceFirst(t *testing.T) {
	consequence := proto.Aborted{Rank: 1, Code: 1, Consequence: true}
	for name, test := range map[string]struct {
		second proto.Message
		want   int
	}{
		"exit":                       {proto.Exited{Exit: proto.Exit{Rank: 1, Code: 5}}, 1},
		"exit without Finalize":      {proto.Exited{Exit: proto.Exit{Rank: 1, Early: true}}, 1},
		"exit after Finalize":        {proto.Exited{Exit: proto.Exit{Rank: 1}}, 0},
		"exit after SIGTERM":         {proto.Exited{Exit: proto.Exit{Rank: 1, Code: 5, AfterEnd: true}}, 0},
		"exit begun before SIGTERM":  {proto.Exited{Exit: proto.Exit{Rank: 1, Code: 5, AfterEnd: true, Exiting: true}}, 1},
		"signal":                     {proto.Exited{Exit: proto.Exit{Rank: 1, Signal: int(unix.SIGTERM)}}, 1},
		"signal of gorun":            {proto.Exited{Exit: proto.Exit{Rank: 1, Signal: int(unix.SIGTERM), AfterEnd: true}}, 0},
		"abort":                      {proto.Aborted{Rank: 1, Code: 3, Reason: "no such mesh"}, 1},
		"abort after SIGTERM":        {proto.Aborted{Rank: 1, Code: 3, Reason: "interrupted", AfterEnd: true}, 0},
		"another consequence":        {consequence, 0},
		"exit of another that noted": {proto.Exited{Exit: proto.Exit{Rank: 2, Code: 1}}, 0},
	} {
		r := newRun(&session{job: &job.Job{Apps: []job.App{{Program: "p"}}}}, "id")
		r.hosts = []host{{Host: hosts.Host{Name: "a"}}}
		r.ranks = []rank{{pid: 1}, {pid: 2}, {pid: 3}}
		// With killed set, [run.fail] sends no End. The run has no tree of agents to send it to.
		r.phase, r.killed = phaseRunning, true
		r.aborted(proto.Aborted{Rank: 0, Code: 1, Consequence: true})
		r.aborted(proto.Aborted{Rank: 2, Code: 1, Consequence: true})
		switch m := test.second.(type) {
		case proto.Exited:
			r.exited(m.Exit)
		case proto.Aborted:
			r.aborted(m)
		}
		require.Equal(t, test.want, r.outcome.Rank, name)
		require.Equal(t, test.want == 0, r.cause.kind == kindConsequence, name)
	}
}

// failedRun returns a run of three ranks. Its method fail sends no message. If apart is set, rank 1
// runs on another host than ranks 0 and 2. If clocks is set, the clocks of the hosts are known to
// agree.
func failedRun(apart, clocks bool) *run {
	r := newRun(&session{job: &job.Job{Apps: []job.App{{Program: "p"}}}}, "id")
	r.hosts = []host{{Host: hosts.Host{Name: "a"}, state: hostUp}, {Host: hosts.Host{Name: "b"}, state: hostUp}}
	r.plans = []proto.Plan{{Ranks: []proto.Rank{{Rank: 0}, {Rank: 2}}}, {Ranks: []proto.Rank{{Rank: 1}}}}
	begun := time.Unix(1000, 0)
	started := begun.Add(time.Second / 2)
	if clocks {
		r.startSent, r.startDone = begun, begun.Add(time.Second)
	}
	r.ranks = []rank{{pid: 1, started: started}, {pid: 2, started: started}, {pid: 3, started: started}}
	if apart {
		r.ranks[1].host = 1
	}
	// With killed set, [run.fail] sends no End. The run has no tree of agents to send it to.
	r.phase, r.killed = phaseRunning, true
	return r
}

// TestOutcomeIsReplaced checks minTiming for each pair of kinds and each timing: gorun gets a
// failure of rank 0 and then one of rank 1, which replaces the first one or not. The table has the
// lowest timing with which the outcome must change; "-" means never.
func TestOutcomeIsReplaced(t *testing.T) {
	const atVerdict, before = 1 << 40, 1<<40 - 1
	tell := func(r *run, kind string, rank int, at int64, told bool) {
		e := proto.Exit{Rank: rank, At: at, AfterEnd: told}
		switch kind {
		case "other":
			if rank == 0 {
				r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Signal: unix.SIGINT}, 130)
				return
			}
		case "consequence":
			r.aborted(proto.Aborted{Rank: rank, Code: 1, Reason: "rank 7 has failed", Consequence: true, AfterEnd: told})
			e.Code = 1
		case "follower":
			r.aborted(proto.Aborted{Rank: 2, Code: 1, Reason: "rank 7 has failed", Consequence: true, AfterEnd: told})
			e.Code = 5
		case "noreason":
			e.Code = 5
		case "reason":
			r.aborted(proto.Aborted{Rank: rank, Code: 6, Reason: "no such mesh", AfterEnd: told})
			e.Code = 6
		case "signal":
			e.Signal = int(unix.SIGPIPE)
		case "crash":
			e.Signal = int(unix.SIGSEGV)
		case "lost":
			r.hostsLost(proto.Lost{First: r.ranks[rank].host, Count: 1, Cause: "no answer"})
			return
		}
		r.exited(e)
	}
	timings := []string{"ending", "after", "apart", "before"}
	failures := []string{"other", "consequence", "noreason", "reason", "signal", "crash", "lost"}
	// The keys are kinds of the outcome. A value has a column for each element of failures, in
	// their order.
	for outcome, least := range map[string]string{
		"other":       "-  -  -       -       -       -      -",
		"consequence": "-  -  after   after   after   after  apart",
		"follower":    "-  -  before  after   after   after  apart",
		"noreason":    "-  -  before  before  before  apart  apart",
		"reason":      "-  -  before  before  before  apart  apart",
		"signal":      "-  -  -       -       -       -      -",
		"crash":       "-  -  -       -       -       -      -",
		"lost":        "-  -  -       -       -       -      -",
	} {
		for i, failure := range failures {
			from := slices.Index(timings, strings.Fields(least)[i]) // -1: the failure never replaces the outcome
			for n, timing := range timings {
				r := failedRun(timing == "apart" || timing == "before", timing == "before")
				tell(r, outcome, 0, atVerdict, false)
				first := *r.outcome
				tell(r, failure, 1, before, timing == "ending")
				what := fmt.Sprintf("%s, then %s, %s", outcome, failure, timing)
				switch {
				case from < 0 || n < from:
					require.Equal(t, first, *r.outcome, what)
				case failure == "lost":
					require.Equal(t, "b: no answer", r.outcome.Reason, what)
				default:
					require.Equal(t, 1, r.outcome.Rank, what)
					require.Equal(t, failure == "reason", r.outcome.Reason == "failed: no such mesh", what)
				}
			}
		}
	}
}

// TestCrashOfAnotherGroup: rank 0 exits without Finalize because a rank of another group on its host
// has died. gorun may receive the exit of rank 0 first, because another Manager watches that group.
func TestCrashOfAnotherGroup(t *testing.T) {
	for _, spawned := range []bool{false, true} {
		r := failedRun(false, false)
		if spawned {
			g := newGroup(1, "id1", 0)
			g.first, g.size, g.apps = 1, 1, []groupApp{{program: "p"}}
			r.groups, r.ranks[1].group = append(r.groups, g), 1
		}
		r.exited(proto.Exit{Rank: 0, Early: true, At: 2})
		r.exited(proto.Exit{Rank: 1, Signal: int(unix.SIGKILL), At: 1})
		require.Equal(t, spawned, r.outcome.Signal == unix.SIGKILL)
		require.Equal(t, spawned, r.outcome.Group == 1)
	}
}

// TestReasonAfterFollower: rank 0 aborts because another rank has failed, and then ranks 2 and 0
// exit with code 1. Rank 1 aborts last, but with a reason of its own, so the outcome must name rank
// 1.
func TestReasonAfterFollower(t *testing.T) {
	r := failedRun(false, false)
	r.aborted(proto.Aborted{Rank: 0, Code: 1, Consequence: true})
	r.exited(proto.Exit{Rank: 2, Code: 1})
	require.Equal(t, 2, r.outcome.Rank)
	r.exited(proto.Exit{Rank: 0, Code: 1})
	require.Equal(t, 2, r.outcome.Rank)
	r.aborted(proto.Aborted{Rank: 1, Code: 3, Reason: "no such mesh"})
	require.Equal(t, Failure{Rank: 1, ExitCode: 3, Reason: "failed: no such mesh", Host: "a", Program: "p", PID: 2}, r.outcome.Failure)
	require.Equal(t, 3, r.outcome.code)
}

// TestDyingElsewhere: rank 0 aborts. Rank 1, on another host, was already in exit(2) when its host
// began to end the ranks. It may have noticed the failure of rank 0, so the outcome must name rank
// 1 only in three cases: rank 1 ended before rank 0 by clocks that agree, the abort of rank 0 is a
// consequence, or SIGSEGV ended rank 1.
func TestDyingElsewhere(t *testing.T) {
	dying := proto.Exit{Rank: 1, Code: 3, Exiting: true, AfterEnd: true, At: 5}
	for name, test := range map[string]struct {
		clocks      bool  // the clocks of the hosts are known to agree
		consequence bool  // rank 0 names the failure of another rank as the reason of its abort
		ended       int64 // when rank 0 ended, in ns; rank 1 ended at 5
		want        int   // the rank of the outcome, unless SIGSEGV ended rank 1
	}{
		"order not known": {false, false, 6, 0},
		"ended later":     {true, false, 4, 0},
		"ended earlier":   {true, false, 6, 1},
		"consequence":     {false, true, 6, 1},
	} {
		for _, signal := range []unix.Signal{0, unix.SIGSEGV} {
			r := failedRun(true, test.clocks)
			r.aborted(proto.Aborted{Rank: 0, Code: 1, Consequence: test.consequence})
			r.exited(proto.Exit{Rank: 0, Code: 1, At: test.ended})
			second := dying
			second.Signal = int(signal)
			r.exited(second)
			want := test.want
			if signal == unix.SIGSEGV { // so the exit of rank 1 is not a consequence of the abort of rank 0
				want = 1
			}
			require.Equal(t, want, r.outcome.Rank, "%s, %v", name, signal)
		}
	}
}

// TestExitThatFailsNobody: in a job that continues without failed ranks, rank 0 aborts, and rank 1
// exits with code 5 after Finalize. In such a job that exit is not a failure, so the outcome must
// still name rank 0.
func TestExitThatFailsNobody(t *testing.T) {
	for _, exit := range []proto.Exit{{Code: 5, At: 1}, {Code: 5, Exiting: true}, {Code: 5, Exiting: true, AfterEnd: true}} {
		for _, apart := range []bool{false, true} {
			for _, consequence := range []bool{false, true} {
				r := failedRun(apart, true)
				r.job.OnFailure = job.FailNotify
				r.aborted(proto.Aborted{Rank: 0, Code: 1, Consequence: consequence})
				r.exited(proto.Exit{Rank: 0, Code: 1, At: 2})
				exit.Rank = 1
				r.exited(exit)
				require.Zero(t, r.outcome.Rank, "%+v, apart %v, consequence %v", exit, apart, consequence)
			}
		}
	}
}

// TestReasonAfterConsequence runs two ranks. Rank 1 revokes the communicator. Rank 0 fails because
// of that, and its failure ends the job before rank 1 fails with its own reason, "no such mesh".
// gorun must name rank 1 and its reason, and not rank 0.
func TestReasonAfterConsequence(t *testing.T) {
	defer func(limit time.Duration) { lingerLimit = limit }(lingerLimit)
	lingerLimit = testTimeout // rank 0 may be slow on a busy machine
	program := filepath.Join(t.TempDir(), "revoke")
	text, err := exec.Command("go", "build", "-o", program, "./testdata/revoke").CombinedOutput()
	require.NoError(t, err, string(text))
	for _, use := range []string{"shm,tcp", "tcp"} {
		j := testJob(2)
		j.Apps[0].Program, j.Params = program, &params.Set{}
		require.NoError(t, j.Params.Set("transport.use", use, params.FromFlag))
		res, _, stderr := runJob(t, j)
		require.Equal(t, 1, res.ExitCode, stderr)
		require.Contains(t, stderr, "rank 1: no such mesh\ngorun: rank 1 failed (exit code 1)")
		require.NotContains(t, stderr, "rank 0")
		require.Equal(t, 1, res.Failure.Rank)
		require.Equal(t, "failed: no such mesh", res.Failure.Reason)
	}
}
