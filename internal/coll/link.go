// Package coll implements the collective algorithms on bytes, one algorithm per file. An
// algorithm is blocking code over a [Link]; it knows neither element types nor transports.
// Package internal/mpi passes it the program's slices as bytes, and runs the same code on another
// goroutine for the nonblocking calls.
//
// # Rules for every algorithm
//
//   - The messages of a call do not depend on whether a length is zero: ranks send empty messages
//     too. If a program passes different counts on different ranks, and a rank with nothing to send
//     sent no message, a rank that expects its message would wait forever.
//   - Each receive states the exact length. If the message has another length, the receive returns
//     an error. An error on one rank ends the call on all ranks, because the caller revokes the
//     communicator.
//   - The order in which operands are combined depends only on the arguments, the ranks, the
//     [Config] and the algorithm, never on timing.
//   - No algorithm relies on a Send that returns before the matching Recv is posted.
//   - An algorithm that returns nil has waited for all its transfers. An algorithm that returns
//     an error leaves its pending transfers as they are, because it cannot end them. The caller
//     then revokes the communicator, which ends the transfers, calls WaitAll, and only then
//     reuses the buffers.
//
// # Costs
//
// The file of an algorithm states its cost in the number of ranks P, the latency α of a message,
// the times β to transfer and γ to combine a byte, and n. Unless the file defines n, it is the
// length of the vector in bytes.
package coll

// Link is one rank's access to one running collective call: point-to-point messages that belong
// to this call alone. Ranks are numbered from 0 to Size()-1. The n-th message that rank a sends to
// rank b matches the n-th receive of rank b from rank a. One goroutine at a time uses a Link.
type Link interface {
	Rank() int
	Size() int

	// Send blocks until buf may be reused.
	Send(buf []byte, dest int) error
	// Recv blocks until exactly len(buf) bytes have arrived from source.
	Recv(buf []byte, source int) error
	// Sendrecv sends and receives at once, so that rings and exchanges cannot deadlock.
	Sendrecv(send []byte, dest int, recv []byte, source int) error

	// Isend and Irecv start a transfer and return a ticket for Wait. Until Wait or WaitAll has
	// waited for the transfer, the caller must not write to buf; after Irecv it must not read buf
	// either.
	Isend(buf []byte, dest int) Ticket
	Irecv(buf []byte, source int) Ticket
	// Wait blocks until the transfer t has ended. WaitAll blocks until all pending transfers have
	// ended, even if one of them fails. Both return the error of a transfer that failed. If the
	// context of the call ends first, they return its error, and transfers may still be pending.
	Wait(t Ticket) error
	WaitAll() error

	// Scratch returns n bytes of undefined contents, aligned for any element type and valid until
	// the call ends. Implementations reuse the memory of earlier calls.
	Scratch(n int) []byte
}

// Ticket identifies a transfer started on a [Link].
type Ticket int

// Op is the operation of a reduction, over elements of Size bytes. As in MPI_Op, the left operand
// is that of the lower rank.
type Op struct {
	Size     int  // bytes of an element
	Commutes bool // the order of operands does not matter; all operations are associative

	// Reduce2 is the reduction on two buffers of equal length: inout[i] = in[i] ∘ inout[i] for each
	// element i.
	Reduce2 func(inout, in []byte)

	// Reduce3 is the reduction on three buffers of equal length: dst[i] = left[i] ∘ right[i]. dst
	// may be the same slice as left or right. Reduce3 may be nil.
	Reduce3 func(dst, left, right []byte)
}
