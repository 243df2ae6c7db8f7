// Package launcher runs the ranks of a message passing job, on this host or on several. Command
// gorun is this package and a command line; another program can embed it:
//
//   - [job.Parse] describes a job, from the flags of gorun or from a job file.
//   - [Run] runs the job, and returns when all ranks have ended.
//   - [Result] says how the job ended: its exit code, and the first failure.
//
// Run starts the executable of this process again: as a watchdog on this host, and as an agent on
// each other host. The watchdog needs no code in the embedding program. A program that runs jobs on
// other hosts passes its arguments to job.Parse first, and calls [AgentMain] if the action is
// [job.Agent].
//
// # Inside
//
// Run finds the hosts, builds or finds the programs, connects with an agent on each host, places
// the ranks, starts them, passes their input and output on, and returns the job's exit code.
//
//	Run ── session: the whole job: programs, writer, signals, report
//	          └─ run: one start of the job; -on-failure restart makes several
//	               │
//	             tree.Node ── procs: the ranks of this host
//	               │ │ │
//	              agents: a Node and a process manager on each other host
//
// Packages below: job describes a job, hosts reads host lists and allocations, place decides which
// rank runs where, remote connects with hosts, tree passes messages between gorun and the agents,
// proto defines these messages, and procs runs the ranks of one host.
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

// Stdio holds the standard streams of a job. Run does not close them.
type Stdio struct {
	In  *os.File  // standard input for the ranks that job.Job.Stdin selects; nil: they read no input
	Out io.Writer // gets the ranks' stdout, without mixing lines of different ranks; nil: discarded
	Err io.Writer // gets the ranks' stderr likewise, and gorun's own lines; nil: discarded
}

// Result says how a job ended.
type Result struct {
	// ExitCode is the exit code of gorun: 0 if all ranks ended well. Otherwise it is the exit code
	// of the rank that failed first, or 128 plus the signal that ended it. gorun's own codes are 1
	// (a program cannot be built, or a host fails), 2 (the job is invalid), 124 (timeout), 126 (a
	// program cannot be executed) and 127 (a program does not exist).
	ExitCode int
	// Failure is the first failure in time. It is nil if the job ended well. Run has already
	// written it to Stdio.Err.
	Failure *Failure
}

// Failure describes the failure of a rank, or of the job as a whole.
type Failure struct {
	Rank     int            // -1: not the failure of one rank; for example a timeout, a failed build or a lost host
	Host     string         // the host of the rank; without a rank, the host that failed, or gorun's host
	Program  string         // the program of the rank, as job.App.Program names it; "" without a rank
	PID      int            // process id of the rank; 0: the rank was not started, or there is no rank
	ExitCode int            // exit code of the rank; 0 if Signal ended it. Without a rank, use Result.ExitCode
	Signal   syscall.Signal // the signal that ended the rank or, without a rank, the job; 0: none
	Reason   string         // set if the exit code or signal does not explain the failure, such as "exited without Finalize"
	Stderr   []string       // the last lines that the rank wrote to stderr: a Go panic with its stacks, at most 40 lines, or else at most ten lines
}

// Run runs a job. It returns when every process of the job has ended and Run has written all their
// output. Run reports errors on stdio.Err, in lines that begin with "gorun: ". The caller only has
// to look at the result.
//
// If ctx ends, Run ends the job as at its timeout, with exit code 1. While Run runs, it catches
// these signals of this process:
//
//   - INT, HUP, USR1, USR2 and TSTP: Run passes them to the ranks' process groups. A second INT
//     kills the job at once.
//   - TERM: Run sends SIGTERM to the ranks, and SIGKILL after the grace period.
//   - QUIT: Run writes to stdio.Err what the ranks do, and ends the job. Only ranks that have not
//     answered get SIGQUIT.
//   - PWR: Run writes to stdio.Err what the ranks do. [Stacks] asks the same from another process.
//
// A process runs one job at a time, because Run makes the process the reaper of its orphaned
// descendants. While Run runs, the caller must not start a process with Setsid: Run would take it
// for a process that a rank has left behind, and kill it when the ranks have ended.
//
// If a job wants Slurm and is not in an allocation, Run starts salloc, which runs this executable
// with the same arguments in a new allocation, and waits for it.
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

	var v *outcome
	if notAllocated != nil {
		v = s.startFailure(notAllocated)
	} else {
		v = s.prepare(id)
	}
	for v == nil {
		r := newRun(s, id)
		s.current.Store(r)
		v = r.execute()
		s.report.add(r, v)
		if !s.prepareRestart(r, v) {
			if v != nil && !v.end && s.epoch > 0 {
				v.lines = append(v.lines, "gave up after "+plural(s.epoch, "restart"))
			}
			break
		}
		if v = s.waitToRestart(); v != nil {
			break
		}
		id = bootstrap.NewJobID()
		s.watchdog.Job(id)
	}
	res := s.finish(v)
	outer.ended(res.ExitCode)
	return res
}

// session is the state of a job over all its starts.
type session struct {
	ctx        context.Context
	job        *job.Job
	stdio      Stdio
	host       string         // the name of this host
	begun      time.Time      // when Run was called
	deadline   time.Time      // when the job's timeout ends the job; zero: the job has no timeout
	signals    chan os.Signal // signals to gorun that catchSignals has caught
	out        *writer
	watchdog   *procs.Watchdog
	programs   []program // the executables, by index in job.Apps
	dir        string    // temporary directory of built programs; "": none
	report     report
	epoch      int   // number of restarts
	limitDrain bool  // if set, output that no process reads delays the end of the job by at most drainLimit
	inputAt    int64 // offset in standard input when Run was called; -1: standard input is not a regular file

	failed map[string]string // hosts that failed in an earlier run, and the causes; restarts leave these hosts out

	stacksDir string              // absolute path of job.StacksDir; "": stacks are not written to files
	current   atomic.Pointer[run] // the run under way, for goroutines that answer gorun -stacks; nil: none
}

// outcome says how a run ended. A nil outcome means that the run ended well.
type outcome struct {
	Failure
	code   int      // exit code of gorun
	end    bool     // the job must not be restarted, even with -on-failure restart
	asked  bool     // the signal that ended the rank is one that gorun had passed to the ranks
	others int      // number of ranks that gorun ended because of the failure
	late   string   // text about the ranks that got SIGKILL at the end of the grace period; "": no such ranks
	lines  []string // further lines for the user, which gorun prints after the failure
}

// startFailure returns the outcome of a job that cannot be started because of err.
func (s *session) startFailure(err error) *outcome {
	code := codeOf(err)
	return &outcome{Failure: Failure{Rank: -1, Host: s.host, ExitCode: code, Reason: err.Error()}, code: code, end: true}
}

// warn writes warnings about settings that the user probably did not intend.
func (s *session) warn() {
	for _, w := range s.job.Warnings {
		s.printLine("warning: " + w)
	}
}

// prepare checks the job, makes the directory for output files, and finds or builds the programs.
// id is the id of the job's first run. prepare returns nil if the job can start.
func (s *session) prepare(id string) *outcome {
	j := s.job
	for _, app := range j.Apps {
		if app.NP < 1 {
			return s.startFailure(&startError{proto.ExitUsage, fmt.Sprintf("%s: %d ranks", app.Program, app.NP)})
		}
	}
	if len(j.Apps) == 0 {
		return s.startFailure(&startError{proto.ExitUsage, "the job has no ranks"})
	}
	if j.OutputDir != "" {
		dir, err := filepath.Abs(j.OutputDir)
		if err == nil {
			err = s.interruptible(func() error { return os.MkdirAll(dir, 0o777) })
		}
		if err != nil {
			return s.startFailure(err)
		}
		s.out.dir = dir
	}
	if j.StacksDir != "" {
		dir, err := filepath.Abs(j.StacksDir)
		if err != nil {
			return s.startFailure(err)
		}
		s.stacksDir = dir
	}
	if err := s.findPrograms(id); err != nil {
		return s.startFailure(err)
	}
	return nil
}

// tempDir makes the directory for built programs. finish removes the directory. If gorun is killed,
// the watchdog removes it.
func (s *session) tempDir() (string, error) {
	dir, err := os.MkdirTemp(os.Getenv("GOTMPDIR"), "gorun-")
	if err == nil {
		s.dir = dir
		s.watchdog.RemoveDir(dir)
	}
	return dir, err
}

// prepareRestart reports whether the job is to be started again, after run r has ended with outcome
// v. If it is, prepareRestart prints the failure and a note, and makes further runs leave out the
// hosts that r has lost.
func (s *session) prepareRestart(r *run, v *outcome) bool {
	j := s.job
	if v == nil || v.end || j.OnFailure != job.FailRestart || s.epoch >= j.MaxRestarts {
		return false
	}
	s.printFailure(v)
	for host, cause := range r.lost {
		if s.failed == nil {
			s.failed = make(map[string]string)
		}
		s.failed[host] = cause
	}
	s.epoch++
	if s.stdio.In != nil && j.Stdin != job.StdinNone && s.epoch == 1 && isPipe(s.stdio.In) {
		s.printLine("note: standard input is a pipe: the restarted job does not read again what has been read from it")
	}
	line := fmt.Sprintf("starting again: restart %d of at most %d", s.epoch, j.MaxRestarts)
	if n := len(s.failed); n > 0 {
		line += fmt.Sprintf(", without %s", plural(n, "host"))
	}
	s.printLine(line)
	return true
}

// restartPause is the wait before the first restart. The wait doubles with each restart, up to
// maxPause, because a job that has failed at once would probably fail at once again.
const (
	restartPause = 100 * time.Millisecond
	maxPause     = 10 * time.Second
)

// waitToRestart waits before a restart. It returns a failure if a signal, ctx or the job's timeout
// ends the job during the wait.
func (s *session) waitToRestart() *outcome {
	ctx, stop := signalContext(s.ctx, s.signals)
	wait := min(restartPause<<min(s.epoch-1, 20), maxPause)
	if !s.deadline.IsZero() {
		wait = min(wait, time.Until(s.deadline))
	}
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	if sig := stop(); sig != 0 {
		return s.startFailure(endedBeforeStart(sig))
	}
	if s.ctx.Err() != nil {
		return s.startFailure(context.Cause(s.ctx))
	}
	return s.rewindStdin()
}

// rewindStdin sets standard input, if it is a regular file, to the offset that it had when Run was
// called. So each start of the job reads the same input. It returns a failure if it cannot do that.
func (s *session) rewindStdin() *outcome {
	if s.stdio.In == nil || s.job.Stdin == job.StdinNone || s.inputAt < 0 {
		return nil
	}
	if _, err := s.stdio.In.Seek(s.inputAt, io.SeekStart); err != nil {
		return s.startFailure(fmt.Errorf("standard input: %w", err))
	}
	return nil
}

// finish prints the failure v, waits until the output is written, writes the report, removes
// temporary files, and returns the result of the job. v is nil if the job ended well.
func (s *session) finish(v *outcome) Result {
	res := Result{}
	if v != nil {
		f := v.Failure
		res = Result{ExitCode: v.code, Failure: &f}
		s.printFailure(v)
	}
	s.out.finish()
	if code := s.drain(); code != 0 && res.Failure == nil {
		res = Result{ExitCode: code, Failure: &Failure{Rank: -1, Host: s.host, ExitCode: code, Reason: "the output of the ranks was not read in time"}}
		s.printLast(res.Failure.Reason)
	}
	if v != nil && !s.out.drained() { // the lines of printFailure are still in the writer's queue
		s.printLast(res.Failure.Error())
	}
	if s.out.drained() && res.Failure == nil {
		if err := s.out.lostOutput(); err != nil {
			f := &Failure{Rank: -1, Host: s.host, ExitCode: proto.ExitFailed, Reason: "output of the ranks is lost: " + err.Error()}
			res = Result{ExitCode: proto.ExitFailed, Failure: f}
			s.printLast(f.Reason)
		}
	}
	if err := s.writeReport(res); err != nil {
		s.printLast("report: " + err.Error())
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

// drainLimit bounds how long gorun waits at the end of a job for another process to read the
// output. It applies only after the job's timeout has passed or the user has ended the job.
const drainLimit = time.Second

// drain waits until the output is written. The wait is not limited until the job's timeout passes
// or a signal asks gorun to end; after that, drain waits at most drainLimit. If the output is
// still not written, drain returns the exit code that gorun gives to a job whose ranks all ended
// well: 124 for the timeout, 128 plus the signal, or 0 if limitDrain was set before.
func (s *session) drain() (code int) {
	var deadline <-chan time.Time
	if !s.deadline.IsZero() {
		t := time.NewTimer(time.Until(s.deadline))
		defer t.Stop()
		deadline = t.C
	}
	for !s.limitDrain {
		select {
		case <-s.out.done:
			return 0
		case sig := <-s.signals:
			if n, ok := sig.(syscall.Signal); ok && terminates(n) {
				s.limitDrain, code = true, proto.ExitSignalFloor+int(n)
			}
		case <-deadline:
			s.limitDrain, code = true, proto.ExitTimeout
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

// inputAt returns the file offset of a regular file, or -1 if f is none.
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

// suspend stops this process, as ^Z does, and returns when the shell continues the process. On Linux
// it sends SIGSTOP to the calling thread: if another thread handled the signal, the calling thread
// could return before the process stops, and make the hosts continue the ranks too early.
func suspend() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	sys.StopThread()
}
