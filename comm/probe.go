package comm

import (
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/mpi"
)

// Message is a message that a matched probe took: no other receive or probe
// sees it any more, and Mrecv or Imrecv must receive it, once (MPI_Message,
// MPI 4.1 §3.8.2).
type Message mpi.Message

// Probe blocks until a message from source (or AnySource) with the given tag (or AnyTag)
// has arrived, and describes it without receiving it (MPI_Probe, MPI 4.1 §3.8).
// Status.Bytes is the message's length; [CountOf] returns its number of elements. If
// source is ProcNull, Probe returns at once, as Recv does. If another goroutine may
// receive the message first, use [Comm.Mprobe]. Errors: ErrRank, ErrTag, ErrProcFailed,
// ErrFinalized, ErrRevoked, ErrClosed, or the context's.
func (c *Comm) Probe(source, tag int) (Status, error) {
	st, err := c.in().Probe(source, tag)
	return Status(st), err
}

// Iprobe is Probe that does not block; ok says whether there is such a message
// (MPI_Iprobe).
func (c *Comm) Iprobe(source, tag int) (st Status, ok bool, err error) {
	found, ok, err := c.in().Iprobe(source, tag)
	return Status(found), ok, err
}

// Mprobe is Probe that also takes the message (MPI_Mprobe). Errors: those of
// Probe.
func (c *Comm) Mprobe(source, tag int) (*Message, Status, error) {
	m, st, err := c.in().Mprobe(source, tag)
	return (*Message)(m), Status(st), err
}

// Improbe is Mprobe that does not block; the message is nil where there is
// none (MPI_Improbe).
func (c *Comm) Improbe(source, tag int) (*Message, Status, error) {
	m, st, err := c.in().Improbe(source, tag)
	return (*Message)(m), Status(st), err
}

// Mrecv receives a message from Mprobe or Improbe into buf, and blocks until the message
// is in buf (MPI_Mrecv). buf needs room for m's Status.Bytes bytes. Errors: those of
// Recv; ErrArg if m is nil or was received. After ErrType, m can still be received. If
// the context ends first, m counts as received, and Recv or another Mprobe can get the
// message.
func Mrecv[T any](m *Message, buf []T) (Status, error) {
	st, err := (*mpi.Message)(m).Mrecv(elem.View(buf))
	return Status(st), err
}

// Imrecv is Mrecv that returns at once; buf belongs to the request until it is
// complete (MPI_Imrecv).
func Imrecv[T any](m *Message, buf []T) Request {
	return Request((*mpi.Message)(m).Imrecv(elem.View(buf)))
}

// RecvAlloc receives a message of any length into a slice of its own, which is
// the caller's (MPI_Mprobe and MPI_Mrecv). It blocks. Safe with any number of
// goroutines, unlike Probe and Recv. From ProcNull: nil. Errors: those of
// Recv without ErrTruncate, and ErrCount for a message that is larger than the
// memory of this host; after ErrCount the message is lost.
func RecvAlloc[T any](c *Comm, source, tag int) ([]T, Status, error) {
	m, n, st, err := c.in().MprobeSized(elem.Of[T](), source, tag)
	if err != nil || m == nil {
		return nil, Status(st), err
	}
	buf := make([]T, n)
	st, err = m.Mrecv(elem.View(buf))
	return buf, Status(st), mpi.RenamedTo(err, "RecvAlloc")
}

// SendValue sends any Go value that encoding/gob can encode, and blocks as
// Send does. Values of interface fields need gob.Register.
//
// Cost: for a small struct, SendValue and RecvValue together take about 1.2 µs and
// three allocations more than Send and Recv. For the first value of a type, for values above
// 64 KiB, and for types that hold interfaces, they take about ten times as long, because
// encoding/gob then describes the types again. Send of elements without pointers has none
// of this cost.
//
// Errors: those of Send; ErrType if gob cannot encode v.
func SendValue(c *Comm, v any, dest, tag int) error { return c.in().SendValue(v, dest, tag) }

// RecvValue receives a value sent by SendValue into what v points to, by the
// rules of encoding/gob, and blocks. Status.Count is 1. From ProcNull nothing
// is received and Count is 0. A GobDecode method copies the bytes that it keeps, because
// a gob.Decoder uses its buffer again for the next value. Errors: those of Recv without ErrTruncate;
// ErrType where v is no pointer, the message is none of SendValue's, or it
// does not fit v; the message is lost then.
func RecvValue(c *Comm, v any, source, tag int) (Status, error) {
	st, err := c.in().RecvValue(v, source, tag)
	return Status(st), err
}
