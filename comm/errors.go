package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Reasons of errors: test for them with errors.Is. Most errors of this package wrap one of them, or
// the error of a context that has ended (context.Canceled, context.DeadlineExceeded). Some, for
// example of Init and Alloc, wrap an error of the system, of a transport or of the launcher
// instead.
var (
	// ErrTruncate: the message is longer than the receive buffer, which holds the part that fits.
	ErrTruncate = mpi.ErrTruncate
	// ErrProcFailed: a process that the call needs has failed.
	ErrProcFailed = mpi.ErrProcFailed
	// ErrProcFailedPending: a process has failed, and a nonblocking receive from AnySource, which
	// may have waited for that process, continues: its request is not complete. After
	// [Comm.AckFailed] the program may wait for it again (ULFM, MPIX_ERR_PROC_FAILED_PENDING). It
	// wraps ErrProcFailed.
	ErrProcFailedPending = mpi.ErrProcFailedPending
	// ErrFinalized: a rank that the call needs has called Finalize, or its function in Main has
	// returned. See [Comm.Finalize].
	ErrFinalized = mpi.ErrFinalized
	// ErrRevoked: the communicator or window was revoked. The text of the error says why.
	ErrRevoked = mpi.ErrRevoked
	// ErrClosed: the communicator is nil or freed, or the job is finalized.
	ErrClosed = mpi.ErrClosed
	// ErrMismatch: ranks call different collectives, pass different arguments, or send and receive
	// elements of different types.
	ErrMismatch = mpi.ErrMismatch
	// ErrNotSupported: the transport, or this build of the program, cannot do this.
	ErrNotSupported = mpi.ErrNotSupported

	// ErrRank: the communicator, window or group does not have this rank, or a list names a rank
	// twice.
	ErrRank = mpi.ErrRank
	// ErrTag: the tag is out of range (for messages: 0 to MaxTag; receives and probes also accept
	// AnyTag).
	ErrTag = mpi.ErrTag
	// ErrCount: a length, count or displacement is negative, too large or does not fit the others,
	// or a message is not a whole number of elements.
	ErrCount = mpi.ErrCount
	// ErrType: the element type holds pointers or does not suit the call, or a value cannot be
	// encoded or decoded.
	ErrType = mpi.ErrType
	// ErrLayout: a layout does not exist: a count is negative, an int cannot count its elements, or
	// the arguments of its constructor contradict each other.
	ErrLayout = layout.ErrLayout
	// ErrDevice: a copy from or to a [Device] failed, or the call does not accept device memory.
	ErrDevice = elem.ErrDevice
	// ErrOp: the operation is nil or zero, does not exist for the element type or the call, or has
	// panicked or called runtime.Goexit.
	ErrOp = mpi.ErrOp
	// ErrBuffer: two slices of the call share memory in a way that the call does not permit.
	ErrBuffer = mpi.ErrBuffer
	// ErrInUse: a buffer has changed while a send used it, or an operation writes memory that
	// another one uses. Only with the tunable check (WEFT_CHECK=1).
	ErrInUse = mpi.ErrInUse
	// ErrArg: another argument is wrong, for example a colour, the stride of a range, or a nil
	// message.
	ErrArg = mpi.ErrArg
	// ErrGroup: the group has a process that the communicator does not have, lacks the caller, or
	// differs between ranks.
	ErrGroup = mpi.ErrGroup
	// ErrInit: Init was called before, and may not be called again.
	ErrInit = mpi.ErrInit

	// ErrPort: the text is not the address of a port, no process listens there, or the secret in
	// the address is wrong; ranks have not connected in time; no port has the published name, or
	// another one has it already; or the system refuses to open or publish a port.
	ErrPort = mpi.ErrPort
	// ErrSpawn: the launcher has not started the processes, or cannot start further processes at
	// all.
	ErrSpawn = mpi.ErrSpawn

	// ErrConcurrent says that another goroutine is in a collective of the same communicator. Use a
	// lock, or a communicator for each goroutine (Dup).
	ErrConcurrent = mpi.ErrConcurrent

	// ErrWin: the window is nil or was freed.
	ErrWin = mpi.ErrWin
	// ErrRMASync: the operation needs an epoch that is not open, or the call does not fit the open
	// epoch.
	ErrRMASync = mpi.ErrRMASync
	// ErrRMARange: the elements are not within the target's part of the window.
	ErrRMARange = mpi.ErrRMARange
	// ErrRMAAttach: memory cannot be attached to a window or detached from it.
	ErrRMAAttach = mpi.ErrRMAAttach
	// ErrRMAShared: not all ranks of the window share memory.
	ErrRMAShared = mpi.ErrRMAShared
	// ErrDisp: the displacement is negative.
	ErrDisp = mpi.ErrDisp
	// ErrLockType: the kind of lock is neither LockShared nor LockExclusive.
	ErrLockType = mpi.ErrLockType
)

// Error is the type of the errors of this package, except those of [Unfinished].Wait. Finalize may
// return several, joined by errors.Join. The fields are:
//
//	Op   string // the call, such as "Send"
//	Comm string // the communicator or window, such as "world" or "win 0.4"; may be empty
//	Peer int    // the rank of the other side, or a wrong rank, or a rank that the call waited
//	            // for when its context ended; may be AnySource; Undefined: none
//	Tag  int    // the tag; may be AnyTag; Undefined: none
//	Err  error  // the reason, which errors.Is and errors.As find
type Error = mpi.Error

// ProcFailedError is part of the error of a call that needs a failed process; errors.As finds it.
// It wraps ErrProcFailed. The field is:
//
//	Ranks []int // the failed ranks of the call's communicator or window that the call needs, in
//	            // ascending order; empty if only another rank knows them
//
// More ranks may have failed; see [Comm.FailedRanks].
type ProcFailedError = mpi.ProcFailedError

// RevokedError is part of the error of a call on a communicator or window that was revoked;
// errors.As finds it. It wraps ErrRevoked. The fields are:
//
//	By    int    // world rank of the process that has revoked it, or forwarded the revocation
//	Cause string // the error that was the reason on that rank, for example that of a failed collective
type RevokedError = mpi.RevokedError

// Unfinished stands for the transfers that continue although their call has returned an error, as a
// rule because its context has ended. The call was Send, Recv, Sendrecv or one of their variants,
// and the transfers had begun and cannot be withdrawn. errors.As finds the Unfinished in the call's
// error. It wraps the error that ended the call.
//
// The transfers use the call's buffers until the method Wait(ctx) of the Unfinished returns an
// error other than ctx's, or nil. A program that does not use the buffers again need not call Wait.
type Unfinished = mpi.Unfinished
