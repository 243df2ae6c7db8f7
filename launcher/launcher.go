// Package launcher runs a job: it finds the hosts, builds or finds the programs,
// connects with an agent on each host, places the ranks, has them started, carries
// their input and output, and ends with the job's exit code.
//
//	Run ── session: what lasts as long as the job
//	          │       programs, writer, signals, report
//	          └─ run: one start of the job, of which there are several where it is
//	               │  to be restarted
//	               │
//	             tree.Node ── procs: the ranks of this host
//	               │ │ │
//	              agents: the same Node, and procs, on other hosts
//
// Packages below it: job says what is to be done, hosts which machines there are,
// place which rank runs where, remote how to reach a host, tree how agents speak
// with each other and with gorun, proto what they say, procs runs ranks.
package launcher

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// Stdio is where a job reads and writes.
type Stdio struct {
	In  *os.File  // what Job.Stdin hands to the ranks; nil: nothing
	Out io.Writer // whole lines of the ranks' stdout; nil: discarded
	Err io.Writer // whole lines of the ranks' stderr, and what the launcher says; nil: discarded
}

// Result is how a job ended.
type Result struct {
	// ExitCode is what gorun exits with: 0; the first failure's exit code, or
	// 128+signal; 124 after the job's timeout; 127 or 126 for a program that
	// does not exist or cannot be executed; 1 for one that cannot be built, or
	// for a host that fails; 2 for a job that makes no sense.
	ExitCode int
	// Failure is the first failure in time; nil where the job ended well.
	// Run has already written it to Stdio.Err.
	Failure *Failure
}

// Failure says what failed first.
type Failure struct {
	Rank     int            // -1: the job as a whole (timeout, build, cancellation, a host)
	Host     string         // where the rank ran
	Program  string         // as the job names it
	PID      int            // 0: it never started
	ExitCode int            // of the rank; 0 where Signal ended it
	Signal   syscall.Signal // that ended the rank; 0: none
	Reason   string         // why, where a code or a signal does not say it: an abort's reason, "exited without Finalize"
	Stderr   []string       // the rank's last lines of stderr: a panic, or at most ten
}

// Run runs a job to its end. It returns when every process of the job has ended and Run
// has written all their output. Run reports errors on stdio.Err, in lines that begin with
// "gorun: "; the caller only exits with Result.ExitCode.
//
// While it runs, Run catches these signals of this process. If ctx ends, Run ends the job
// as a timeout does, with exit code 1.
//
//   - INT, HUP, USR1, USR2 and TSTP: Run passes them to the ranks' process groups. A second
//     INT kills the job at once.
//   - TERM: Run sends SIGTERM to the ranks, and SIGKILL after the grace period.
//   - QUIT: Run writes to stdio.Err what the ranks do, and ends the job. Only ranks that
//     have not answered get SIGQUIT.
//   - PWR: Run writes to stdio.Err what the ranks do. [Stacks] asks the same from another
//     process.
//
// A process runs one job at a time: Run makes it the reaper of its orphaned descendants.
// If the process gets a child in a session of its own while ranks run, Run takes it for a
// process that a rank has left behind, and kills it when the ranks have ended. So the
// caller must not start a process with Setsid while Run runs.
//
// Run starts this executable once more as a watchdog, which takes over in package procs's
// init: callers need do nothing for that. On other hosts this executable runs as an agent;
// see [AgentMain]. If a job wants Slurm and is not in an allocation, Run waits for salloc,
// which runs this executable once more in an allocation.
func Run(ctx context.Context, j *job.Job, stdio Stdio) Result {
	code, done, notAllocated := allocate(ctx, j)
	if done {
		res := Result{ExitCode: code}
		if code != 0 {
			res.Failure = &Failure{Rank: -1, Host: hostname(), ExitCode: code, Reason: fmt.Sprintf("salloc ended with status %d", code)}
		}
		return res
	}
	s := &session{ctx: ctx, job: j, stdio: stdio, host: hostname(), begun: time.Now()}
	var stopSignals func()
	s.signals, stopSignals = catchSignals()
	defer stopSignals()
	outer := readyForSignals()
	s.out = newWriter(stdio.Out, stdio.Err)
	s.inputAt = inputAt(stdio.In)
	s.warn()
	id := bootstrap.NewJobID()
	s.watchdog = procs.StartWatchdog(id)
	restore := procs.BecomeReaper()
	defer restore()
	if j.Timeout > 0 {
		s.deadline = s.begun.Add(j.Timeout)
	}

	stopListening := s.listen()
	defer stopListening()

	var v *verdict
	if notAllocated != nil {
		v = s.refuse(notAllocated)
	} else {
		v = s.prepare(id)
	}
	for v == nil {
		r := newRun(s, id)
		s.current.Store(r)
		v = r.execute()
		s.report.add(r, v)
		if !s.again(r, v) {
			if v != nil && !v.end && s.epoch > 0 {
				v.lines = append(v.lines, "given up after "+plural(s.epoch, "restart"))
			}
			break
		}
		if v = s.pause(); v != nil {
			break
		}
		id = bootstrap.NewJobID()
		s.watchdog.Job(id)
	}
	res := s.end(v)
	outer.ended(res.ExitCode)
	return res
}

// session is a job, however often it is started.
type session struct {
	ctx      context.Context
	job      *job.Job
	stdio    Stdio
	host     string // this one
	begun    time.Time
	deadline time.Time // the job's timeout; zero: none
	signals  chan os.Signal
	out      *writer
	watchdog *procs.Watchdog
	programs []program
	dir      string // of built programs; "": none
	report   report
	epoch    int
	hurried  bool  // nobody will wait for output that is not read
	inputAt  int64 // where standard input stood at first; -1: it is no file

	failed map[string]string // hosts that are left out, and why

	stacksDir string              // absolute; "": none
	current   atomic.Pointer[run] // the current run; nil: none
}

// verdict is how a run ended.
type verdict struct {
	Failure
	code   int      // exit code
	end    bool     // the job is not started anew
	asked  bool     // the rank ended by the signal that gorun had passed on
	others int      // ranks that were ended because of it
	late   string   // says which ranks SIGKILL ended after the grace period
	lines  []string // lines that follow the failure
}

// refuse is a verdict on a job that cannot be started.
func (s *session) refuse(err error) *verdict {
	code := codeOf(err)
	return &verdict{Failure: Failure{Rank: -1, Host: s.host, ExitCode: code, Reason: err.Error()}, code: code, end: true}
}

// warn writes warnings about settings that the user probably did not intend.
func (s *session) warn() {
	for _, w := range s.job.Warnings {
		s.tell("warning: " + w)
	}
}

// prepare finds or builds the programs, and makes the directory of output; nil: all is well.
func (s *session) prepare(id string) *verdict {
	j := s.job
	for _, app := range j.Apps {
		if app.NP < 1 {
			return s.refuse(&startError{proto.ExitUsage, fmt.Sprintf("%s: %d ranks", app.Program, app.NP)})
		}
	}
	if len(j.Apps) == 0 {
		return s.refuse(&startError{proto.ExitUsage, "the job has no ranks"})
	}
	if j.OutputDir != "" {
		dir, err := filepath.Abs(j.OutputDir)
		if err == nil {
			err = s.interruptible(func() error { return os.MkdirAll(dir, 0o777) })
		}
		if err != nil {
			return s.refuse(err)
		}
		s.out.dir = dir
	}
	if j.StacksDir != "" {
		dir, err := filepath.Abs(j.StacksDir)
		if err != nil {
			return s.refuse(err)
		}
		s.stacksDir = dir
	}
	if err := s.findPrograms(id); err != nil {
		return s.refuse(err)
	}
	return nil
}

// tempDir makes the directory of built programs, which the watchdog removes
// where gorun cannot.
func (s *session) tempDir() (string, error) {
	dir, err := os.MkdirTemp(os.Getenv("GOTMPDIR"), "gorun-")
	if err == nil {
		s.dir = dir
		s.watchdog.RemoveDir(dir)
	}
	return dir, err
}

// again says whether the job is to be started once more, and tells the user.
func (s *session) again(r *run, v *verdict) bool {
	j := s.job
	if v == nil || v.end || j.OnFailure != job.FailRestart || s.epoch >= j.MaxRestarts {
		return false
	}
	s.tellFailure(v)
	for host, cause := range r.lost {
		if s.failed == nil {
			s.failed = make(map[string]string)
		}
		s.failed[host] = cause
	}
	s.epoch++
	if s.stdio.In != nil && j.Stdin != job.StdinNone && s.epoch == 1 && isPipe(s.stdio.In) {
		s.tell("note: standard input is a pipe: what has been read of it is not read again")
	}
	line := fmt.Sprintf("starting again: restart %d of at most %d", s.epoch, j.MaxRestarts)
	if n := len(s.failed); n > 0 {
		line += fmt.Sprintf(", without %s", plural(n, "host"))
	}
	s.tell(line)
	return true
}

// restartPause is what a job waits before it begins anew for the first time; then it
// doubles, up to maxPause. What has failed at once would do so again.
const (
	restartPause = 100 * time.Millisecond
	maxPause     = 10 * time.Second
)

// pause waits before the job begins anew; it returns why it does not.
func (s *session) pause() *verdict {
	ctx, stop := buildContext(s.ctx, s.signals)
	wait := min(restartPause<<min(s.epoch-1, 20), maxPause)
	if !s.deadline.IsZero() {
		wait = min(wait, time.Until(s.deadline))
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	if sig := stop(); sig != 0 {
		return s.refuse(endedEarly(sig))
	}
	if s.ctx.Err() != nil {
		return s.refuse(context.Cause(s.ctx))
	}
	return s.rewind()
}

// rewind has the input begin again where it began, so that each start reads the same.
func (s *session) rewind() *verdict {
	if s.stdio.In == nil || s.job.Stdin == job.StdinNone || s.inputAt < 0 {
		return nil
	}
	if _, err := s.stdio.In.Seek(s.inputAt, io.SeekStart); err != nil {
		return s.refuse(fmt.Errorf("standard input: %w", err))
	}
	return nil
}

// end brings the output to its end and makes the result.
func (s *session) end(v *verdict) Result {
	res := Result{}
	if v != nil {
		f := v.Failure
		res = Result{ExitCode: v.code, Failure: &f}
		s.tellFailure(v)
	}
	s.out.finish()
	if code := s.drain(); code != 0 && res.Failure == nil {
		res = Result{ExitCode: code, Failure: &Failure{Rank: -1, Host: s.host, ExitCode: code, Reason: "nobody has read all that the ranks wrote"}}
		s.lastLine(res.Failure.Reason)
	}
	if v != nil && !s.out.drained() { // it was not told
		s.lastLine(res.Failure.Error())
	}
	if s.out.drained() && res.Failure == nil {
		if err := s.out.lost(); err != nil {
			f := &Failure{Rank: -1, Host: s.host, ExitCode: proto.ExitFailed, Reason: "output of the ranks is lost: " + err.Error()}
			res = Result{ExitCode: proto.ExitFailed, Failure: f}
			s.lastLine(f.Reason)
		}
	}
	if err := s.writeReport(res); err != nil {
		s.lastLine("report: " + err.Error())
		if res.ExitCode == 0 {
			res = Result{ExitCode: proto.ExitFailed, Failure: &Failure{Rank: -1, Host: s.host, ExitCode: proto.ExitFailed, Reason: "report: " + err.Error()}}
		}
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
	s.watchdog.End()
	return res
}

// drainLimit is for how long output that nobody reads holds up a job that was
// not left to end by itself.
const drainLimit = time.Second

// drain waits until the output is written. Whoever reads it may take his time,
// unless the job runs into its timeout, or a signal asks it to end now; then what has
// been written by drainLimit is all there will be. It returns the exit code of a job
// that had ended well until then.
func (s *session) drain() (code int) {
	var deadline <-chan time.Time
	if !s.deadline.IsZero() {
		t := time.NewTimer(time.Until(s.deadline))
		defer t.Stop()
		deadline = t.C
	}
	for !s.hurried {
		select {
		case <-s.out.done:
			return 0
		case sig := <-s.signals:
			if n, ok := sig.(syscall.Signal); ok && asksToEnd(n) {
				s.hurried, code = true, proto.ExitSignalFloor+int(n)
			}
		case <-deadline:
			s.hurried, code = true, proto.ExitTimeout
		}
	}
	select {
	case <-s.out.done:
		return 0
	case <-time.After(drainLimit):
		return code
	}
}

func isPipe(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0
}

// inputAt is where a regular file stands; -1: it is none.
func inputAt(f *os.File) int64 {
	if f == nil {
		return -1
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return -1
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return -1
	}
	return at
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return name
}

// suspend does to this process what ^Z means, and returns when the shell lets it go
// on. The signal is for this thread: where another took it, this one would run on for
// a while, and tell the hosts that the job goes on.
func suspend() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sys.StopThread()
}
