package comm

import (
	"context"
	"iter"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Message is a message that a matched probe ([Comm.Mprobe], [Comm.Improbe]) has taken out of
// matching: no other receive or probe finds it. The program must receive it once, by [Mrecv] or
// [Imrecv] (MPI_Message, MPI 4.1 §3.8.2).
type Message mpi.Message

// Probe blocks until a message from source (or AnySource) with a tag (or AnyTag) has arrived, and
// returns its [Status] without receiving it (MPI_Probe, MPI 4.1 §3.8). Status.Bytes is the
// message's length; [CountOf] returns its number of elements. If source is ProcNull, Probe returns
// at once, with the Status that [Recv] returns. If another goroutine may receive the message first,
// use [Comm.Mprobe].
//
// Errors: ErrRank, ErrTag, ErrProcFailed, ErrFinalized, ErrRevoked, ErrClosed, or the context's
// error.
func (c *Comm) Probe(source, tag int) (Status, error) {
	st, err := c.in().Probe(source, tag)
	return probed(st, err == nil), err
}

// Iprobe is [Comm.Probe], except that it does not block (MPI_Iprobe). ok reports whether such a
// message has arrived.
func (c *Comm) Iprobe(source, tag int) (st Status, ok bool, err error) {
	found, ok, err := c.in().Iprobe(source, tag)
	return probed(found, ok), ok, err
}

// Mprobe is [Comm.Probe], except that it takes the message out of matching (MPI_Mprobe); see
// [Message]. Errors: those of Probe.
func (c *Comm) Mprobe(source, tag int) (*Message, Status, error) {
	m, st, err := c.in().Mprobe(source, tag)
	return (*Message)(m), probed(st, err == nil), err
}

// Improbe is [Comm.Mprobe], except that it does not block (MPI_Improbe). If no such message has
// arrived, it returns a nil message.
func (c *Comm) Improbe(source, tag int) (*Message, Status, error) {
	m, st, err := c.in().Improbe(source, tag)
	return (*Message)(m), probed(st, m != nil), err
}

// Messages returns the messages that arrive with a tag (or AnyTag) from any rank, in the order of
// their arrival, until ctx ends:
//
//	for m, err := range c.Messages(ctx, tag) {
//		if err != nil {
//			return err
//		}
//		order, st, err := comm.MrecvValue[order](m) // or Mrecv, Imrecv
//		…
//	}
//
// The loop blocks for each message as [Comm.Mprobe] does, and its body, or a goroutine that the
// body starts, must receive the message. Several goroutines may run such loops, and each message
// comes to one of them. When ctx ends, the loop ends without an error, and another call can still
// receive the messages that the loop has not yielded. The context of c ends the calls that receive,
// but not the loop.
//
// Another error, such as ErrProcFailed, ErrRevoked or ErrTag, comes with a nil message and ends the
// loop. After a failure and [Comm.AckFailed] the program may begin another loop.
func (c *Comm) Messages(ctx context.Context, tag int) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		for m, err := range c.in().Messages(ctx, tag) {
			if !yield((*Message)(m), err) {
				return
			}
		}
	}
}

// Status returns the Status of the message, as the probe that found the message has returned it:
// Status.Count is Undefined, and [CountOf] returns the number of elements. For a nil or zero
// message it returns the zero Status. Status is local.
func (m *Message) Status() Status {
	st, ok := (*mpi.Message)(m).Status()
	return probed(st, ok)
}

// Mrecv receives the message m into buf, and blocks until the message is in buf (MPI_Mrecv). buf
// needs room for the Status.Bytes of m's probe.
//
// Errors: those of [Recv]; ErrArg if m is nil or zero, or was received before. After ErrRevoked, m is
// lost. After ErrType or ErrInUse, m can still be received. If the context ends first, m counts as
// received, and Recv or another Mprobe can get the message.
func Mrecv[T any](m *Message, buf []T) (Status, error) {
	st, err := (*mpi.Message)(m).Mrecv(elem.View(buf))
	return received(st, elem.SizeOf[T]()), err
}

// Imrecv is [Mrecv], except that it does not block (MPI_Imrecv). buf belongs to the request until
// the request is complete.
func Imrecv[T any](m *Message, buf []T) Request {
	return Request((*mpi.Message)(m).Imrecv(elem.View(buf)))
}

// RecvAlloc receives a message of any length and returns its elements in a new slice (MPI_Mprobe
// and MPI_Mrecv). It blocks. Unlike Probe and Recv, it is safe if several goroutines receive
// messages with the same source and tag. If source is ProcNull, the slice is nil.
//
// Errors: those of [Recv] without ErrTruncate; ErrCount also if the message is larger than the
// memory of this host. After ErrCount the message is lost.
func RecvAlloc[T any](c *Comm, source, tag int) ([]T, Status, error) {
	m, n, st, err := c.in().MprobeSized(elem.Of[T](), source, tag)
	if err != nil || m == nil {
		return nil, received(st, elem.SizeOf[T]()), err
	}
	buf := make([]T, n)
	st, err = m.Mrecv(elem.View(buf))
	return buf, received(st, elem.SizeOf[T]()), mpi.RenamedTo(err, "RecvAlloc")
}
