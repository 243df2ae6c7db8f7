package mpi

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/rma"
	"github.com/weft-hpc/weft/transport"
)

// The kinds of error, found by errors.Is in whatever this package returns.
// Besides these, an error may be that of a context that ended
// (context.Canceled, context.DeadlineExceeded).
var (
	ErrTruncate     = engine.ErrTruncate        // the message is longer than the receive buffer, which holds the part that fits
	ErrProcFailed   = engine.ErrProcFailed      // a process that the call needs is dead
	ErrFinalized    = engine.ErrFinalized       // a rank that the call needs has called Finalize, or returned from Main; see Comm.Finalize
	ErrRevoked      = engine.ErrRevoked         // the communicator was revoked; the text says why
	ErrClosed       = engine.ErrClosed          // the communicator is nil or freed, or the job is finalized
	ErrMismatch     = engine.ErrMismatch        // another rank calls a different collective, passes different arguments, or sends elements of another type; the text names both sides
	ErrNotSupported = transport.ErrNotSupported // the transport in use cannot do it

	ErrRank   = errors.New("rank out of range")            // a source, destination or root that the communicator does not have
	ErrTag    = errors.New("tag out of range")             // not in [0, MaxTag], nor AnyTag where that is allowed
	ErrCount  = elem.ErrCount                              // lengths, counts or displacements that do not fit each other, or a message of no whole number of elements
	ErrType   = elem.ErrType                               // an element type that holds pointers, or a value that cannot be encoded
	ErrOp     = errors.New("operation cannot be applied")  // a nil operation, one that the element type lacks, or one that panicked
	ErrBuffer = errors.New("buffers overlap")              // send and receive slices that share memory without being the very same slice
	ErrInUse  = errors.New("buffer is in use")             // a buffer that changed while a send used it, or that two operations use; the text names the lines of the calls. Only with the tunable check (WEFT_CHECK=1)
	ErrArg    = errors.New("argument out of range")        // any other argument: a colour, a list of groups, a nil message
	ErrGroup  = errors.New("group does not fit")           // a group with ranks that the communicator does not have, or of which the ranks disagree
	ErrInit   = errors.New("job has already been started") // Init called twice

	ErrConcurrent = errors.New("another goroutine is in a collective of this communicator: their order would be a matter of chance; use a lock, or a communicator for each (Dup)")

	ErrWin      = errors.New("window cannot be used")     // it is nil or was freed
	ErrRMASync  = rma.ErrEpoch                            // an operation outside of an epoch, or epochs that do not go together
	ErrRMARange = rma.ErrRange                            // elements beyond the target's part of a window
	ErrDisp     = errors.New("displacement out of range") // a negative one
	ErrLockType = errors.New("no such kind of lock")      // neither LockShared nor LockExclusive
)

// noRank stands in Error.Peer and Error.Tag where a call has none.
const noRank = Undefined

// Error says which call failed and why. All errors of this package are of this
// type; the reason is in Err and found by errors.Is and errors.As.
type Error struct {
	Op   string // the function, as "Send"
	Comm string // the communicator, as "world" or "comm 0.3", or the window, as "win 0.4"
	Peer int    // rank of the other side or the root; Undefined where there is none
	Tag  int    // Undefined where there is none
	Err  error
}

// Error tells the error in one line.
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

// fail wraps err for a call on c; nil stays nil. It is kept out of line so
// that the calls that succeed do not carry its code.
//
//go:noinline
func (c *Comm) fail(op string, peer, tag int, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := err.(*Error); ok { //nolint:errorlint // one that is wrapped is the reason, not the error
		return err
	}
	return &Error{Op: op, Comm: c.name(), Peer: peer, Tag: tag, Err: err}
}

// isContext says whether err is that of a context that ended.
func isContext(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
