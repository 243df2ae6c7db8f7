package launcher

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// caught lists the signals that gorun handles: see run.signal. gorun passes most of them to the
// ranks.
var caught = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGHUP,
	inspectSignal,
}

// inspectSignal makes gorun report what the ranks do. gorun does not pass it to the ranks.
const inspectSignal = sys.InspectSignal

// catchSignals begins to send the signals of caught to c, except those that this process ignores,
// such as HUP under nohup, or INT and QUIT if a script has put gorun into the background. It also
// catches PIPE, so that a write to a pipe without a reader returns an error and does not end gorun.
// stop makes catchSignals catch no more signals.
func catchSignals() (c chan os.Signal, stop func()) {
	c = make(chan os.Signal, 64)
	for _, s := range caught {
		if signal.Ignored(s) {
			continue
		}
		signal.Notify(c, s)
	}
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return c, func() {
		signal.Stop(c)
		signal.Stop(pipe)
	}
}

// terminates reports whether a signal is one by which users and systems ask a program to end: INT,
// TERM, QUIT or HUP. These are the terminating signals in comments of this package.
func terminates(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGQUIT || s == syscall.SIGHUP
}

// signalContext returns a context that ends with ctx or when a terminating signal comes from
// signals. It is for work of gorun while no rank runs. Until the context ends, SIGTSTP stops gorun,
// and other signals have no effect. stop ends the context, and returns the signal that has ended
// it, or 0 if no signal has. The caller must call stop.
func signalContext(ctx context.Context, signals <-chan os.Signal) (_ context.Context, stop func() syscall.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan syscall.Signal, 1)
	go func() { // ends at a terminating signal, or with ctx; stop waits for it
		defer close(got)
		for {
			select {
			case s := <-signals:
				sig, ok := s.(syscall.Signal)
				switch {
				case ok && terminates(sig):
					got <- sig
					cancel()
					return
				case sig == syscall.SIGTSTP:
					suspend()
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() syscall.Signal {
		cancel()
		return <-got
	}
}

// interruptible runs f, which reads or writes files before gorun starts ranks, and returns its
// error. f may take long, because a file is large or a file server does not answer. If a signal
// asks gorun to end, if the job's timeout passes, or if s.ctx ends, interruptible returns an error
// before f returns. f then continues in the background, so the caller must not use variables that f
// sets.
func (s *session) interruptible(f func() error) (err error) {
	ctx, stop := signalContext(s.ctx, s.signals)
	if !s.deadline.IsZero() {
		late := &startError{proto.ExitTimeout, fmt.Sprintf("the job ran longer than its timeout of %v, while gorun read or wrote files", s.job.Timeout)}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, s.deadline, late)
		defer cancel()
	}
	done := make(chan error, 1)
	go func() { done <- f() }() // ends when f returns, which may be after interruptible has returned
	select {
	case err = <-done:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if sig := stop(); sig != 0 {
		return endedBeforeStart(sig)
	}
	return err
}

// endedBeforeStart returns the error of a job that the signal sig ends before gorun has started
// ranks.
func endedBeforeStart(sig syscall.Signal) error {
	return &startError{proto.ExitSignalFloor + int(sig), "ended by " + signalName(sig) + " before the ranks were started"}
}

// signal handles a signal to gorun. It passes most signals to the ranks. The exceptions are:
//
//   - TSTP stops the ranks and gorun, until the shell continues gorun.
//   - inspectSignal makes gorun print what the ranks do.
//   - QUIT, while the ranks run, makes gorun print what they do: see quit.
//   - A second INT, or any INT while the job is ending, makes the hosts kill the ranks. If all
//     ranks have exited, INT only bounds the time in which another process must read their output.
//   - TERM ends the job: see terminate. Before the ranks run, INT, QUIT and HUP end it, too.
func (r *run) signal(s syscall.Signal) {
	switch {
	case s == syscall.SIGTSTP:
		r.suspend()
		return
	case s == inspectSignal:
		r.inspect(inspectRequest{stacks: r.stacksDir != "", dir: r.stacksDir, then: func(a inspected) { r.printInspected("the job does this:", a) }})
		return
	case s == syscall.SIGQUIT && r.phase == phaseRunning && r.outcome == nil && !r.ending:
		r.quit()
		return
	}
	if s == syscall.SIGINT && r.allExited() {
		r.limitDrain = true
		return
	}
	if s == syscall.SIGINT && (r.gotSIGINT || r.ending || r.outcome != nil) {
		r.limitDrain = true
		r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host, Signal: s, Reason: "interrupted twice"}, proto.ExitSignalFloor+int(s))
		r.kill()
		return
	}
	r.gotSIGINT = r.gotSIGINT || s == syscall.SIGINT
	if terminates(s) {
		r.signaled = s
		if r.phase < phaseRunning { // ranks that have not been started yet would not get the signal
			r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host, Signal: s}, proto.ExitSignalFloor+int(s))
		}
	}
	if s == syscall.SIGTERM {
		r.terminate()
		return
	}
	r.node.Do(proto.Signal{Signal: int(s)})
}

// terminate makes the hosts send SIGTERM to the ranks, and SIGKILL after the grace period. It does
// not set an outcome: if all ranks then end normally, the job ended well. Otherwise fail makes
// SIGTERM the outcome.
func (r *run) terminate() {
	if r.ending || r.killed || r.outcome != nil {
		return // the hosts are ending the ranks already, or there are none
	}
	r.gotSIGTERM, r.ending = true, true
	r.node.Do(proto.End{Grace: r.job.Grace, Except: -1})
}

// quit handles SIGQUIT: it writes to stderr what the ranks do, and passes SIGQUIT to the hosts,
// which send it only to ranks that have not called Init. If at least one rank has called Init, quit
// also ends the job. Otherwise the job continues until the ranks end, for example by SIGQUIT. quit
// does not block: it does all this when an inspection has ended.
func (r *run) quit() {
	r.inspect(inspectRequest{stacks: true, dir: r.stacksDir, then: func(a inspected) {
		if a.weft { // print the answer even if the job has ended, because it names the files with the stacks
			r.printInspected("signal 3 (SIGQUIT): the job does this:", a)
		}
		if r.phase != phaseRunning {
			return
		}
		r.signaled = syscall.SIGQUIT
		r.node.Do(proto.Signal{Signal: int(syscall.SIGQUIT)})
		if a.weft {
			r.fail(cause{rank: -1, end: true}, Failure{Rank: -1, Host: r.host, Signal: syscall.SIGQUIT}, proto.ExitSignalFloor+int(syscall.SIGQUIT))
		}
	}})
}

// suspendLimit bounds how long suspend waits until gorun has written the message with SIGTSTP to
// the connections with the agents.
const suspendLimit = time.Second

// suspend stops the ranks and then gorun itself, as ^Z does. When the shell continues gorun,
// suspend continues the ranks. The ranks are in process groups of their own, so the terminal sends
// its SIGTSTP only to gorun.
func (r *run) suspend() {
	r.node.Do(proto.Signal{Signal: int(syscall.SIGTSTP)})
	r.node.Flush(suspendLimit)
	suspend()
	r.node.Do(proto.Signal{Signal: int(syscall.SIGCONT)})
}

// kill makes the hosts send SIGKILL to every rank, without a grace period. Only the first call has
// an effect.
func (r *run) kill() {
	if !r.killed {
		r.killed = true
		r.node.Do(proto.End{Except: -1})
	}
}
