// Package coll holds the collective algorithms, one to a file, on bytes. An
// algorithm is plain blocking code over a Link; it knows neither element types
// nor transports. Package comm puts a typed skin over it, and runs the same
// code on another goroutine for the nonblocking forms.
//
// # Rules that every algorithm keeps
//
//   - Every rank takes part in the same pattern whatever the sizes are, zero
//     included: a rank that returned early because it has nothing to send
//     would leave the others waiting where the ranks disagree on a count.
//   - Receives have the exact length; another length is an error, and an error
//     on one rank ends the call on all of them (the caller revokes the
//     communicator).
//   - The order in which operands are combined depends on ranks, sizes and the
//     algorithm only, never on timing.
//   - No algorithm counts on a Send that ends before its Recv is there.
//   - An algorithm that returns nil has waited for all its transfers. One that
//     returns an error leaves those that are under way, since it cannot end
//     them: the caller first revokes the communicator, so that they end, then
//     calls WaitAll, and only then gives the buffers back.
package coll

// Link is one rank's side of one running collective: point-to-point messages
// that only this call's ranks and this call see. Ranks are those of the
// communicator. Messages between two ranks match in the order of the calls.
// A Link is used by one goroutine.
type Link interface {
	Rank() int
	Size() int

	// Send blocks until buf may be reused.
	Send(buf []byte, dest int) error
	// Recv blocks until exactly len(buf) bytes have come from source.
	Recv(buf []byte, source int) error
	// Sendrecv does both at once, so that rings and exchanges cannot deadlock.
	Sendrecv(send []byte, dest int, recv []byte, source int) error

	// Isend and Irecv start a transfer and return a ticket for Wait. The
	// buffers belong to the transfer until then.
	Isend(buf []byte, dest int) Ticket
	Irecv(buf []byte, source int) Ticket
	// Wait ends one transfer; WaitAll all that are still under way, also when
	// one of them fails.
	Wait(t Ticket) error
	WaitAll() error

	// Scratch returns n bytes, aligned for any element type, valid until the
	// call ends. Its contents are undefined. It does not allocate in steady
	// state for sizes that were used before.
	Scratch(n int) []byte
}

// Ticket names a transfer started on a Link.
type Ticket int

// Op combines operands: inout[i] = in[i] ∘ inout[i] for count elements of Size
// bytes. As in MPI_Op, the left operand is in: the one of the lower rank.
type Op struct {
	Size     int  // bytes of an element
	Commutes bool // operands may be swapped; they may always be regrouped
	Combine  func(inout, in []byte)

	// Into puts left[i] ∘ right[i] into dst[i], where all are equally long and
	// dst may be the very slice that left or right is. nil: there is only Combine.
	Into func(dst, left, right []byte)
}
