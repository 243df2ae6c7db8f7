package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/race"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Recv blocks until a message that env matches is in buf. If the message is longer than buf, Recv
// returns ErrTruncate; buf then holds the part that fits, and Status.Bytes is the message's
// length. If ctx ends first, Recv returns ctx's error, and no message is lost. If the error is an
// Unfinished, the transport still uses buf; otherwise the caller owns buf again.
//
// Hot path: no allocation, no system call except the endpoint's.
func (c *Context) Recv(ctx context.Context, buf []byte, env Env) (Status, error) {
	e := c.e
	e.mu.Lock()
	st, err := e.blockOn(ctx, c.startRecv(buf, &env))
	e.mu.Unlock()
	return st, err
}

// Irecv starts a receive. The engine uses buf until the request is complete.
func (c *Context) Irecv(buf []byte, env Env) Request {
	e := c.e
	e.mu.Lock()
	q := e.public(c.startRecv(buf, &env), env.Attended)
	e.mu.Unlock()
	return q
}

func (c *Context) startRecv(buf []byte, env *Env) *request {
	e := c.e
	r := e.take(kindRecv)
	r.ctx, r.buf, r.sig = c, buf, env.Sig
	key := c.key(env)
	r.peer, r.tag = key.source, key.tag
	r.node.key, r.status.Source = key, env.Peer
	if e.unexpected.n > 0 {
		if u := e.unexpected.find(key); u != nil {
			e.unexpected.take(u)
			e.accept(r, u)
			return r
		}
	}
	if err := c.cannotReceive(key.source); err != nil {
		e.complete(r, err)
		return r
	}
	r.phase = phasePosted
	e.posted.post(r)
	return r
}

// cannotReceive returns an error if neither a message from source nor its store to shared memory
// can arrive any more. A receive from any source fails if a member of the group has failed,
// because this member may be the sender that the receive waits for (ULFM).
func (c *Context) cannotReceive(source int32) error {
	if err := c.unusable(); err != nil {
		return err
	}
	if source == wild {
		return c.unacknowledged()
	}
	if err := c.e.peers[source].err; err != nil {
		return err
	}
	return c.finalized(source)
}

// accept gives an unexpected message to a receive. The caller has taken the message out of its
// queue.
func (e *Engine) accept(r *request, u *unexpected) {
	switch s := u.self; {
	case e.closed:
		e.complete(r, errFinalize)
	case s.r != nil && s.doneLocked(): // Engine.fail has ended the send
		e.complete(r, e.fatal)
	case s.r != nil:
		e.complete(s.r, e.completeEager(r, u.source, &u.header, s.r.buf))
	case u.held != nil:
		e.matchHeld(r, u)
		return
	case u.header.Kind == wire.MsgRTS:
		e.fetch(r, u.source, &u.header, u.nodes[0].seq)
	default:
		_ = e.completeEager(r, u.source, &u.header, u.data)
	}
	e.discard(u)
}

// discard frees an unexpected message and returns its credit.
func (e *Engine) discard(u *unexpected) {
	if u.held != nil {
		u.held.msg = nil
	}
	if p := &e.peers[u.source]; int(u.source) != e.rank {
		p.unexpectedBytes -= u.cost
	}
	e.buffers.put(u.data)
	source, cost := u.source, u.cost
	e.unexpected.put(u)
	if cost > 0 {
		e.returnCredit(source, cost)
	}
}

// keepUnexpected queues a message that no posted receive matches, with a copy of its data, and
// wakes the probes that accept the message.
func (e *Engine) keepUnexpected(source int32, m *wire.Message, data []byte, cost int) *unexpected {
	u := e.unexpected.get()
	u.header, u.source, u.cost = *m, source, cost
	u.data = e.buffers.get(len(data))
	copy(u.data, data)
	e.unexpected.add(u)
	e.wakeProbes(u)
	return u
}

// wakeProbes wakes the probes that accept a message.
func (e *Engine) wakeProbes(u *unexpected) {
	for _, w := range e.probeWaiters {
		if w.key.accepts(u.nodes[0].key) {
			e.wake(w)
		}
	}
}

// matched records in a receive which message it has matched. If the message belongs to
// another collective call, has elements of another type, or its sender is not in the
// group, matched completes the receive with an error and returns the error.
func (e *Engine) matched(r *request, source int32, m *wire.Message) error {
	if r.peer == wild {
		if !r.ctx.has(source) {
			e.protocolError(source, errMember)
			err := e.peers[source].err
			e.complete(r, err)
			return err
		}
		r.peer, r.status.Source = source, r.ctx.rank(source)
	}
	r.status.Tag, r.status.Bytes = int(m.Tag), m.Length
	r.phase = phaseIdle
	race.Acquire(r.buf) // after the Release in package comm
	if r.sig != m.Sig && r.sig != 0 && m.Sig != 0 {
		err := e.mismatch(r.status.Source, r.ctx.rank(int32(e.rank)), m.Sig, r.sig)
		e.complete(r, err)
		return err
	}
	if m.Length > len(r.buf) {
		r.err = fmt.Errorf("%w: %d bytes into %d", ErrTruncate, m.Length, len(r.buf))
	}
	return nil
}

// MismatchError reports that a message and its receive have different Sigs: they belong to two
// collective calls, or have two element types.
type MismatchError struct {
	Rank int // rank of the other side in the context's group
	text string
}

// Error returns a text that names both types if the message is one of the program.
func (m *MismatchError) Error() string { return fmt.Sprintf("%v: %s", ErrMismatch, m.text) }

// Unwrap returns ErrMismatch.
func (m *MismatchError) Unwrap() error { return ErrMismatch }

// mismatch returns the error of a message with Sig sent from rank from, and a receive with Sig
// received on rank to.
func (e *Engine) mismatch(from, to int, sent, received uint16) error {
	name := e.typeName
	if name == nil {
		name = func(sig uint16) string { return fmt.Sprintf("type %#x", sig) }
	}
	return &MismatchError{from, fmt.Sprintf("rank %d sent elements of %s, and rank %d receives %s", from, name(sent), to, name(received))}
}

// completeEager completes a receive with the data of an eager message.
//
// Hot path: no allocation, no system call.
func (e *Engine) completeEager(r *request, source int32, m *wire.Message, data []byte) error {
	err := e.matched(r, source, m)
	if err == nil {
		copy(r.buf, data)
	}
	switch {
	case m.Kind != wire.MsgEagerSync:
	case err != nil:
		e.sendFin(source, m.Handle, err)
	default:
		e.sendControl(source, wire.Message{Kind: wire.MsgAck, Handle: m.Handle}, nil)
	}
	if err == nil {
		e.complete(r, r.err)
	}
	return err
}

// fetch starts to transfer the data of a rendezvous message into the buffer of r. arrival is the
// arrival number of the message's RTS.
func (e *Engine) fetch(r *request, source int32, m *wire.Message, arrival uint64) {
	if err := e.matched(r, source, m); err != nil {
		e.sendFin(source, m.Handle, err)
		return
	}
	p := &e.peers[source]
	r.loaded = true
	r.total = min(m.Length, len(r.buf))
	r.offset = 0
	r.remote, r.key = m.Addr, m.Key
	r.header, r.node.seq = *m, arrival // for returnMessage
	canRead := p.rail.rma != nil && m.Addr != wire.NoRegion
	if canRead && p.err == nil && r.total > 0 && p.rail.attr.MRMode&transport.MRLocal != 0 {
		var err error
		r.region, r.span, err = e.region(p.rail, r.buf[:r.total], transport.Local)
		switch {
		case errors.Is(err, transport.ErrAgain):
			canRead = false
		case err != nil:
			e.fetched(r, err)
			return
		}
	}
	switch {
	case p.err != nil:
		e.complete(r, p.err)
	case r.total == 0:
		e.fetched(r, nil)
	case canRead:
		r.phase = phaseReading
		e.submit(r)
	default:
		r.phase = phaseReceiving
		e.startMoving(r)
		e.sendControl(source, wire.Message{Kind: wire.MsgCTS, Handle: m.Handle, Key: r.handle(), Length: r.total}, nil)
	}
}

// fetched ends a rendezvous without MsgData on the receiver's side, and sends MsgFin to the
// sender.
func (e *Engine) fetched(r *request, err error) {
	e.sendFin(r.peer, r.header.Handle, err)
	if err == nil {
		err = r.err // the message was too long
	}
	e.complete(r, err)
}

// read posts the next Read of a rendezvous.
func (e *Engine) read(r *request) error {
	p := &e.peers[r.peer]
	n := min(r.total-r.offset, p.rail.attr.MaxRMASize)
	r.op.Peer = transport.Addr(r.peer)
	r.op.Data = r.buf[r.offset : r.offset+n]
	r.op.Region = r.region
	r.op.RemoteKey = r.key
	r.op.RemoteAddr = r.remote + uint64(r.offset)
	return p.rail.rma.Read(&r.op)
}

// readDone continues a receive after its Read has ended.
func (e *Engine) readDone(r *request, err error) {
	if r.cut != nil { // the receive was cut short, and its message is unexpected again
		e.complete(r, err)
		return
	}
	if err != nil {
		e.fetched(r, e.readError(r, err))
		return
	}
	r.offset += len(r.op.Data)
	if r.offset == r.total {
		e.fetched(r, nil)
		return
	}
	e.submit(r)
}

// readError returns the error of a Read that has failed. If the region no longer exists, the send
// has ended because the communicator was revoked, which this rank may not know yet.
func (e *Engine) readError(r *request, err error) error {
	if e.peers[r.peer].err != nil || !errors.Is(err, transport.ErrKey) {
		return e.peerError(r.peer, err)
	}
	if why := e.revoked[r.ctx.id/2]; why != nil {
		return why
	}
	return reasonError("%w: rank %d has withdrawn its message: %w", ErrRevoked, r.ctx.rank(r.peer), err)
}

// sendFin reports to a sender that its rendezvous has ended, with the error why or nil. The first
// byte of the text is a finCode.
func (e *Engine) sendFin(peer int32, handle uint64, why error) {
	var text []byte
	if why != nil {
		text = append(text, finCode(why))
		text = append(text, why.Error()...)
		text = text[:min(len(text), maxCause)]
	}
	e.sendControl(peer, wire.Message{Kind: wire.MsgFin, Handle: handle}, text)
}

// finErrors lists the sentinel errors that a MsgFin can carry, by finCode.
var finErrors = []error{nil, ErrRevoked, ErrMismatch, ErrClosed, ErrProcFailed, ErrFinalized}

func finCode(err error) byte {
	for i, f := range finErrors[1:] {
		if errors.Is(err, f) {
			return byte(i + 1)
		}
	}
	return 0
}

// finError returns the error that the text of a peer's MsgFin reports. rank is the peer's rank in
// the group.
func finError(rank int, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	text = text[:min(len(text), maxCause)]
	code := int(text[0])
	if code == 0 || code >= len(finErrors) {
		return fmt.Errorf("rank %d did not receive: %q", rank, text[1:])
	}
	if why := finErrors[code]; errors.Is(why, ErrMismatch) {
		return &MismatchError{rank, fmt.Sprintf("rank %d did not receive: %s", rank, bytes.TrimPrefix(text[1:], []byte(ErrMismatch.Error()+": ")))}
	}
	return fmt.Errorf("%w: rank %d did not receive: %q", finErrors[code], rank, text[1:])
}
