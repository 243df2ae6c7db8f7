package engine

import (
	"context"
	"errors"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Sending
//
//	             data ≤ eager limit, and credit for it?
//	          yes ┌───────────────┴───────────────┐ no
//	         MsgEager                           MsgRTS
//	    done when the endpoint          done by MsgFin; the data
//	    has taken the buffer            stays here until it is asked for
//
// Credit is memory at the receiver, in bytes: what it grants to each peer for
// data that it did not ask for yet. An eager message takes its cost from the
// sender's credit when it leaves and gives it back when it is received; the
// receiver returns it with its next message, or by MsgCredit when half a
// window is owed. A ready-to-send takes none: its envelope is small, it costs
// the sender a request that is not complete, and holding it back could keep a
// receive from a message that has been sent (MPI 4.1, 3.5, progress).
//
// Per peer, users' messages leave in the order in which they were posted. The
// engine's own messages may overtake them.

// messageCost is the credit that an eager message takes besides its data: what
// its entry in the unexpected queue and the smallest buffer take. (A buffer may
// be up to twice as long as its data.)
const messageCost = 448

// Send blocks until buf may be reused: it has left, or lies in the receiver's
// memory. A Synchronous send blocks until it is received. If ctx ends first,
// its error is returned and buf stays with the engine until the transfer is
// over.
//
// Hot path: no allocation, no system call but the endpoint's.
func (c *Context) Send(ctx context.Context, buf []byte, env Env) error {
	e := c.e
	e.mu.lock()
	var err error
	if r := c.startSend(buf, &env); r != nil {
		_, err = e.blockOn(ctx, r)
	}
	e.mu.unlock()
	return err
}

// Isend starts a send; buf belongs to the engine until the request is complete.
// Where it is complete at once the request is zero.
//
// Hot path: no allocation, no system call but the endpoint's.
func (c *Context) Isend(buf []byte, env Env) Request {
	e := c.e
	e.mu.lock()
	var q Request
	if r := c.startSend(buf, &env); r != nil {
		q = e.public(r, env.Attended)
	}
	e.mu.unlock()
	return q
}

// blockOn waits for a request that no Request names.
func (e *Engine) blockOn(ctx context.Context, r *request) (Status, error) {
	if !r.done {
		w := e.newWaiter()
		r.waiter = w
		err := e.await(ctx, w)
		r.waiter = nil
		e.freeWaiter(w)
		if !r.done {
			if r.phase == phasePosted || r.phase == phaseQueued { // nothing has begun: the buffer is the caller's again
				e.withdraw(r)
				e.complete(r, err)
				_, _ = e.collect(r)
			} else {
				r.abandoned = true
				e.entrust(r)
			}
			return Status{}, err
		}
	}
	return e.collect(r)
}

// startSend begins a send. nil: it is complete, as most small ones are.
func (c *Context) startSend(buf []byte, env *Env) *request {
	e := c.e
	to := c.world(env.Peer)
	p := &e.peers[to]
	if len(buf) <= p.eager && p.credit >= messageCost+len(buf) && p.data.head == nil &&
		env.Mode == Standard && len(e.revoked) == 0 {
		return e.sendNow(c, p, to, buf, env)
	}
	r := e.take(kindSend)
	r.address(c, to, buf, env)
	switch {
	case e.closed:
		e.complete(r, ErrClosed)
	case e.fatal != nil:
		e.complete(r, e.fatal)
	case len(e.revoked) > 0 && e.revoked[c.id/2] != nil:
		e.complete(r, e.revoked[c.id/2])
	case int(r.peer) == e.rank:
		e.sendSelf(r)
	case p.err != nil:
		e.complete(r, p.err)
	case p.data.head != nil || !e.transmitData(r):
		e.queueData(p, r)
	}
	return r
}

func (r *request) address(c *Context, to int32, buf []byte, env *Env) {
	r.ctx, r.buf = c, buf
	r.peer, r.tag, r.sig, r.mode = to, int32(env.Tag), env.Sig, env.Mode
}

func (e *Engine) queueData(p *peer, r *request) {
	r.phase = phaseQueued
	p.data.push(r)
	e.stall(r.peer)
}

// sendNow sends an eager message for which there is credit. It lends the
// endpoint the op of a spare slot, which becomes a request only where the
// endpoint keeps it or has no room: nil says that the message has left.
//
// Hot path: no allocation, no system call but the endpoint's.
func (e *Engine) sendNow(c *Context, p *peer, to int32, buf []byte, env *Env) *request {
	r := e.spare
	if r == nil {
		r = e.take(kindFree)
		e.spare = r
	}
	op := &r.op
	op.Peer, op.Data = transport.Addr(to), buf
	op.HeaderLen = wire.PutEager(op.Header[:], env.Sig, uint32(p.owed), c.id, int32(env.Tag), p.sendSeq+1, len(buf))
	done, err := p.rail.Endpoint.Send(op)
	if err == nil {
		p.sendSeq++
		p.owed = 0
		p.credit -= messageCost + len(buf)
		if done {
			op.Data = nil
			return nil
		}
	}
	e.spare = nil
	r.kind, r.header.Kind = kindSend, wire.MsgEager
	r.address(c, to, buf, env)
	switch {
	case err == nil:
		r.phase = phaseSent
		e.posting(r)
	case errors.Is(err, transport.ErrAgain):
		p.hold(err)
		e.queueData(p, r)
	default:
		e.complete(r, e.peerError(to, err))
	}
	return r
}

// transmitData sends a user's message, or its RTS. It answers false if that has
// to wait for the endpoint.
func (e *Engine) transmitData(r *request) bool {
	p := &e.peers[r.peer]
	cost := messageCost + len(r.buf)
	m := &r.header
	*m = wire.Message{Kind: wire.MsgEager, Sig: r.sig, Context: r.ctx.id, Tag: r.tag, Length: len(r.buf)}
	if len(r.buf) <= p.eager && p.credit >= cost {
		r.op.Data = r.buf
		if r.mode == Synchronous {
			m.Kind, m.Handle = wire.MsgEagerSync, r.handle()
		}
	} else {
		cost = 0
		m.Kind, m.Handle = wire.MsgRTS, r.handle()
		r.op.Data = nil
		if p.rail.rma != nil && len(r.buf) > 0 && r.region == nil {
			if err := e.region(r, p.rail, r.buf, transport.RemoteRead); err != nil {
				e.complete(r, err)
				return true
			}
		}
		if r.region != nil {
			m.Key, m.Addr = r.region.Key(), r.remoteAddr()
		}
	}
	p.credit -= cost
	if e.transmit(r) {
		if !r.done && m.Kind == wire.MsgRTS {
			e.move(r)
		}
		return true
	}
	p.credit += cost
	return false
}

// transmit gives a message with r.header and r.op.Data to the endpoint; false:
// it has no room.
func (e *Engine) transmit(r *request) bool {
	p := &e.peers[r.peer]
	m := &r.header
	m.Seq, m.Credit = p.sendSeq+1, uint32(p.owed)
	r.op.HeaderLen = m.Put(r.op.Header[:])
	r.op.Peer = transport.Addr(r.peer)
	done, err := p.rail.Endpoint.Send(&r.op)
	switch {
	case errors.Is(err, transport.ErrAgain):
		p.hold(err)
		return false
	case err != nil:
		e.finish(r, e.peerError(r.peer, err))
		return true
	}
	p.sendSeq++
	p.owed = 0
	r.phase = phaseSent
	if done {
		e.sent(r)
		return true
	}
	e.posting(r)
	return true
}

// posting notes that r.op is with the endpoint, and rouses who sleeps: the
// endpoint may need to be polled for it.
func (e *Engine) posting(r *request) {
	r.inflight = true
	e.move(r)
	if r.kind == kindControl {
		e.entrust(r) // nobody waits for it here, but the peer does
	}
	e.rouse()
}

// rouse ends the sleep of who sleeps on the transports, for there is something
// new to be looked after.
func (e *Engine) rouse() {
	if e.sleeping || e.asyncAsleep {
		e.signal()
	}
}

// sent goes on when the endpoint has done with a message's buffers.
func (e *Engine) sent(r *request) {
	switch {
	case r.kind == kindControl:
		e.finish(r, nil)
	case r.phase == phasePumping:
		e.pump(r)
	case !r.awaitsReply():
		e.complete(r, r.err)
	case len(e.revoked) > 0 && e.revoked[r.ctx.id/2] != nil:
		e.complete(r, e.revoked[r.ctx.id/2])
	}
}

// awaitsReply reports whether a message has left that the receiver answers.
func (r *request) awaitsReply() bool {
	return r.phase == phaseSent && r.header.Kind != wire.MsgEager && !r.replied
}

// pump sends the data of a rendezvous without RMA, piece by piece, until the
// endpoint is busy with one.
func (e *Engine) pump(r *request) {
	p := &e.peers[r.peer]
	piece := p.rail.attr.MaxMsgSize - transport.HeaderSize
	for !r.inflight && !r.done {
		if r.offset == r.total {
			e.complete(r, nil)
			return
		}
		n := min(piece, r.total-r.offset)
		r.header = wire.Message{Kind: wire.MsgData, Context: r.ctx.id, Length: n, Handle: r.remote, Addr: uint64(r.offset)}
		r.op.Data = r.buf[r.offset : r.offset+n]
		m := &r.header
		m.Seq, m.Credit = p.sendSeq+1, uint32(p.owed)
		r.op.HeaderLen = m.Put(r.op.Header[:])
		done, err := p.rail.Endpoint.Send(&r.op)
		switch {
		case errors.Is(err, transport.ErrAgain):
			p.hold(err)
			p.control.push(r) // retry calls pump again
			e.stall(r.peer)
			return
		case err != nil:
			e.complete(r, e.peerError(r.peer, err))
			return
		}
		p.sendSeq++
		p.owed = 0
		r.offset += n
		if !done {
			e.posting(r)
		}
	}
}

// sendControl sends a message of the engine's own.
func (e *Engine) sendControl(peer int32, m wire.Message, data []byte) {
	p := &e.peers[peer]
	if p.err != nil || e.closed {
		return
	}
	r := e.take(kindControl)
	r.peer = peer
	m.Length = max(m.Length, len(data))
	r.header = m
	r.op.Data = data
	if p.control.head != nil || !e.transmit(r) {
		r.phase = phaseQueued
		p.control.push(r)
		e.stall(peer)
		e.entrust(r)
	}
}

// stall notes that something is queued for a peer.
func (e *Engine) stall(peer int32) {
	if p := &e.peers[peer]; !p.isQueued {
		p.isQueued = true
		e.stalled = append(e.stalled, peer)
		e.rouse()
	}
}

// retry sends what is queued, as far as it goes.
func (e *Engine) retry() {
	e.stalled, e.stalledSpare = e.stalledSpare[:0], e.stalled
	for _, i := range e.stalledSpare {
		p := &e.peers[i]
		p.again = false
		for p.control.head != nil && !p.again {
			r := p.control.pop()
			ok := true
			switch {
			case r.kind == kindRecv:
				ok = e.read(r)
			case r.kind == kindTransfer:
				ok = e.relaunch(r)
			case r.phase == phasePumping:
				e.pump(r) // queues itself
			default:
				ok = e.transmit(r)
			}
			if !ok {
				p.control.unpop(r)
				break
			}
			if !p.again { // as pump may have said
				p.waits = 0
			}
		}
		for p.data.head != nil && !p.again && p.control.head == nil {
			r := p.data.pop()
			if !e.transmitData(r) {
				p.data.unpop(r)
				break
			}
			p.waits = 0
		}
		p.isQueued = false
		if p.control.head != nil || p.data.head != nil {
			e.stall(i)
		} else {
			p.waits = 0
		}
	}
}

// owe gives credit back for a message that was received, with MsgCredit if no
// other message has taken it along for long.
func (e *Engine) owe(peer int32, cost int) {
	if int(peer) == e.rank {
		e.peers[peer].credit += cost
		return
	}
	p := &e.peers[peer]
	p.owed += cost
	if p.owed >= e.window/2 && p.control.head == nil { // what is queued will take it along
		e.sendControl(peer, wire.Message{Kind: wire.MsgCredit}, nil)
	}
}

// sendSelf delivers a message to this rank itself.
func (e *Engine) sendSelf(r *request) {
	m := wire.Message{Kind: wire.MsgEager, Sig: r.sig, Context: r.ctx.id, Tag: r.tag, Length: len(r.buf)}
	if rr := e.posted.match(matchKey{m.Context, r.peer, m.Tag}); rr != nil {
		e.fill(rr, r.peer, &m, r.buf)
		e.complete(r, nil)
		return
	}
	u := e.unexpected.get()
	u.header, u.source = m, r.peer
	p := &e.peers[r.peer]
	if cost := messageCost + len(r.buf); r.mode == Standard && len(r.buf) <= e.eagerLimit && p.credit >= cost {
		p.credit -= cost
		u.cost = cost
		u.data = e.buffers.get(len(r.buf))
		copy(u.data, r.buf)
		e.complete(r, nil)
	} else {
		u.cost = 0
		u.self = Request{r: r, gen: r.gen} // it completes when it is received
		r.phase = phaseSent
		r.header = m
	}
	e.addUnexpected(u)
}
