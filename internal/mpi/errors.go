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
	// ErrTruncate: the message is longer than the receive buffer, which holds the part that fits.
	ErrTruncate = engine.ErrTruncate
	// ErrProcFailed: a process that the call needs has failed.
	ErrProcFailed = engine.ErrProcFailed
	// ErrProcFailedPending: a process has failed, and a nonblocking receive from any source, which may
	// have waited for that process, goes on. It wraps ErrProcFailed.
	ErrProcFailedPending = engine.ErrPending
	// ErrFinalized: a rank that the call needs has called Finalize, or its function in Main has
	// returned. See comm.Comm.Finalize.
	ErrFinalized = engine.ErrFinalized
	// ErrRevoked: the communicator or window was revoked. The text of the error says why.
	ErrRevoked = engine.ErrRevoked
	// ErrClosed: the communicator is nil or freed, or the job is finalized.
	ErrClosed = engine.ErrClosed
	// ErrMismatch: ranks call different collectives, pass different arguments, or send and receive
	// elements of different types.
	ErrMismatch = engine.ErrMismatch
	// ErrNotSupported: the transport, or this build of the program, cannot do this.
	ErrNotSupported = transport.ErrNotSupported

	// ErrRank: the communicator, window or group does not have this rank, or a list names a rank
	// twice.
	ErrRank = errors.New("rank out of range")
	// ErrTag: the tag is out of range (for messages: 0 to MaxTag; receives and probes also accept
	// AnyTag).
	ErrTag = errors.New("tag out of range")
	// ErrCount: a length, count or displacement is negative, too large or does not fit the others,
	// or a message is not a whole number of elements.
	ErrCount = elem.ErrCount
	// ErrType: the element type holds pointers or does not suit the call, or a value cannot be
	// encoded or decoded.
	ErrType = elem.ErrType
	// ErrOp: the operation is nil or zero, does not exist for the element type or the call, or has
	// panicked or called runtime.Goexit.
	ErrOp = errors.New("operation cannot be applied")
	// ErrBuffer: two slices of the call share memory in a way that the call does not permit.
	ErrBuffer = errors.New("buffers overlap")
	// ErrInUse: a buffer has changed while a send used it, or an operation writes memory that
	// another one uses. Only with the tunable check (WEFT_CHECK=1).
	ErrInUse = bufcheck.ErrInUse
	// ErrArg: another argument is wrong, for example a colour, the stride of a range, or a nil
	// message.
	ErrArg = errors.New("argument out of range")
	// ErrGroup: the group has a process that the communicator does not have, lacks the caller, or
	// differs between ranks.
	ErrGroup = errors.New("group does not fit")
	// ErrInit: Init was called before, and may not be called again.
	ErrInit = errors.New("job has already been started")

	// ErrPort: the text is not the address of a port, nobody listens at the port, the secret in the
	// address is wrong, or there is no such published name.
	ErrPort = errors.New("no connection by this port")
	// ErrSpawn: the launcher has not started the processes, or cannot start any.
	ErrSpawn = errors.New("the processes were not started")

	ErrConcurrent = errors.New("another goroutine is in a collective of this communicator, so the order of the two calls is undefined: use a lock, or a communicator for each goroutine (Dup)")

	// ErrWin: the window is nil or was freed.
	ErrWin = errors.New("window cannot be used")
	// ErrRMASync: the operation needs an epoch that is not open, or the call does not fit the open
	// epoch.
	ErrRMASync = rma.ErrEpoch
	// ErrRMARange: the elements are not within the target's part of the window.
	ErrRMARange = rma.ErrRange
	// ErrRMAAttach: memory cannot be attached to a window or detached from it.
	ErrRMAAttach = rma.ErrAttach
	// ErrRMAShared: not all ranks of the window share memory.
	ErrRMAShared = rma.ErrShared
	// ErrDisp: the displacement is negative.
	ErrDisp = errors.New("displacement out of range")
	// ErrLockType: the kind of lock is neither LockShared nor LockExclusive.
	ErrLockType = errors.New("no such kind of lock")
)

// noRank is the value of Error.Peer for a call without a peer, and of Error.Tag for a call without
// a tag.
const noRank = Undefined

// Error is the type of the errors of this package, except those of Unfinished.Wait. Finalize may
// return several, joined by errors.Join. An Error holds the call that failed and the reason, which
// errors.Is and errors.As find.
type Error struct {
	Op string // the call, such as "Send"
	// Comm is the communicator, such as "world" or "comm 0.3", or the window, such as "win 0.4". It
	// is empty if the call has none, or if the communicator or window is nil.
	Comm string
	// Peer is the rank of the other side, which may be AnySource. For a method of Group, Peer is
	// the wrong rank. If a context has ended a collective or another call that needs several ranks,
	// Peer is a rank that the call waited for. Undefined: none.
	Peer int
	Tag  int   // the tag; may be AnyTag; Undefined: none
	Err  error // the reason
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
	var w *waitError
	if peer == noRank && errors.As(err, &w) {
		peer = w.rank
	}
	return &Error{Op: op, Comm: c.name(), Peer: peer, Tag: tag, Err: c.withRanks(err, peer)}
}

// isInterruption reports whether err, the error of a wait, leaves the operation as it is.
func isInterruption(err error) bool { return isContext(err) || errors.Is(err, ErrProcFailedPending) }

// isContext reports whether err is the error of a context that has ended.
func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
