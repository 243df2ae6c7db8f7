package comm

import (
	"github.com/weft-hpc/weft/internal/mpi"
)

// Reasons of errors. Every error of this package wraps one of them, or the error of a context that
// has ended (context.Canceled, context.DeadlineExceeded): test for them with errors.Is.
var (
	ErrTruncate     = mpi.ErrTruncate     // the message is longer than the receive buffer, which holds the part that fits
	ErrProcFailed   = mpi.ErrProcFailed   // a process that the call needs has failed
	ErrFinalized    = mpi.ErrFinalized    // a rank that the call needs has called Finalize, or returned from Main; see Comm.Finalize
	ErrRevoked      = mpi.ErrRevoked      // the communicator was revoked; the text says why
	ErrClosed       = mpi.ErrClosed       // the communicator is nil or freed, or the job is finalized
	ErrMismatch     = mpi.ErrMismatch     // ranks call different collectives, pass different arguments, or send and receive elements of different types; the text names both sides
	ErrNotSupported = mpi.ErrNotSupported // the transport cannot do this

	ErrRank   = mpi.ErrRank   // the communicator does not have this source, destination or root
	ErrTag    = mpi.ErrTag    // the tag is not in [0, MaxTag], and AnyTag is not permitted here
	ErrCount  = mpi.ErrCount  // lengths, counts or displacements do not fit together, or a message is not a whole number of elements
	ErrType   = mpi.ErrType   // the element type holds pointers or does not suit the call, or a value cannot be encoded or decoded
	ErrOp     = mpi.ErrOp     // the operation is nil, is not defined for the element type, or has panicked
	ErrBuffer = mpi.ErrBuffer // the send and receive slices share memory and are not the same slice
	ErrInUse  = mpi.ErrInUse  // a buffer has changed while a send used it, or two operations use it; the text names the lines of the calls. Only with the tunable check (WEFT_CHECK=1)
	ErrArg    = mpi.ErrArg    // another argument is wrong: a colour, a list of groups, a nil message
	ErrGroup  = mpi.ErrGroup  // the group has processes that the communicator does not have, or ranks passed different groups
	ErrInit   = mpi.ErrInit   // Init was called twice

	// ErrConcurrent: another goroutine is in a collective of the same communicator. Use a lock, or
	// a communicator for each goroutine (Dup).
	ErrConcurrent = mpi.ErrConcurrent

	ErrWin      = mpi.ErrWin      // the window is nil or was freed
	ErrRMASync  = mpi.ErrRMASync  // the operation needs an epoch that is not open, or the call does not fit the open epoch
	ErrRMARange = mpi.ErrRMARange // the elements are not within the target's part of the window
	ErrDisp     = mpi.ErrDisp     // the displacement is negative
	ErrLockType = mpi.ErrLockType // the kind of lock is neither LockShared nor LockExclusive
)

// Error is the type of all errors of this package. Its fields are:
//
//	Op   string // the call, such as "Send"
//	Comm string // the communicator, such as "world" or "comm 0.3", or the window, such as "win 0.4"
//	Peer int    // the rank of the other side, or the root; Undefined if the call has none
//	Tag  int    // the tag; Undefined if the call has none
//	Err  error  // the reason, which errors.Is and errors.As find
type Error = mpi.Error

// Unfinished is a transfer that continues although the context of its call has ended. The call was
// Send, Recv, Sendrecv or one of their variants, and the transfer had begun and cannot be withdrawn.
// errors.As finds the Unfinished in the call's error. It wraps the error of the context.
//
// The transfer uses the call's buffers until its method Wait(ctx) returns. A program that does not
// use the buffers again need not call Wait.
type Unfinished = mpi.Unfinished
