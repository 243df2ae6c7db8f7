package mpi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/engine"
)

// Main implements comm.Main, which documents the call. comm.Main is a function that calls Main, and
// not a variable with this value, because package stack must find the frame of comm.Main: there it
// stops its search for functions of the program.
func Main(run func(c *Comm) error) {
	main(context.Background(), run)
}

// MainContext implements comm.MainContext, which documents the call. The same holds for its frame.
func MainContext(ctx context.Context, run func(ctx context.Context, c *Comm) error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second signal ends the process
	main(ctx, func(c *Comm) error { return run(ctx, c) })
	stop()
}

// main does the work of Main with a context for Init and for the world.
func main(ctx context.Context, run func(c *Comm) error) {
	c, err := Init(ctx, Setup{})
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v\n", err)
		os.Exit(1)
	}
	guard(c, run)
	if c.s.job.closed.Load() {
		return
	}
	// The program has ended in good order, perhaps because ctx has ended.
	if err := c.WithContext(context.WithoutCancel(ctx)).Finalize(); err != nil {
		c.die(1, fmt.Sprintf("finalize: %v", err), "")
	}
}

// guard calls run, the function of the program. If run returns an error, panics, or ends its
// goroutine, guard aborts the job. It does the same if a request has failed and the program has not
// seen the error (see unreportedFailures), unless the program has called Finalize.
func guard(c *Comm, run func(c *Comm) error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil {
			c.die(2, fmt.Sprintf("panic: %v", p), "\n"+string(debug.Stack()))
			return
		}
		c.die(1, "the program ended its main goroutine", "") // by runtime.Goexit
	}()
	err := run(c)
	returned = true
	if j := c.s.job; !j.closed.Load() {
		if left := j.unreportedFailures(); err == nil {
			err = left
		} else if left != nil {
			err = fmt.Errorf("%w; %w", err, left)
		}
	}
	switch {
	case err == nil:
	case c.s.job.world.Launcher == "gorun" && isConsequence(err):
		c.abort(exitCode(err), err.Error(), true)
	default:
		c.die(exitCode(err), err.Error(), "")
	}
}

// exitCode returns the exit code of the job after the program has returned err: that of an error in
// err that has one from 1 to 255, otherwise 1.
func exitCode(err error) int {
	var e interface{ ExitCode() int }
	if errors.As(err, &e) {
		if code := e.ExitCode(); code >= 1 && code <= 255 {
			return code
		}
	}
	return 1
}

// isConsequence reports whether err follows from the failure of another rank, or from a revocation.
// If it does, a rank under gorun does not write err: it sends err to gorun with the abort, and
// gorun writes err only if it knows no earlier failure. An error that wraps several errors is a
// consequence if each of them is one; ErrPort, which only says in what the failure resulted, does
// not count. An [engine.ReasonError] or [engine.RevokedError] is one if isFailure returns true for
// it, and a [bootstrap.GoneError] always is.
func isConsequence(err error) bool {
	switch err := err.(type) { //nolint:errorlint // it looks at each error of the tree itself
	case *bootstrap.GoneError:
		return true
	case *engine.ReasonError, *engine.RevokedError:
		return isFailure(err)
	case interface{ Unwrap() []error }:
		some := false
		for _, e := range err.Unwrap() {
			if e == nil || e == ErrPort { //nolint:errorlint // it wraps nothing here
				continue
			}
			if !isConsequence(e) {
				return false
			}
			some = true
		}
		return some
	case interface{ Unwrap() error }:
		return isConsequence(err.Unwrap())
	}
	return err == ErrProcFailed || err == ErrRevoked //nolint:errorlint // err wraps nothing here
}

// die writes the reason to stderr, and after it the text more, for example a stack. Then it aborts
// the job; code is the exit code.
func (c *Comm) die(code int, reason, more string) {
	c.write(reason)
	fmt.Fprint(os.Stderr, more)
	c.abort(code, reason, false)
}

// write writes the reason of a failure to stderr, with the rank of this process in the world.
func (c *Comm) write(reason string) { fmt.Fprintf(os.Stderr, "rank %d: %s\n", c.worldRank(), reason) }
