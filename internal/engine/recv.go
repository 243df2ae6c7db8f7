package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Recv blocks until a message that env accepts is in buf. A longer message is
// ErrTruncate; what fits of it is in buf and Status.Bytes says how long it was.
// If ctx ends first its error is returned; unless a message was on its way
// already, buf is the caller's again.
//
// Hot path: no allocation, no system call but the endpoint's.
func (c *Context) Recv(ctx context.Context, buf []byte, env Env) (Status, error) {
	e := c.e
	e.mu.lock()
	st, err := e.blockOn(ctx, c.startRecv(buf, &env))
	e.mu.unlock()
	return st, err
}

// Irecv starts a receive; buf belongs to the engine until the request is
// complete.
func (c *Context) Irecv(buf []byte, env Env) Request {
	e := c.e
	e.mu.lock()
	q := e.public(c.startRecv(buf, &env), env.Attended)
	e.mu.unlock()
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
	if err := e.cannotReceive(c, key); err != nil {
		e.complete(r, err)
		return r
	}
	r.phase = phasePosted
	e.posted.post(r)
	return r
}

// cannotReceive says why no message with this key can come any more, or nil.
// A receive from any source fails when one of the group has failed, for that
// one may be whom it waits for (ULFM).
func (e *Engine) cannotReceive(c *Context, key matchKey) error {
	switch {
	case e.closed:
		return ErrClosed
	case e.fatal != nil:
		return e.fatal
	case len(e.revoked) > 0 && e.revoked[c.id/2] != nil:
		return e.revoked[c.id/2]
	case key.source != wild:
		return e.peers[key.source].err
	case e.failures == 0:
		return nil
	}
	return c.unknown()
}

// accept gives an unexpected message, already taken out of its queue, to a
// receive.
func (e *Engine) accept(r *request, u *unexpected) {
	switch s := u.self; {
	case e.closed:
		e.complete(r, ErrClosed)
	case s.r != nil && s.doneLocked(): // it ended with a transport
		e.complete(r, e.fatal)
	case s.r != nil:
		e.fill(r, u.source, &u.header, s.r.buf)
		e.complete(s.r, nil)
	case u.header.Kind == wire.MsgRTS:
		e.pull(r, u.source, &u.header)
	default:
		e.fill(r, u.source, &u.header, u.data)
	}
	e.discard(u)
}

// discard frees an unexpected message and gives its credit back.
func (e *Engine) discard(u *unexpected) {
	if p := &e.peers[u.source]; int(u.source) != e.rank {
		p.held -= u.cost
	}
	e.buffers.put(u.data)
	source, cost := u.source, u.cost
	e.unexpected.put(u)
	if cost > 0 {
		e.owe(source, cost)
	}
}

// addUnexpected queues a message and tells probes of it.
func (e *Engine) addUnexpected(u *unexpected) {
	e.unexpected.add(u)
	for _, w := range e.probes {
		if w.key.accepts(u.nodes[0].key) {
			e.tell(w)
		}
	}
}

// matched notes on a receive which message it got. It answers false, with the
// receive complete, if the message is of another collective call, or of one who
// is not in the group.
func (e *Engine) matched(r *request, source int32, m *wire.Message) bool {
	if r.peer == wild {
		if !r.ctx.has(source) {
			e.breach(source, errMember)
			e.complete(r, e.peers[source].err)
			return false
		}
		r.peer, r.status.Source = source, r.ctx.rank(source)
	}
	r.status.Tag, r.status.Bytes = int(m.Tag), m.Length
	r.phase = phaseIdle
	if r.sig != m.Sig {
		e.complete(r, fmt.Errorf("%w: rank %d", ErrMismatch, r.status.Source))
		return false
	}
	if m.Length > len(r.buf) {
		r.err = fmt.Errorf("%w: %d bytes into %d", ErrTruncate, m.Length, len(r.buf))
	}
	return true
}

// fill completes a receive with an eager message's data.
//
// Hot path: no allocation, no system call.
func (e *Engine) fill(r *request, source int32, m *wire.Message, data []byte) {
	ok := e.matched(r, source, m)
	if ok {
		copy(r.buf, data)
	}
	if m.Kind == wire.MsgEagerSync {
		e.sendControl(source, wire.Message{Kind: wire.MsgAck, Handle: m.Handle}, nil)
	}
	if ok {
		e.complete(r, r.err)
	}
}

// pull starts to fetch the data of a rendezvous into a receive's buffer.
func (e *Engine) pull(r *request, source int32, m *wire.Message) {
	if !e.matched(r, source, m) {
		e.sendFin(source, m.Handle, r.err)
		return
	}
	p := &e.peers[source]
	r.loaded = true
	r.total = min(m.Length, len(r.buf))
	r.offset = 0
	r.remote, r.key = m.Addr, m.Key
	r.header.Handle = m.Handle
	switch {
	case p.err != nil:
		e.complete(r, p.err)
	case r.total == 0:
		e.sendFin(source, m.Handle, nil)
		e.complete(r, r.err)
	case p.rail.rma == nil:
		r.phase = phaseFilling
		e.move(r)
		e.sendControl(source, wire.Message{Kind: wire.MsgCTS, Handle: m.Handle, Key: r.handle(), Length: r.total}, nil)
	default:
		if p.rail.attr.MRMode&transport.MRLocal != 0 {
			if err := e.region(r, p.rail, r.buf[:r.total], transport.Local); err != nil {
				e.sendFin(source, m.Handle, err)
				e.complete(r, err)
				return
			}
		}
		r.phase = phaseReading
		if p.control.head != nil || !e.read(r) {
			p.control.push(r)
			e.stall(source)
		}
	}
}

// read posts the next Read of a rendezvous; false: the endpoint has no room.
func (e *Engine) read(r *request) bool {
	p := &e.peers[r.peer]
	n := min(r.total-r.offset, p.rail.attr.MaxRMASize)
	r.op.Peer = transport.Addr(r.peer)
	r.op.Data = r.buf[r.offset : r.offset+n]
	r.op.Region = r.region
	r.op.RemoteKey = r.key
	r.op.RemoteAddr = r.remote + uint64(r.offset)
	err := p.rail.rma.Read(&r.op)
	switch {
	case errors.Is(err, transport.ErrAgain):
		p.hold(err)
		return false
	case err != nil:
		err = e.peerError(r.peer, err)
		e.sendFin(r.peer, r.header.Handle, err)
		e.complete(r, err)
	default:
		e.posting(r)
	}
	return true
}

// readDone goes on when a Read has ended.
func (e *Engine) readDone(r *request, err error) {
	if err != nil {
		err = e.readError(r, err)
		e.sendFin(r.peer, r.header.Handle, err)
		e.complete(r, err)
		return
	}
	r.offset += len(r.op.Data)
	if r.offset == r.total {
		e.sendFin(r.peer, r.header.Handle, nil)
		e.complete(r, r.err)
		return
	}
	if p := &e.peers[r.peer]; p.control.head != nil || !e.read(r) {
		p.control.push(r)
		e.stall(r.peer)
	}
}

// readError is the error of a Read that has failed. A region that is no longer
// there was of a send that ended when the communicator was revoked, of which
// this rank may not have heard yet.
func (e *Engine) readError(r *request, err error) error {
	if e.peers[r.peer].err != nil || !errors.Is(err, transport.ErrKey) {
		return e.peerError(r.peer, err)
	}
	if why := e.revoked[r.ctx.id/2]; why != nil {
		return why
	}
	return fmt.Errorf("%w: rank %d has withdrawn its message: %w", ErrRevoked, r.peer, err)
}

// sendFin tells a sender that its rendezvous is over, and why it failed if it
// did. The first byte of the text is a finCode.
func (e *Engine) sendFin(peer int32, handle uint64, why error) {
	var text []byte
	if why != nil {
		text = append(text, finCode(why))
		text = append(text, why.Error()...)
		text = text[:min(len(text), maxCause)]
	}
	e.sendControl(peer, wire.Message{Kind: wire.MsgFin, Handle: handle}, text)
}

// finErrors are the sentinels that a MsgFin can carry, by code.
var finErrors = []error{nil, ErrRevoked, ErrMismatch, ErrClosed, ErrProcFailed}

func finCode(err error) byte {
	for i, f := range finErrors[1:] {
		if errors.Is(err, f) {
			return byte(i + 1)
		}
	}
	return 0
}

// finError is the error that a MsgFin's text stands for.
func finError(peer int32, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	text = text[:min(len(text), maxCause)]
	code := int(text[0])
	if code == 0 || code >= len(finErrors) {
		return fmt.Errorf("rank %d did not receive: %q", peer, text[1:])
	}
	return fmt.Errorf("%w: rank %d did not receive: %q", finErrors[code], peer, text[1:])
}
