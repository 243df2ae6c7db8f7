package mpi

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
	"github.com/weft-hpc/weft/internal/rma"
	"github.com/weft-hpc/weft/transport"
)

// Reasons of errors; errors.Is finds them. Most errors of this package wrap one of them, or the
// error of a context that has ended (context.Canceled, context.DeadlineExceeded). Some, for example
// of Init and Alloc, wrap an error of the system, of a transport or of the launcher instead.
var (
	ErrTruncate     = engine.ErrTruncate        // the message is longer than the receive buffer, which holds the part that fits
	ErrProcFailed   = engine.ErrProcFailed      // a process that the call needs has failed
	ErrFinalized    = engine.ErrFinalized       // a rank that the call needs has called Finalize, or its function in Main has returned; see comm.Comm.Finalize
	ErrRevoked      = engine.ErrRevoked         // the communicator or window was revoked; the text says why
	ErrClosed       = engine.ErrClosed          // the communicator is nil or freed, or the job is finalized
	ErrMismatch     = engine.ErrMismatch        // ranks call different collectives, pass different arguments, or send and receive elements of different types
	ErrNotSupported = transport.ErrNotSupported // the transport, or this build of the program, cannot do this

	ErrRank   = errors.New("rank out of range")            // the communicator, window or group does not have this rank, or a list names a rank twice
	ErrTag    = errors.New("tag out of range")             // the tag is out of range (for messages: 0 to MaxTag; receives and probes also accept AnyTag)
	ErrCount  = elem.ErrCount                              // a length, count or displacement is negative, too large or does not fit the others, or a message is not a whole number of elements
	ErrType   = elem.ErrType                               // the element type holds pointers or does not suit the call, or a value cannot be encoded or decoded
	ErrOp     = errors.New("operation cannot be applied")  // the operation is nil or zero, does not exist for the element type or the call, or has panicked or called runtime.Goexit
	ErrBuffer = errors.New("buffers overlap")              // two slices of the call share memory in a way that the call does not permit
	ErrInUse  = bufcheck.ErrInUse                          // a buffer has changed while a send used it, or an operation writes memory that another one uses; only with the tunable check (WEFT_CHECK=1)
	ErrArg    = errors.New("argument out of range")        // another argument is wrong, for example a colour, the stride of a range, or a nil message
	ErrGroup  = errors.New("group does not fit")           // the group has a process that the communicator does not have, lacks the caller, or differs between ranks
	ErrInit   = errors.New("job has already been started") // Init was called before, and may not be called again

	ErrConcurrent = errors.New("another goroutine is in a collective of this communicator, so the order of the two calls is undefined: use a lock, or a communicator for each goroutine (Dup)")

	ErrWin      = errors.New("window cannot be used")     // the window is nil or was freed
	ErrRMASync  = rma.ErrEpoch                            // the operation needs an epoch that is not open, or the call does not fit the open epoch
	ErrRMARange = rma.ErrRange                            // the elements are not within the target's part of the window
	ErrDisp     = errors.New("displacement out of range") // the displacement is negative
	ErrLockType = errors.New("no such kind of lock")      // the kind of lock is neither LockShared nor LockExclusive
)

// noRank is the value of Error.Peer for a call without a peer, and of Error.Tag for a call without
// a tag.
const noRank = Undefined

// Error is the type of the errors of this package, except those of Unfinished.Wait. Finalize may
// return several, joined by errors.Join. An Error holds the call that failed and the reason, which
// errors.Is and errors.As find.
type Error struct {
	Op   string // the call, such as "Send"
	Comm string // the communicator, such as "world" or "comm 0.3", or the window, such as "win 0.4"; empty: none or nil
	Peer int    // the rank of the other side, or the wrong rank of a method of Group; may be AnySource; Undefined: none
	Tag  int    // the tag; may be AnyTag; Undefined: none
	Err  error  // the reason
}

// Error returns a text with the call, its communicator, peer and tag, and the reason.
func (e *Error) Error() string { return "comm: " + e.call() + ": " + e.Err.Error() }

// call returns the call with its communicator, peer and tag.
func (e *Error) call() string {
	var at []string
	if e.Comm != "" {
		at = append(at, e.Comm)
	}
	switch e.Peer {
	case noRank:
	case AnySource:
		at = append(at, "any source")
	default:
		at = append(at, fmt.Sprintf("rank %d", e.Peer))
	}
	switch e.Tag {
	case noRank:
	case AnyTag:
		at = append(at, "any tag")
	default:
		at = append(at, fmt.Sprintf("tag %d", e.Tag))
	}
	if len(at) == 0 {
		return e.Op
	}
	return e.Op + " (" + strings.Join(at, ", ") + ")"
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// fail returns err as an *Error of the call op on c, or nil if err is nil. If err is an *Error,
// fail returns err as it is. fail is not inlined, so that its callers stay small.
//
//go:noinline
func (c *Comm) fail(op string, peer, tag int, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*Error); ok { //nolint:errorlint // an *Error that err wraps is part of the reason
		return err
	}
	return &Error{Op: op, Comm: c.name(), Peer: peer, Tag: tag, Err: err}
}

// isContext reports whether err is the error of a context that has ended.
func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
