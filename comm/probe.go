package comm

import (
	"fmt"
	"github.com/weft-hpc/weft/internal/elem"
	"math"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/sys"
)

// Probe blocks until a message from source (or AnySource) with the given tag (or AnyTag)
// has arrived, and describes it without receiving it (MPI_Probe, MPI 4.1 §3.8).
// Status.Bytes is the message's length; [CountOf] returns its number of elements. If
// source is ProcNull, Probe returns at once, as Recv does. If another goroutine may
// receive the message first, use [Comm.Mprobe]. Errors: ErrRank, ErrTag, ErrProcFailed,
// ErrFinalized, ErrRevoked, ErrClosed, or the context's.
func (c *Comm) Probe(source, tag int) (Status, error) {
	s, err := c.checkRecv(source, tag)
	if err != nil {
		return Status{}, c.fail("Probe", source, tag, err)
	}
	if source == ProcNull {
		return nobody, nil
	}
	est, err := s.p2p.Probe(c.ctx, engine.Env{Peer: source, Tag: tag})
	if err != nil {
		return Status{}, c.fail("Probe", source, tag, err)
	}
	return found(est), nil
}

// Iprobe is Probe that does not block; ok says whether there is such a message
// (MPI_Iprobe).
func (c *Comm) Iprobe(source, tag int) (st Status, ok bool, err error) {
	s, err := c.checkRecv(source, tag)
	if err != nil {
		return Status{}, false, c.fail("Iprobe", source, tag, err)
	}
	if source == ProcNull {
		return nobody, true, nil
	}
	est, ok, err := s.p2p.Iprobe(engine.Env{Peer: source, Tag: tag})
	if err != nil || !ok {
		return Status{}, false, c.fail("Iprobe", source, tag, err)
	}
	return found(est), true, nil
}

// Message is a message that a matched probe took: no other receive or probe
// sees it any more, and Mrecv or Imrecv must receive it, once (MPI_Message,
// MPI 4.1 §3.8.2).
type Message struct {
	m    engine.Message
	c    *Comm
	st   Status
	null bool // from ProcNull
	used atomic.Bool
}

// Mprobe is Probe that also takes the message (MPI_Mprobe). Errors: those of
// Probe.
func (c *Comm) Mprobe(source, tag int) (*Message, Status, error) {
	m, err := c.mprobe("Mprobe", source, tag)
	if err != nil {
		return nil, Status{}, err
	}
	return &m, m.st, nil
}

func (c *Comm) mprobe(op string, source, tag int) (Message, error) {
	s, err := c.checkRecv(source, tag)
	if err != nil {
		return Message{}, c.fail(op, source, tag, err)
	}
	if source == ProcNull {
		return Message{c: c, st: nobody, null: true}, nil
	}
	m, st, err := s.p2p.Mprobe(c.ctx, engine.Env{Peer: source, Tag: tag})
	if err != nil {
		return Message{}, c.fail(op, source, tag, err)
	}
	return Message{m: m, c: c, st: found(st)}, nil
}

// Improbe is Mprobe that does not block; the message is nil where there is
// none (MPI_Improbe).
func (c *Comm) Improbe(source, tag int) (*Message, Status, error) {
	s, err := c.checkRecv(source, tag)
	if err != nil {
		return nil, Status{}, c.fail("Improbe", source, tag, err)
	}
	if source == ProcNull {
		return &Message{c: c, st: nobody, null: true}, nobody, nil
	}
	m, est, ok, err := s.p2p.Improbe(engine.Env{Peer: source, Tag: tag})
	if err != nil || !ok {
		return nil, Status{}, c.fail("Improbe", source, tag, err)
	}
	st := found(est)
	return &Message{m: m, c: c, st: st}, st, nil
}

// claim takes the right to receive the message.
func (m *Message) claim(op string) error {
	if m == nil || m.c == nil {
		return &Error{Op: op, Peer: noRank, Tag: noRank, Err: fmt.Errorf("%w: no message", ErrArg)}
	}
	if _, err := m.c.live(); err != nil {
		return m.c.fail(op, m.st.Source, m.st.Tag, err)
	}
	if !m.used.CompareAndSwap(false, true) {
		return m.c.fail(op, m.st.Source, m.st.Tag, fmt.Errorf("%w: the message has been received", ErrArg))
	}
	return nil
}

// Mrecv receives a message from Mprobe or Improbe into buf, and blocks until the message
// is in buf (MPI_Mrecv). buf needs room for m's Status.Bytes bytes. Errors: those of
// Recv; ErrArg if m is nil or was received. After ErrType, m can still be received. If
// the context ends first, m counts as received, and Recv or another Mprobe can get the
// message.
func Mrecv[T any](m *Message, buf []T) (Status, error) {
	b, sig, err := view(buf)
	if err != nil {
		return Status{}, (*Comm)(nil).fail("Mrecv", noRank, noRank, err)
	}
	if err := m.claim("Mrecv"); err != nil {
		return Status{}, err
	}
	if m.null {
		return nobody, nil
	}
	p, err := m.c.s.check.call(opMrecv, nil, b)
	if err != nil {
		m.used.Store(false)
		return Status{}, m.c.fail("Mrecv", m.st.Source, m.st.Tag, err)
	}
	est, err := m.m.Irecv(b, sig).Finish(m.c.ctx)
	st, err := status(est, elem.SizeOf[T](), p.ended(m.c.s, err))
	if err != nil {
		return st, m.c.fail("Mrecv", m.st.Source, m.st.Tag, err)
	}
	return st, nil
}

// Imrecv is Mrecv that returns at once; buf belongs to the request until it is
// complete (MPI_Imrecv).
func Imrecv[T any](m *Message, buf []T) Request {
	b, sig, err := view(buf)
	if err != nil {
		return (*Comm)(nil).refused("Imrecv", noRank, noRank, err)
	}
	if err := m.claim("Imrecv"); err != nil {
		return (*Comm)(nil).refused("Imrecv", noRank, noRank, err)
	}
	if m.null {
		return Request{c: fromNobody}
	}
	p, err := m.c.s.check.start(opImrecv, nil, b)
	if err != nil {
		m.used.Store(false)
		return m.c.refused("Imrecv", m.st.Source, m.st.Tag, err)
	}
	r := m.m.Irecv(b, sig)
	p.received(r)
	return m.c.using(p, r).begun(r, opImrecv, m.st.Source, m.st.Tag, elem.SizeOf[T]())
}

// RecvAlloc receives a message of any length into a slice of its own, which is
// the caller's (MPI_Mprobe and MPI_Mrecv). It blocks. Safe with any number of
// goroutines, unlike Probe and Recv. From ProcNull: nil. Errors: those of
// Recv without ErrTruncate, and ErrCount for a message that is larger than the
// memory of this host; after ErrCount the message is lost.
func RecvAlloc[T any](c *Comm, source, tag int) ([]T, Status, error) {
	return recvGrown[T](c, "RecvAlloc", source, tag, nil)
}

// recvGrown is RecvAlloc for the call op. It receives into buf if buf's capacity is large
// enough.
func recvGrown[T any](c *Comm, op string, source, tag int, buf []T) ([]T, Status, error) {
	if err := elem.Of[T]().Err; err != nil {
		return nil, Status{}, c.fail(op, source, tag, err)
	}
	m, err := c.mprobe(op, source, tag)
	if err != nil || m.null {
		return nil, m.st, err
	}
	n, err := elem.Count(m.st.Bytes, elem.SizeOf[T]())
	if err == nil && m.st.Bytes > memory() {
		err = fmt.Errorf("%w: a message of %d bytes, more than this host has memory", ErrCount, m.st.Bytes)
	}
	if err != nil {
		_, _ = m.m.Recv(c.ctx, nil) // so that its sender is not left waiting
		m.st.Count = n
		return nil, m.st, c.fail(op, source, tag, err)
	}
	if buf == nil || cap(buf) < n { // the result is nil only if there is no message
		buf = make([]T, n)
	}
	st, err := Mrecv(&m, buf[:n])
	return buf[:n], st, renamed(err, op)
}

// memory is how many bytes this host has. A peer's word for a length must not
// make an allocation fail, which would end the process.
var memory = sync.OnceValue(func() int {
	if n := sys.Memory(); n > 0 {
		return int(min(n, math.MaxInt))
	}
	return math.MaxInt
})

// renamed gives an error the name of the call that the program made.
func renamed(err error, op string) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // only what this package made just now
		e.Op = op
	}
	return err
}
