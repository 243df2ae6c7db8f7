package mpi

import (
	"context"
	"fmt"
	"iter"
	"math"
	"sync"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/sys"
)

// Probe implements comm.Comm.Probe, which documents the call.
func (c *Comm) Probe(source, tag int) (Status, error) {
	s, err := c.checkRecv(nil, source, tag)
	if err != nil {
		return Status{}, c.fail("Probe", source, tag, err)
	}
	if source == ProcNull {
		return procNullStatus, nil
	}
	t := c.timing()
	st, err := s.p2p.Probe(c.ctx, engine.Env{Peer: source, Tag: tag})
	if err != nil {
		return Status{}, c.fail("Probe", source, tag, err)
	}
	t.end(opProbe, st.Source, st.Tag, st.Bytes)
	return st, nil
}

// Iprobe implements comm.Comm.Iprobe, which documents the call.
func (c *Comm) Iprobe(source, tag int) (st Status, ok bool, err error) {
	s, err := c.checkRecv(nil, source, tag)
	if err != nil {
		return Status{}, false, c.fail("Iprobe", source, tag, err)
	}
	if source == ProcNull {
		return procNullStatus, true, nil
	}
	st, ok, err = s.p2p.Iprobe(engine.Env{Peer: source, Tag: tag})
	if err != nil || !ok {
		return Status{}, false, c.fail("Iprobe", source, tag, err)
	}
	return st, true, nil
}

// Message is the type behind comm.Message: a message that Mprobe or Improbe has matched.
type Message struct {
	m    engine.Message
	c    *Comm
	st   Status
	null bool        // the source of the probe was ProcNull: there is no message
	used atomic.Bool // Mrecv, Imrecv or RecvAlloc receives the message, or has received it
}

// Mprobe implements comm.Comm.Mprobe, which documents the call.
func (c *Comm) Mprobe(source, tag int) (*Message, Status, error) {
	m, err := c.mprobe("Mprobe", source, tag)
	if err != nil {
		return nil, Status{}, err
	}
	return &m, m.st, nil
}

// Messages implements comm.Comm.Messages, which documents the call.
func (c *Comm) Messages(ctx context.Context, tag int) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		bounded := c.WithContext(ctx)
		for {
			m, err := bounded.mprobe("Messages", AnySource, tag)
			if err != nil {
				if ctx.Err() == nil || !isContext(err) {
					yield(nil, err)
				}
				return
			}
			m.c = c // the end of ctx ends the loop, and not the receive of a message
			if !yield(&m, nil) {
				return
			}
		}
	}
}

// Status implements comm.Message.Status, which documents the call.
func (m *Message) Status() (st Status, ok bool) {
	if m == nil || m.c == nil {
		return Status{}, false
	}
	return m.st, true
}

func (c *Comm) mprobe(op string, source, tag int) (Message, error) {
	s, err := c.checkRecv(nil, source, tag)
	if err != nil {
		return Message{}, c.fail(op, source, tag, err)
	}
	if source == ProcNull {
		return Message{c: c, st: procNullStatus, null: true}, nil
	}
	t := c.timing()
	m, st, err := s.p2p.Mprobe(c.ctx, engine.Env{Peer: source, Tag: tag})
	if err != nil {
		return Message{}, c.fail(op, source, tag, err)
	}
	t.end(opMprobe, st.Source, st.Tag, st.Bytes)
	return Message{m: m, c: c, st: st}, nil
}

// Improbe implements comm.Comm.Improbe, which documents the call.
func (c *Comm) Improbe(source, tag int) (*Message, Status, error) {
	s, err := c.checkRecv(nil, source, tag)
	if err != nil {
		return nil, Status{}, c.fail("Improbe", source, tag, err)
	}
	if source == ProcNull {
		return &Message{c: c, st: procNullStatus, null: true}, procNullStatus, nil
	}
	m, st, ok, err := s.p2p.Improbe(engine.Env{Peer: source, Tag: tag})
	if err != nil || !ok {
		return nil, Status{}, c.fail("Improbe", source, tag, err)
	}
	return &Message{m: m, c: c, st: st}, st, nil
}

// claim marks the message as used; op is the name of the call that receives it. If there is no
// message, or another call has marked it, claim returns ErrArg. If its communicator cannot be used,
// claim returns ErrClosed.
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

// Mrecv implements comm.Mrecv, which documents the call.
func (m *Message) Mrecv(b elem.Buffer) (Status, error) {
	if err := b.Type.Err; err != nil {
		return Status{}, (*Comm)(nil).fail("Mrecv", noRank, noRank, err)
	}
	if err := m.claim("Mrecv"); err != nil {
		return Status{}, err
	}
	if m.null {
		return procNullStatus, nil
	}
	p, err := m.c.s.checkCall(opMrecv, noBuffer, b)
	if err != nil {
		m.used.Store(false)
		return Status{}, m.c.fail("Mrecv", m.st.Source, m.st.Tag, err)
	}
	st, err := m.m.Irecv(b.Bytes(), b.Type.Form, b.Type.Sig).Finish(m.c.ctx)
	if err = checkCount(st.Bytes, b.Type.Size, endCall(m.c.s, p, err)); err != nil {
		return st, m.c.fail("Mrecv", m.st.Source, m.st.Tag, err)
	}
	return st, nil
}

// Imrecv implements comm.Imrecv, which documents the call.
func (m *Message) Imrecv(b elem.Buffer) Request {
	if err := b.Type.Err; err != nil {
		return (*Comm)(nil).refused("Imrecv", noRank, noRank, err)
	}
	if err := m.claim("Imrecv"); err != nil {
		return (*Comm)(nil).refused("Imrecv", noRank, noRank, err)
	}
	if m.null {
		return Request{c: procNullRecv}
	}
	p, err := m.c.s.checkStart(opImrecv, noBuffer, b)
	if err != nil {
		m.used.Store(false)
		return m.c.refused("Imrecv", m.st.Source, m.st.Tag, err)
	}
	r := m.m.Irecv(b.Bytes(), b.Type.Form, b.Type.Sig)
	p.Received(r)
	return m.c.withPending(p, r).startedRequest(r, opImrecv, m.st.Source, m.st.Tag, b.Type.Size)
}

// MprobeSized is the first half of comm.RecvAlloc: it blocks until a message arrives, takes it out
// of matching as Mprobe does, and returns it with n, its number of elements of type t. After an
// error, or if source is ProcNull, m is nil.
func (c *Comm) MprobeSized(t *elem.Type, source, tag int) (m *Message, n int, st Status, err error) {
	m = new(Message)
	n, err = c.probeSized("RecvAlloc", m, t, source, tag)
	if err != nil || m.null {
		return nil, 0, m.st, err
	}
	return m, n, m.st, nil
}

// RenamedTo returns err as an error of the call op, which has made the call that returned err. If err
// is nil, RenamedTo returns nil.
func RenamedTo(err error, op string) error { return renamed(err, op) }

// probeSized blocks until a message arrives, takes it out of matching as Mprobe does, stores it in
// m, and returns its number of elements of type t. If the message is not a whole number of
// elements, or is larger than this host's memory, probeSized drops the message and returns
// ErrCount. op is the name of the call, for errors.
func (c *Comm) probeSized(op string, m *Message, t *elem.Type, source, tag int) (n int, err error) {
	if t.Err != nil {
		return 0, c.fail(op, source, tag, t.Err)
	}
	*m, err = c.mprobe(op, source, tag)
	if err != nil || m.null {
		return 0, err
	}
	n, err = elem.Count(m.st.Bytes, t.Size)
	if err == nil {
		err = tooLarge(m.st.Bytes)
	}
	if err != nil {
		_, _ = m.m.Recv(c.ctx, nil) // a receive without a buffer, so that the sender does not wait forever
		return 0, c.fail(op, source, tag, err)
	}
	return n, nil
}

// tooLarge returns ErrCount if a message of n bytes needs more memory than this host has.
func tooLarge(n int) error {
	if n > memory() {
		return fmt.Errorf("%w: a message of %d bytes needs more memory than this host has", ErrCount, n)
	}
	return nil
}

// memory returns the size of this host's memory in bytes, or the largest int if it is not known.
// Calls compare a length that a message or the program gives with memory before they allocate,
// because a failed allocation ends the process.
var memory = sync.OnceValue(func() int {
	if n := sys.Memory(); n > 0 {
		return int(min(n, math.MaxInt))
	}
	return math.MaxInt
})

// renamed returns err, with op as the name of the call if err is an *Error. op is the call that the
// program has made.
func renamed(err error, op string) error {
	e, ok := err.(*Error) //nolint:errorlint // the error of a call, not one that it wraps
	if !ok {
		return err
	}
	of := *e // a copy, because the error may also be the cause of a revocation
	of.Op = op
	return &of
}
