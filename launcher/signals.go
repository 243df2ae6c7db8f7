package launcher

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/weft-hpc/weft/internal/sys"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// caught are the signals that gorun handles. gorun passes most of them to the ranks.
var caught = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGHUP,
	inspectSignal,
}

// inspectSignal makes gorun report what the ranks do. gorun does not pass it on.
const inspectSignal = sys.InspectSignal

// catchSignals begins to catch signals, except those that this process ignores: HUP under
// nohup, and INT and QUIT if a script has put gorun into the background. It catches PIPE
// so that a write to a pipe without a reader returns an error and does not end gorun.
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

// terminates reports whether a signal ends a process that has no handler for it, so that the job
// cannot continue.
func terminates(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGQUIT || s == syscall.SIGHUP
}

// signalContext returns a context that ends with ctx, or at a signal that ends gorun while no rank
// runs. stop ends the context and returns that signal, or 0.
func signalContext(ctx context.Context, signals <-chan os.Signal) (_ context.Context, stop func() syscall.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan syscall.Signal, 1)
	go func() { // ends with ctx; stop waits for it
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

// interruptible runs f, which reads or writes files before gorun starts ranks. f may take
// long, because a file is large or a file server does not answer. So interruptible returns
// early if a signal asks gorun to end, or at the job's timeout.
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

// endedBeforeStart returns the error of a job that a signal ends before gorun has started ranks.
func endedBeforeStart(sig syscall.Signal) error {
	return &startError{proto.ExitSignalFloor + int(sig), "ended by " + signalName(sig) + " before the ranks were started"}
}
