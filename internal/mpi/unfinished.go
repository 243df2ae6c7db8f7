package mpi

import (
	"context"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
)

// Unfinished is part of the error of a blocking send or receive if the call ended while a transfer
// was in progress that cannot be withdrawn, as a rule because the context ended. errors.As finds
// it. Unfinished wraps the error that ended the call.
//
// The transfer continues and uses the call's buffers until [Unfinished.Wait] has returned, with an
// error other than its ctx's or without one. If a program does not use the buffers again, it need
// not call Wait.
type Unfinished struct {
	why   error                // the error that ended the call
	parts []*engine.Unfinished // the call's transfers that still run
	use   *bufcheck.Operation  // the checker's record of the call; nil without a checker
}

// Error returns a text that says that buffers are in use.
func (u *Unfinished) Error() string { return u.why.Error() }

// Unwrap returns the error that ended the call.
func (u *Unfinished) Unwrap() error { return u.why }

// Wait blocks until the caller may use the call's buffers again. For a send, Wait returns nil if
// the message has been sent (for a synchronous send: has been matched), else the send's error. For
// a receive, Wait returns nil. If ctx ends first, Wait returns ctx's error, and may be called
// again. With the tunable check, Wait returns ErrInUse if the program has changed the buffer of a
// send.
func (u *Unfinished) Wait(ctx context.Context) error {
	var first error
	for _, p := range u.parts {
		err := p.Wait(ctx)
		if isContext(err) {
			return err
		}
		if first == nil {
			first = err
		}
	}
	return u.use.End(first)
}

// endCall returns the error of a blocking call on the communicator s. err is the engine's error for
// the call, and p is the checker's record of the call, or nil. If both are nil, there is nothing to
// do; otherwise endCall does what unfinished does.
//
// Hot path: no allocation if p and err are nil.
func endCall(s *state, p *bufcheck.Operation, err error) error {
	if p == nil && err == nil {
		return nil
	}
	return unfinished(s, p, err)
}

// unfinished returns the error of a blocking call on the communicator s. errs are the engine's
// errors for the transfers of the call, and p is the checker's record of the call, or nil. If no
// error is an engine.Unfinished, unfinished ends p and returns the first of errs, or ErrInUse (see
// Operation.End). Otherwise it returns an Unfinished that wraps the first of errs, and whose Wait
// waits for every engine.Unfinished. Then p stays pending until that Wait returns.
func unfinished(s *state, p *bufcheck.Operation, errs ...error) error {
	var parts []*engine.Unfinished
	for _, err := range errs {
		if u, ok := err.(*engine.Unfinished); ok { //nolint:errorlint // the engine does not wrap it
			parts = append(parts, u)
		}
	}
	if parts == nil {
		return p.End(errs[0])
	}
	if p != nil {
		p.Began(s, engine.Request{}, parts...)
	}
	return &Unfinished{why: errs[0], parts: parts, use: p}
}
