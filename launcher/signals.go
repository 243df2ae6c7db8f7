package launcher

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/weft-hpc/weft/launcher/proto"
)

// caught are the signals that are passed on to the ranks.
var caught = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGHUP,
}

// catchSignals begins to catch; a job under nohup goes on ignoring HUP, and one that a
// script has put into the background INT and QUIT. PIPE is
// caught so that a write whose reader has gone fails, and does not end gorun.
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

// asksToEnd says whether a program that does not know a signal ends by it, so
// that the job does not go on without its ranks.
func asksToEnd(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGQUIT || s == syscall.SIGHUP
}

// buildContext ends when a signal asks for it, while programs are built and no
// rank is there to get it.
func buildContext(ctx context.Context, signals <-chan os.Signal) (_ context.Context, stop func() syscall.Signal) {
	ctx, cancel := context.WithCancel(ctx)
	got := make(chan syscall.Signal, 1)
	go func() { // ends with ctx; stop waits for it
		defer close(got)
		for {
			select {
			case s := <-signals:
				sig, ok := s.(syscall.Signal)
				switch {
				case ok && asksToEnd(sig):
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

// endedEarly is the error of a job that a signal ends before there are ranks.
func endedEarly(sig syscall.Signal) error {
	return &startError{proto.ExitSignalFloor + int(sig), "ended by " + signalName(sig) + " before the ranks were started"}
}
