package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
)

// Send sends len(buf) elements to rank dest with a tag, and blocks until the program may reuse buf
// (MPI_Send, MPI 4.1 §3.2). That may be before the message is received. T is any type without
// pointers. If dest is ProcNull, Send sends nothing. Messages from one rank to another on one
// communicator do not overtake each other: if a receive could match two of them, it matches the one
// that was sent first.
//
// Errors: ErrRank, ErrTag, ErrType, ErrProcFailed, ErrFinalized, ErrRevoked, ErrClosed, or the
// context's error; ErrMismatch if Send waits for the receive and the receive has elements of
// another type. If the context ends before the transfer has begun, the message is withdrawn. If it
// ends later, the error holds an [Unfinished], the message may still be received, and the program
// must not write to buf until Wait of the [Unfinished] returns.
//
// Send does not allocate.
func Send[T any](c *Comm, buf []T, dest, tag int) error {
	return c.in().Send(elem.View(buf), dest, tag)
}

// Ssend is [Send], except that it blocks until a receive has matched the message (MPI_Ssend, MPI
// 4.1 §3.4).
func Ssend[T any](c *Comm, buf []T, dest, tag int) error {
	return c.in().Ssend(elem.View(buf), dest, tag)
}

// Rsend is the same as [Send] (MPI_Rsend, MPI 4.1 §3.4). A receive that is already posted permits
// no faster transfer.
func Rsend[T any](c *Comm, buf []T, dest, tag int) error {
	return c.in().Rsend(elem.View(buf), dest, tag)
}

// Bsend is [Send], except that it never waits for the receiver: it copies buf, and the program may
// reuse buf as soon as Bsend returns (MPI_Bsend, MPI 4.1 §3.6). The program attaches no buffer:
// Bsend allocates the copy, which is freed when the message has been sent. [Comm.Free] and
// [Comm.Finalize] wait until all copies have been sent. Bsend does not report a delivery failure
// that happens after it returns; for messages on the world, Finalize does.
func Bsend[T any](c *Comm, buf []T, dest, tag int) error {
	return c.in().Bsend(elem.View(buf), dest, tag)
}

// Recv receives up to len(buf) elements from rank source, or from any rank if source is AnySource,
// with a tag, or with any tag if tag is AnyTag (MPI_Recv, MPI 4.1 §3.2). It blocks until the
// message is in buf. [Status].Count is the number of elements received. If source is ProcNull, Recv
// returns at once; the Status then has Source ProcNull, Tag AnyTag and Count 0.
//
// Errors: ErrRank, ErrTag, ErrType, ErrProcFailed, ErrFinalized, ErrRevoked, ErrClosed, or the
// context's error. If the message is longer than buf, Recv fills buf, drops the rest, and returns
// ErrTruncate; Status.Count is the number of elements of the whole message. If the message is not a
// whole number of elements, Recv returns ErrCount. If the elements of the message and of buf have
// different types, Recv returns ErrMismatch.
//
// If the context ends first, the receive is withdrawn. A message that it has already matched, and
// that is not longer than buf, can be received again, before later messages. If the error holds an
// [Unfinished], the transport may write to buf until Wait of the [Unfinished] returns. A later
// receive of that message then waits until that transfer has ended.
//
// Recv does not allocate.
func Recv[T any](c *Comm, buf []T, source, tag int) (Status, error) {
	st, err := c.in().Recv(elem.View(buf), source, tag)
	return received(st, elem.SizeOf[T]()), err
}

// Sendrecv sends send to dest and receives recv from source at the same time, so that exchanges and
// shifts cannot deadlock (MPI_Sendrecv, MPI 4.1 §3.10). The slices must not overlap; see
// [SendrecvReplace]. Sendrecv blocks until both transfers are complete and returns the status of
// the receive. dest and source may be ProcNull, source may be AnySource, and recvtag may be AnyTag.
//
// Errors: those of [Send] and [Recv]; ErrBuffer if the slices overlap. If the send fails or the
// context ends, the receive is withdrawn, and Status.Cancelled is true. If the send fails and
// Status.Cancelled is false, the receive had ended before: it has received the message that the
// Status describes, or it has failed, too, and the error holds both errors.
//
// Sendrecv does not allocate.
func Sendrecv[S, R any](c *Comm, send []S, dest, sendtag int, recv []R, source, recvtag int) (Status, error) {
	st, err := c.in().Sendrecv(elem.View(send), dest, sendtag, elem.View(recv), source, recvtag)
	return received(st, elem.SizeOf[R]()), err
}

// SendrecvReplace sends the elements of buf to dest and receives into buf from source
// (MPI_Sendrecv_replace, MPI 4.1 §3.10). It blocks, as [Sendrecv] does, and sends from a copy of
// buf, which it allocates. After an error, the contents of buf are undefined: old elements, new
// ones, or some of each. Errors: those of [Sendrecv].
func SendrecvReplace[T any](c *Comm, buf []T, dest, sendtag, source, recvtag int) (Status, error) {
	st, err := c.in().SendrecvReplace(elem.View(buf), dest, sendtag, source, recvtag)
	return received(st, elem.SizeOf[T]()), err
}
