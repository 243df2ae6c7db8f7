package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
)

// Send sends len(buf) elements to rank dest with the given tag, and blocks until buf may
// be reused, which may be before the message is received (MPI_Send, MPI 4.1 §3.2). T is
// any type without pointers. If dest is ProcNull, Send sends nothing. If one receive could
// match two messages that a rank sends to another on one communicator, it matches the one
// that was sent first.
//
// Errors: ErrRank, ErrTag, ErrType, ErrProcFailed, ErrFinalized, ErrRevoked, ErrClosed, or
// the context's. If the context ends before the transfer has begun, the message is
// withdrawn. Otherwise the error holds an [Unfinished], the message may still be received,
// and the program must not write to buf until [Unfinished.Wait] returns.
//
// Hot path: no allocation.
func Send[T any](c *Comm, buf []T, dest, tag int) error {
	return c.in().Send(elem.View(buf), dest, tag)
}

// Ssend is Send that blocks until the receive has been matched
// (MPI_Ssend, MPI 4.1 §3.4).
func Ssend[T any](c *Comm, buf []T, dest, tag int) error {
	return c.in().Ssend(elem.View(buf), dest, tag)
}

// Rsend is Send: a receive that is known to be posted makes nothing faster
// here (MPI_Rsend, MPI 4.1 §3.4).
func Rsend[T any](c *Comm, buf []T, dest, tag int) error {
	return c.in().Rsend(elem.View(buf), dest, tag)
}

// Bsend is Send that never waits for the receiver: it copies buf, which may be
// used again at once (MPI_Bsend, MPI 4.1 §3.6). The copy is freed when it has
// been sent; there is no buffer to attach. Free and Finalize wait until all
// copies are sent. Bsend does not report a delivery failure: Finalize does for
// the world.
func Bsend[T any](c *Comm, buf []T, dest, tag int) error {
	return c.in().Bsend(elem.View(buf), dest, tag)
}

// Recv receives up to len(buf) elements from rank source, or AnySource, with
// the given tag, or AnyTag, and blocks until they are there (MPI_Recv, MPI 4.1
// §3.2). buf belongs to the call. Status.Count says how many elements came.
// ProcNull as source: it returns at once, with Source ProcNull, Tag AnyTag and
// Count 0.
//
// Errors: ErrRank, ErrTag, ErrType, ErrProcFailed, ErrFinalized, ErrRevoked, ErrClosed, or
// the context's. If the message is longer than buf, Recv fills buf, drops the rest, and
// returns ErrTruncate; Status.Count is the message's length. If the message is not a whole
// number of elements, Recv returns ErrCount. If message and buf have elements of different
// types, Recv returns ErrMismatch.
//
// If the context ends first, the receive is withdrawn. A message that it has matched can
// be received again, before later messages. If the error holds an [Unfinished], the
// transport may write to buf until [Unfinished.Wait] returns, and a receive of that
// message waits until then.
//
// Hot path: no allocation.
func Recv[T any](c *Comm, buf []T, source, tag int) (Status, error) {
	st, err := c.in().Recv(elem.View(buf), source, tag)
	return Status(st), err
}

// Sendrecv sends send to dest and receives recv from source at the same time, so that
// exchanges and shifts cannot deadlock (MPI_Sendrecv, MPI 4.1 §3.10). The slices must not
// overlap (ErrBuffer); [SendrecvReplace] uses one slice. Sendrecv blocks until both
// transfers are complete and returns the receive's status. Either peer may be ProcNull,
// source may be AnySource, and recvtag may be AnyTag.
//
// Errors: those of Send and Recv. If the send fails or the context ends, the receive is
// withdrawn and Status.Cancelled is true. If Status.Cancelled is false, the receive had
// already ended: the Status describes its message, or it has failed, and the error holds
// both errors.
//
// Hot path: no allocation.
func Sendrecv[S, R any](c *Comm, send []S, dest, sendtag int, recv []R, source, recvtag int) (Status, error) {
	st, err := c.in().Sendrecv(elem.View(send), dest, sendtag, elem.View(recv), source, recvtag)
	return Status(st), err
}

// SendrecvReplace sends buf to dest and then receives into it from source
// (MPI_Sendrecv_replace, MPI 4.1 §3.10). It allocates a copy of buf. Where it fails
// buf may hold the old or the new elements. Errors: those of Sendrecv.
func SendrecvReplace[T any](c *Comm, buf []T, dest, sendtag, source, recvtag int) (Status, error) {
	st, err := c.in().SendrecvReplace(elem.View(buf), dest, sendtag, source, recvtag)
	return Status(st), err
}
