// Package launcher runs the ranks of a message passing job, on this host or on several. Command
// gorun adds a command line to this package. Another program can embed the package:
//
//   - [job.Parse] describes a job, from the flags of gorun or from a job file.
//   - [Run] runs the job, and blocks until all ranks have ended.
//   - [Result] says how the job ended: its exit code and, if it failed, the first failure.
//
// Run starts the executable of this process again: as a watchdog on this host and, if ssh or srun
// starts the agents, as an agent on each other host. The watchdog needs no code in the embedding
// program. A program that runs jobs on other hosts passes its arguments to job.Parse first, and
// calls [AgentMain] if the action is [job.Agent].
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
	"github.com/weft-hpc/weft/launcher/internal/live"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/ui"
	"github.com/weft-hpc/weft/launcher/job"
	"golang.org/x/sys/unix"
)

// Stdio holds the standard streams of a job. Run does not close them.
type Stdio struct {
	In *os.File // standard input for the ranks that job.Job.Stdin selects; nil: the ranks read no input
	// Out gets the ranks' stdout, unless job.Job.OutputDir is set. It usually gets whole lines, so
	// that lines of different ranks do not mix. If Out is nil, the output is discarded.
	Out io.Writer
	Err io.Writer // gets the ranks' stderr in the same way, and gorun's own lines; nil: discarded
}

// Result says how a job ended.
type Result struct {
	// ExitCode is the exit code of gorun: 0 if the job ended well. If a rank failed, it is usually
	// the exit code of the rank that failed first, or 128 plus the signal that ended that rank.
	// gorun's own codes are 1 (for example, a program cannot be built, or a host fails), 2 (the job
	// is invalid), 113 (a host has another version of gorun), 124 (timeout), 126 (a program cannot
	// be executed), 127 (a program does not exist) and 128 plus the signal that ended gorun's job.
	ExitCode int
	// Failure is the first failure in time, as far as gorun can find that out. It is nil if the job
	// ended well. gorun has already written it to Stdio.Err.
	Failure *Failure
}

// Failure describes the failure of a rank, or of the job as a whole.
type Failure struct {
	// Rank is the rank that failed, in its group. It is -1 if the job failed for another reason, for
	// example a timeout, a failed build or a lost host.
	Rank int
	// Group is 0 for the ranks that the job started with, and otherwise the number of a group of
	// ranks that other ranks have spawned.
	Group   int
	Host    string // the host of the rank; without a rank, the host that failed, or gorun's host
	Program string // the program of the rank, as job.App.Program names it; "" without a rank
	PID     int    // process id of the rank; 0: the rank was not started, or there is no rank
	// ExitCode is the exit code of the rank, or 0 if Signal ended it. Without a rank, use
	// Result.ExitCode.
	ExitCode int
	Signal   syscall.Signal // the signal that ended the rank or, without a rank, the job; 0: none
	// Reason says why the rank or the job failed, such as "exited without Finalize". It is "" if
	// the exit code or the signal explains that.
	Reason string
	// Stderr has the last lines that the rank wrote to stderr, at most ten. If they contain a Go
	// panic, there are at most 40 lines, from the beginning of the panic on.
	Stderr []string
}

// Run runs a job. It blocks until the processes of the job have ended and their output is written.
// It does not wait without limit for a process that survives SIGKILL, or, after the job's timeout
// or a signal, for a reader of the output. Run writes errors to stdio.Err, in lines that begin with
// "gorun: ", so the caller only has to look at the result.
//
// If ctx ends, Run ends the job as at its timeout, but with exit code 1. While Run runs, it catches
// these signals of this process, except those that the process ignores:
//
//   - INT, HUP, USR1, USR2 and TSTP: Run passes them to the ranks' process groups. A second INT
//     kills the job at once. After TSTP, Run also stops this process.
//   - TERM: Run sends SIGTERM to the ranks, and SIGKILL after the grace period.
//   - QUIT: Run passes SIGQUIT to the ranks that have not called Init. If other ranks have called
//     Init, Run writes to stdio.Err what the ranks do, and ends the job.
//   - PWR, on BSD systems INFO: Run writes to stdio.Err what the ranks do. [Stacks] asks for that
//     from another process.
//
// INT, TERM, HUP and QUIT end a job whose ranks do not run yet. Run also catches PIPE, so that a
// write to a broken pipe only returns an error. A process must run only one job at a time, because
// Run makes the process the reaper of its orphaned descendants. While Run runs, the caller must not
// start a process with Setsid: Run would take it for a process that a rank has left behind, and
// kill it when the ranks have ended.
//
// If job.Job.Launcher is slurm and there is no allocation of Slurm, Run starts salloc and waits for
// it. salloc gets an allocation and runs this executable in it, with the same arguments.
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
	s.underSalloc = outer != nil
	s.out = newWriter(stdio.Out, stdio.Err)
	if j.UI != "" {
		s.tail = new(tail)
		s.out.tail = s.tail
	}
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
	stopMetrics, err := s.serveMetrics()
	if err == nil {
		defer stopMetrics()
		err = s.servePage()
	}
	switch {
	case notAllocated != nil:
		v = s.startFailure(notAllocated)
	case err != nil:
		v = s.startFailure(err)
	default:
		v = s.prepare(id)
	}
	for copies := 1; v == nil; copies++ {
		r := newRun(s, id)
		s.current.Store(r)
		v = r.execute()
		if s.page != nil {
			s.final = r.finalSnapshot()
		}
		if copies < maxCopies && r.copyWasBusy(v) {
			s.verbose("a node could not execute its new copy of gorun; starting again with another copy")
			v, id = nil, bootstrap.NewJobID()
			s.watchdog.Job(id)
			continue
		}
		s.report.add(r, v)
		if s.wantsStats() {
			s.stats = r.statistics()
		}
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
	s.endPage(res)
	outer.ended(res.ExitCode)
	return res
}

// session is the state of a job over all its starts.
type session struct {
	ctx         context.Context
	job         *job.Job
	stdio       Stdio
	host        string         // the name of this host
	begun       time.Time      // when Run was called
	deadline    time.Time      // time at which the job's timeout ends the job; zero: the job has no timeout
	signals     chan os.Signal // signals to gorun that catchSignals has caught
	underSalloc bool           // another gorun has started this one by salloc
	out         *writer
	watchdog    *procs.Watchdog
	programs    []program // the executables, by index in job.Apps; empty: not found yet
	dir         string    // temporary directory of built programs; "": there is none
	report      report
	epoch       int  // number of restarts so far
	limitDrain  bool // if set, output that no process reads delays the end of the job by at most drainLimit
	// inputAt is the offset in standard input when Run was called. It is -1 if there is no standard
	// input, or if it is not a regular file.
	inputAt int64

	// failed has, by name, the hosts that failed or were lost in an earlier run, with the causes.
	// Restarts leave these hosts out.
	failed map[string]string

	profileDir string // absolute path of job.ProfileDir; "": the job makes no profiles
	tracePath  string // absolute path of job.Trace; "": the job has no trace
	// collectErrs says why the profiles, or the trace, of a run could not be written. Empty: they were.
	collectErrs []error
	statsDir    string              // absolute path of job.StatsDir; "": the job has none
	stats       []groupStats        // of the last run, if the user wants statistics
	stacksDir   string              // absolute path of job.StacksDir; "": the job has none
	current     atomic.Pointer[run] // the run under way, for goroutines that answer gorun -stacks; nil: none

	// The live page; all are nil if the user wants none.
	page     *ui.Page
	stopPage func()         // ends the server of the page
	tail     *tail          // the last lines of the output
	final    *live.Snapshot // the state at the end of the last run; nil: there was no run
}

// outcome says how a run ended. A nil outcome means that the run ended well.
type outcome struct {
	Failure
	number int  // number in the job of the rank that failed; -1: none
	code   int  // exit code of gorun
	end    bool // the job must not be restarted, even with -on-failure restart
	asked  bool // the signal that ended the rank is one that gorun had passed to the ranks
	// others is the number of the other ranks of the job, if gorun ended them because of the
	// failure. Otherwise it is 0.
	others int
	late   string   // text about the ranks that got SIGKILL at the end of the grace period; "": no such ranks
	lines  []string // further lines for the user, which gorun prints after the failure
}

// startFailure returns the outcome of a job that cannot be started because of err, and must not be
// restarted.
func (s *session) startFailure(err error) *outcome {
	code := codeOf(err)
	return &outcome{Failure: Failure{Rank: -1, Host: s.host, ExitCode: code, Reason: err.Error()}, number: -1, code: code, end: true}
}

// warn prints the warnings in job.Warnings.
func (s *session) warn() {
	for _, w := range s.job.Warnings {
		s.printLine("warning: " + w)
	}
}

// prepare checks the job, makes the directory for output files, and finds or builds the programs.
// id is the id of the job's first run. prepare returns nil if the job can start, and otherwise an
// outcome that says why it cannot.
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
	if j.StatsDir != "" {
		dir, err := filepath.Abs(j.StatsDir)
		if err == nil {
			err = s.interruptible(func() error { return os.MkdirAll(dir, 0o777) })
		}
		if err == nil {
			err = unix.Access(dir, unix.W_OK)
		}
		if err != nil {
			return s.startFailure(fmt.Errorf("-stats-dir %s: %w", j.StatsDir, err))
		}
		s.statsDir = dir
	}
	if len(j.Profile) > 0 {
		if err := s.checkProfileDir(id); err != nil {
			return s.startFailure(err)
		}
	}
	if j.StacksDir != "" {
		dir, err := filepath.Abs(j.StacksDir)
		if err != nil {
			return s.startFailure(err)
		}
		s.stacksDir = dir
	}
	if j.Trace != "" {
		if err := s.checkTrace(id); err != nil {
			return s.startFailure(err)
		}
	}
	if err := s.findPrograms(id); err != nil {
		return s.startFailure(err)
	}
	return nil
}

// tempDir makes the directory for built programs, in GOTMPDIR if that variable is set.
// [session.finish] removes the directory. If gorun is killed, the watchdog removes it.
func (s *session) tempDir() (string, error) {
	dir, err := os.MkdirTemp(os.Getenv("GOTMPDIR"), "gorun-")
	if err == nil {
		s.dir = dir
		s.watchdog.RemoveDir(dir)
	}
	return dir, err
}

// prepareRestart reports whether the job is to be started again, after run r has ended with outcome
// v. If so, prepareRestart prints the failure and a line about the restart, and makes further runs
// leave out the hosts that failed or were lost in r.
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

// waitToRestart waits before a restart. It returns a failure if a terminating signal or the end of
// s.ctx ends the wait, or if rewindStdin fails. The job's timeout only shortens the wait, because
// the next run handles it.
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

// rewindStdin sets standard input, if it is a regular file that ranks read, to the offset that it
// had when Run was called. So each start of the job reads the same input. If that fails,
// rewindStdin returns a failure.
func (s *session) rewindStdin() *outcome {
	if s.stdio.In == nil || s.job.Stdin == job.StdinNone || s.inputAt < 0 {
		return nil
	}
	if _, err := s.stdio.In.Seek(s.inputAt, io.SeekStart); err != nil {
		return s.startFailure(fmt.Errorf("standard input: %w", err))
	}
	return nil
}

// finish prints the failure v, waits for the output (see drain), writes the report, removes the
// directory of built programs, ends the watchdog, and returns the result of the job. v is nil if
// all ranks ended well. Such a job fails, too, if output was lost or not read in time, or if the
// report could not be written.
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
	for _, err := range s.collectErrs {
		s.printLast(err.Error())
		if code := codeOf(err); res.ExitCode == 0 {
			res = Result{ExitCode: code, Failure: &Failure{Rank: -1, Host: s.host, ExitCode: code, Reason: err.Error()}}
		}
	}
	if err := s.writeReport(res); err != nil {
		s.printLast("report: " + err.Error())
		if res.ExitCode == 0 {
			res = Result{ExitCode: proto.ExitFailed, Failure: &Failure{Rank: -1, Host: s.host, ExitCode: proto.ExitFailed, Reason: "report: " + err.Error()}}
		}
	}
	if err := s.writeStats(); err != nil {
		s.printLast("statistics: " + err.Error())
		if res.ExitCode == 0 {
			res = Result{ExitCode: proto.ExitFailed, Failure: &Failure{Rank: -1, Host: s.host, ExitCode: proto.ExitFailed, Reason: "statistics: " + err.Error()}}
		}
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
	s.watchdog.End()
	return res
}

// drainLimit bounds how long gorun waits at the end of a job for another process to read the
// output. It applies only if session.limitDrain is set, for example after the job's timeout.
const drainLimit = time.Second

// drain waits until the output is written. If limitDrain is set, or as soon as the job's timeout
// passes or a signal asks gorun to end, drain waits only for drainLimit. If the output is still not
// written, drain returns the exit code that gorun gives to a job whose ranks all ended well: 124
// for the timeout, 128 plus the signal, or 0 if limitDrain was set before.
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

// inputAt returns the file offset of f, or -1 if f is nil or not a regular file.
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
