package comm

import (
	"github.com/weft-hpc/weft/internal/mpi"
)

// The kinds of error, found by errors.Is in whatever this package returns.
// Besides these, an error may be that of a context that ended
// (context.Canceled, context.DeadlineExceeded).
var (
	ErrTruncate     = mpi.ErrTruncate     // the message is longer than the receive buffer, which holds the part that fits
	ErrProcFailed   = mpi.ErrProcFailed   // a process that the call needs is dead
	ErrFinalized    = mpi.ErrFinalized    // a rank that the call needs has called Finalize, or returned from Main; see Comm.Finalize
	ErrRevoked      = mpi.ErrRevoked      // the communicator was revoked; the text says why
	ErrClosed       = mpi.ErrClosed       // the communicator is nil or freed, or the job is finalized
	ErrMismatch     = mpi.ErrMismatch     // another rank calls a different collective, passes different arguments, or sends elements of another type; the text names both sides
	ErrNotSupported = mpi.ErrNotSupported // the transport in use cannot do it

	ErrRank   = mpi.ErrRank   // a source, destination or root that the communicator does not have
	ErrTag    = mpi.ErrTag    // not in [0, MaxTag], nor AnyTag where that is allowed
	ErrCount  = mpi.ErrCount  // lengths, counts or displacements that do not fit each other, or a message of no whole number of elements
	ErrType   = mpi.ErrType   // an element type that holds pointers, or a value that cannot be encoded
	ErrOp     = mpi.ErrOp     // a nil operation, one that the element type lacks, or one that panicked
	ErrBuffer = mpi.ErrBuffer // send and receive slices that share memory without being the very same slice
	ErrInUse  = mpi.ErrInUse  // a buffer that changed while a send used it, or that two operations use; the text names the lines of the calls. Only with the tunable check (WEFT_CHECK=1)
	ErrArg    = mpi.ErrArg    // any other argument: a colour, a list of groups, a nil message
	ErrGroup  = mpi.ErrGroup  // a group with ranks that the communicator does not have, or of which the ranks disagree
	ErrInit   = mpi.ErrInit   // Init called twice

	ErrConcurrent = mpi.ErrConcurrent

	ErrWin      = mpi.ErrWin      // it is nil or was freed
	ErrRMASync  = mpi.ErrRMASync  // an operation outside of an epoch, or epochs that do not go together
	ErrRMARange = mpi.ErrRMARange // elements beyond the target's part of a window
	ErrDisp     = mpi.ErrDisp     // a negative one
	ErrLockType = mpi.ErrLockType // neither LockShared nor LockExclusive
)

// Error says which call failed and why. All errors of this package are of this
// type; the reason is in Err and found by errors.Is and errors.As.
type Error = mpi.Error

// Unfinished is part of the error of a Send, Recv, Sendrecv or one of their variants if
// the context ended after a transfer had begun that cannot be withdrawn. errors.As finds
// it. It wraps the error of the context.
//
// The transfer goes on and uses the call's buffers until [Unfinished.Wait] returns. If a
// program does not use the buffers again, it need not call Wait.
type Unfinished = mpi.Unfinished
