package comm

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/engine"
)

// Probe blocks until a message from source (or AnySource) with the given tag
// (or AnyTag) is there, and describes it without receiving it; Status.Count is
// its length in bytes (MPI_Probe, MPI 4.1 §3.8). Another goroutine may receive
// it first: where that can be, use Mprobe. From ProcNull it returns at once,
// as Recv does. Errors: ErrRank, ErrTag, ErrProcFailed, ErrRevoked, ErrClosed,
// the context's.
func (c *Comm) Probe(source, tag int) (Status, error) {
	s, err := c.checkRecv(source, tag)
	if err != nil {
		return Status{}, c.fail("Probe", source, tag, err)
	}
	if source == ProcNull {
		return nobody, nil
	}
	est, err := s.p2p.Probe(c.ctx, engine.Env{Peer: source, Tag: tag})
	st, err := status(est, 1, err)
	return st, c.fail("Probe", source, tag, err)
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
	st, err = status(est, 1, nil)
	return st, true, err
}

// Message is a message that a matched probe took: no other receive or probe
// sees it any more, and Mrecv or Imrecv must receive it, once (MPI_Message,
// MPI 4.1 §3.8.2).
type Message struct {
	m    engine.Message
	c    *Comm
	st   Status // with Count in bytes
	null bool   // from ProcNull
	used atomic.Bool
}

// Mprobe is Probe that also takes the message (MPI_Mprobe). Errors: those of
// Probe.
func (c *Comm) Mprobe(source, tag int) (*Message, Status, error) {
	s, err := c.checkRecv(source, tag)
	if err != nil {
		return nil, Status{}, c.fail("Mprobe", source, tag, err)
	}
	if source == ProcNull {
		return &Message{c: c, st: nobody, null: true}, nobody, nil
	}
	m, est, err := s.p2p.Mprobe(c.ctx, engine.Env{Peer: source, Tag: tag})
	if err != nil {
		return nil, Status{}, c.fail("Mprobe", source, tag, err)
	}
	st, _ := status(est, 1, nil)
	return &Message{m: m, c: c, st: st}, st, nil
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
	st, _ := status(est, 1, nil)
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

// Mrecv receives a message taken by Mprobe or Improbe into buf, and blocks
// until it is there (MPI_Mrecv). buf needs m's Status.Count bytes. Errors:
// those of Recv, and ErrArg for a nil message or one that was received. After
// ErrType the message can still be received.
func Mrecv[T any](m *Message, buf []T) (Status, error) {
	st, err := imrecv(m, "Mrecv", buf).Wait()
	return st, renamed(err, "Mrecv")
}

// Imrecv is Mrecv that returns at once; buf belongs to the request until it is
// complete (MPI_Imrecv).
func Imrecv[T any](m *Message, buf []T) Request { return imrecv(m, "Imrecv", buf) }

func imrecv[T any](m *Message, op string, buf []T) Request {
	b, err := view(buf)
	if err != nil {
		return refused((*Comm)(nil).fail(op, noRank, noRank, err))
	}
	if err := m.claim(op); err != nil {
		return refused(err)
	}
	if m.null {
		return Request{c: fromNobody}
	}
	return m.c.begun(m.m.Irecv(b), opImrecv, m.st.Source, m.st.Tag, sizeOf[T]())
}

// RecvAlloc receives a message of any length into a slice of its own, which is
// the caller's (MPI_Mprobe and MPI_Mrecv). It blocks. Safe with any number of
// goroutines, unlike Probe and Recv. From ProcNull: nil. Errors: those of
// Recv without ErrTruncate, and ErrCount for a message that is larger than the
// memory of this host; after ErrCount the message is lost.
func RecvAlloc[T any](c *Comm, source, tag int) ([]T, Status, error) {
	if err := infoOf[T]().err; err != nil {
		return nil, Status{}, c.fail("RecvAlloc", source, tag, err)
	}
	m, st, err := c.Mprobe(source, tag)
	if err != nil {
		return nil, Status{}, renamed(err, "RecvAlloc")
	}
	if m.null {
		return nil, st, nil
	}
	n, err := elems(st.Count, sizeOf[T]())
	if err == nil && st.Count > memory() {
		err = fmt.Errorf("%w: a message of %d bytes, more than this host has memory", ErrCount, st.Count)
	}
	if err != nil {
		_, _ = m.m.Recv(c.ctx, nil) // so that its sender is not left waiting
		st.Count = n
		return nil, st, c.fail("RecvAlloc", source, tag, err)
	}
	buf := make([]T, n)
	st, err = Mrecv(m, buf)
	return buf, st, renamed(err, "RecvAlloc")
}

// memory is how many bytes this host has. A peer's word for a length must not
// make an allocation fail, which would end the process.
var memory = sync.OnceValue(func() int {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return math.MaxInt
	}
	return int(min((info.Totalram+info.Totalswap)*uint64(info.Unit), math.MaxInt))
})

// renamed gives an error the name of the call that the program made.
func renamed(err error, op string) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // only what this package made just now
		e.Op = op
	}
	return err
}
