package comm

import (
	"context"

	"github.com/weft-hpc/weft/internal/mpi"
)

// Init starts weft in this process and returns the world, the communicator of all processes of the
// job (MPI_Init, MPI_COMM_WORLD). It may block until every process has called it, or until ctx
// ends. ctx becomes the context of the world and of communicators made from it. If no launcher has
// started the process, the world has one rank, and Init opens no socket. In a job of several ranks
// Init raises GOMAXPROCS to at least 2, unless the environment sets GOMAXPROCS.
//
// A process calls Init once; a second call returns ErrInit. A process that no launcher has started
// may call Init again after Finalize. Most programs call [Main] instead.
func Init(ctx context.Context) (*Comm, error) {
	c, err := mpi.Init(ctx, mpi.Setup{})
	return (*Comm)(c), err
}

// Finalize ends weft in this process (MPI_Finalize). It blocks until every process of the job has
// called it, sends the messages that still wait to be sent, and closes all communicators; c may be
// any of them. Finalize first waits for the nonblocking collectives that this rank has started.
// After that the rank sends and receives no messages of the program. Messages that it sent earlier
// can still be received.
//
// On other ranks, calls that wait for a call of this rank fail with [ErrFinalized]:
//   - receives and blocking probes that name this rank, and sends that this rank would have
//     to receive. A receive from AnySource continues to wait, because the caller can still
//     send to itself;
//   - collectives that need this rank, on communicators and windows, for example Dup, Split,
//     NewWin, Fence, [Comm.Free] and [Win.Free];
//   - Start and Wait of a window with this rank;
//   - Agree and Shrink of a communicator of this rank. They fail within about a second for each
//     rank in Finalize, or later if a host has 64 or more ranks.
//
// This rank still serves the operations of other ranks with its part of a window until all
// ranks have called Finalize. So Lock, LockAll, Put, Get, accumulates and Flush succeed.
// But Finalize does not release a lock that this rank holds: on another rank, Lock of the
// same part blocks until the context of that rank's window ends. Call Unlock before Finalize.
//
// Finalize closes everything even if it returns an error. If a process has failed,
// Finalize does not wait for the others and returns [ErrProcFailed]; but if the job
// outlives processes that fail (gorun -on-failure notify), Finalize waits for the
// processes that live, and a failure is not an error. A second Finalize returns
// [ErrClosed]. ErrMismatch has the same meaning as in [Comm.Free], for the world.
//
// If a request has failed and the program has neither waited for it nor tested it to its
// end, Finalize returns the request's error. This holds for wrong arguments, a message that
// is too long and types that differ; the failure of a process, Revoke and the end of a
// context do not count. If requests are not complete, or if messages have arrived that the
// program has not received, Finalize writes one line to stderr with their numbers, unless
// Finalize returns an error or a process has failed. If the tunable check is on
// (WEFT_CHECK=1), the error and the line name the calls and the lines of the program that
// started them. For these reports Finalize waits up to a second for the transfers of
// requests that the program has not waited for.
//
// Finalize must not run at the same time as other calls.
func (c *Comm) Finalize() error { return c.in().Finalize() }

// Abort ends the whole job at once with an exit code from 1 to 255, and does not return
// (MPI_Abort). It replaces any other code by 1. Deferred calls do not run. For a nil communicator,
// Abort ends this process only.
func (c *Comm) Abort(code int) { c.in().Abort(code) }

// Main runs a whole program: it calls Init, then run with the world, and then Finalize.
//
//	func main() {
//		comm.Main(func(c *comm.Comm) error {
//			...
//			return nil
//		})
//	}
//
// If Init fails, Main writes the error to stderr and ends the process with exit code 1. If run
// returns an error or panics, Main writes the error, or the panic with its stack, to stderr with
// the process's rank, and aborts the whole job with exit code 1, or 2 for a panic. If the error
// wraps one with a method ExitCode() int, such as an *exec.ExitError, and the method returns 1 to
// 255, that is the exit code of the job. Main also aborts the job if run has started a request that
// failed and has not waited for it; see [Comm.Finalize]. Under gorun, Main does not write an error
// that only follows from ErrProcFailed or ErrRevoked, because gorun writes the first failure of the
// job. Main returns only if run and Finalize succeed. run may call Finalize itself. If another
// goroutine panics, the process ends as any Go program does, and the launcher ends the job.
func Main(run func(c *Comm) error) { mpi.Main(func(c *mpi.Comm) error { return run((*Comm)(c)) }) }

// MainContext is [Main] with a context. run gets a child of ctx, which is also the context of c.
// The signal SIGTERM ends this context: calls on c that block return context.Canceled, and run can
// save its state and return. If run returns nil, MainContext calls Finalize and returns, as Main
// does. To communicate after the signal, use c.WithContext(context.WithoutCancel(ctx)). A second
// SIGTERM ends the process at once.
//
//	comm.MainContext(context.Background(), func(ctx context.Context, c *comm.Comm) error { … })
//
// gorun sends SIGTERM to all ranks when it ends the job, for example because gorun itself got
// SIGTERM or SIGINT. It kills the ranks that have not ended after the time of -grace.
func MainContext(ctx context.Context, run func(ctx context.Context, c *Comm) error) {
	mpi.MainContext(ctx, func(ctx context.Context, c *mpi.Comm) error { return run(ctx, (*Comm)(c)) })
}
