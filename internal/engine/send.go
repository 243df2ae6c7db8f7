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
// Users' messages to one peer leave in the order in which they were posted. The engine's
// own messages may overtake them.
//
// If the transport has no room for another memory region, the MsgRTS says so, and the
// receiver asks for the data by MsgCTS, as on a fabric without RMA.

// messageCost is the credit that an eager message takes besides its data: what
// its entry in the unexpected queue and the smallest buffer take. (A buffer may
// be up to twice as long as its data.)
const messageCost = 448

// Send blocks until buf may be reused: the data has left, or is in the receiver's memory.
// A Synchronous send blocks until the message is received. If ctx ends first, Send returns
// ctx's error. The error is an Unfinished if the message may still be received and the
// engine still uses buf; otherwise the message is withdrawn.
//
// Hot path: no allocation, no system call except the endpoint's.
func (c *Context) Send(ctx context.Context, buf []byte, env Env) error {
	e := c.e
	e.mu.Lock()
	var err error
	if r := c.startSend(buf, &env); r != nil {
		_, err = e.blockOn(ctx, r)
	}
	e.mu.Unlock()
	return err
}

// Isend starts a send; buf belongs to the engine until the request is complete.
// Where it is complete at once the request is zero.
//
// Hot path: no allocation, no system call but the endpoint's.
func (c *Context) Isend(buf []byte, env Env) Request {
	e := c.e
	e.mu.Lock()
	var q Request
	if r := c.startSend(buf, &env); r != nil {
		q = e.public(r, env.Attended)
	}
	e.mu.Unlock()
	return q
}

// SendBuffered starts a send that frees itself when it has ended, and returns at
// once (MPI_Bsend). buf belongs to the engine from then on.
func (c *Context) SendBuffered(buf []byte, env Env) {
	e := c.e
	e.mu.Lock()
	if r := c.startSend(buf, &env); r != nil {
		c.buffered++
		r.buffered, r.abandoned = true, true
		if r.done {
			e.abandoned(r)
		} else {
			e.entrust(r)
		}
	}
	e.mu.Unlock()
}

// FlushBuffered blocks until no send of SendBuffered is under way, and returns
// the first error of those that have ended since the last call, or that of ctx.
func (c *Context) FlushBuffered(ctx context.Context) error {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for c.buffered > 0 {
		if err := e.awaitIn(ctx, &e.watchers, awaited{}); err != nil {
			return err
		}
	}
	err := c.bufferedErr
	c.bufferedErr = nil
	return err
}

// blockOn waits for the request of a blocking call.
func (e *Engine) blockOn(ctx context.Context, r *request) (Status, error) {
	var err error
	if !r.done {
		err = e.awaitRequest(ctx, r)
	}
	if r.done {
		return e.collect(r)
	}
	st := Status{Cancelled: r.kind == kindRecv}
	return st, e.cutShort(r, err)
}

// startSend begins a send. It returns nil if the send is complete, as most small ones are.
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
	switch err := c.unusable(); {
	case err != nil:
		e.complete(r, err)
	case int(r.peer) == e.rank:
		e.sendSelf(r)
	case p.err != nil:
		e.complete(r, p.err)
	default:
		r.phase = phaseQueued
		e.submit(r)
	}
	return r
}

func (r *request) address(c *Context, to int32, buf []byte, env *Env) {
	r.ctx, r.buf = c, buf
	r.peer, r.tag, r.sig, r.mode = to, int32(env.Tag), env.Sig, env.Mode
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
	done, err := e.post(p.rail, op)
	if err == nil {
		p.sendSeq++
		p.owed = 0
		p.credit -= messageCost + len(buf)
		if done {
			op.Data = nil
			e.countSent(c, len(buf))
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
		r.phase = phaseQueued
		e.enqueue(&p.data, r)
	default:
		e.complete(r, e.peerError(to, err))
	}
	return r
}

// submit begins a request's next operation. If other requests are queued before it or
// the endpoint has no room, submit queues the request.
func (e *Engine) submit(r *request) {
	p := &e.peers[r.peer]
	q := &p.control
	if r.kind == kindSend && r.phase == phaseQueued {
		q = &p.data
	}
	if q.head != nil || !e.attempt(r) {
		e.enqueue(q, r)
	}
}

// enqueue puts a request at the end of a queue of its peer. retry takes it from there.
func (e *Engine) enqueue(q *list, r *request) {
	q.push(&r.node)
	e.stall(r.peer)
	if r.kind == kindControl {
		e.entrust(r) // no goroutine waits for it here, but the peer does
	}
}

// attempt begins a request's next operation. While the endpoint completes operations
// at once, attempt goes on to the operation after that. It returns false if the
// endpoint has no room.
func (e *Engine) attempt(r *request) bool {
	for {
		done, err := e.launch(r)
		switch {
		case errors.Is(err, transport.ErrAgain):
			e.peers[r.peer].hold(err)
			return false
		case err == nil && !done:
			e.posting(r)
			return true
		case err != nil || r.phase != phasePumping || r.offset == r.total:
			e.opDone(r, err)
			return true
		}
	}
}

// launch gives a request's next operation to its endpoint. done says that the
// endpoint does not need the buffers any more.
func (e *Engine) launch(r *request) (done bool, err error) {
	switch {
	case r.kind == kindTransfer:
		return e.launchTransfer(r.transfer)
	case r.kind == kindRecv:
		return false, e.read(r)
	case r.kind == kindControl:
		return e.message(r)
	case r.phase == phasePumping:
		return e.sendPiece(r)
	}
	return e.sendData(r)
}

// sendData sends a user's message, or its RTS.
func (e *Engine) sendData(r *request) (done bool, err error) {
	p := &e.peers[r.peer]
	cost := messageCost + len(r.buf)
	m := &r.header
	*m = wire.Message{Kind: wire.MsgEager, Sig: r.sig, Context: r.ctx.id, Tag: r.tag, Length: len(r.buf)}
	if r.mode == leave {
		cost, m.Kind = 0, wire.MsgLeave
	} else if len(r.buf) <= p.eager && p.credit >= cost {
		r.op.Data = r.buf
		if r.mode == Synchronous {
			m.Kind, m.Handle = wire.MsgEagerSync, r.handle()
		}
	} else {
		cost = 0
		m.Kind, m.Handle = wire.MsgRTS, r.handle()
		r.op.Data = nil
		if p.rail.rma != nil && len(r.buf) > 0 && r.region == nil {
			r.region, r.span, err = e.region(p.rail, r.buf, transport.RemoteRead)
			if err != nil && !errors.Is(err, transport.ErrAgain) {
				return false, err
			}
		}
		m.Addr = wire.NoRegion
		if r.region != nil {
			m.Key, m.Addr = r.region.Key(), remoteAddr(r.region, r.span, r.buf)
		}
	}
	if done, err = e.message(r); err == nil {
		p.credit -= cost
		r.phase = phaseSent
		if m.Kind == wire.MsgRTS {
			e.move(r)
		}
	}
	return done, err
}

// sendPiece sends the next piece of the data of a rendezvous without RMA.
func (e *Engine) sendPiece(r *request) (done bool, err error) {
	n := min(r.total-r.offset, e.peers[r.peer].rail.attr.MaxMsgSize-transport.HeaderSize)
	r.header = wire.Message{Kind: wire.MsgData, Context: r.ctx.id, Length: n, Handle: r.remote, Addr: uint64(r.offset)}
	r.op.Data = r.buf[r.offset : r.offset+n]
	if done, err = e.message(r); err == nil {
		r.offset += n
	}
	return done, err
}

// message gives a message with r.header and r.op.Data to the endpoint.
func (e *Engine) message(r *request) (done bool, err error) {
	p := &e.peers[r.peer]
	m := &r.header
	m.Seq, m.Credit = p.sendSeq+1, uint32(p.owed)
	r.op.HeaderLen = m.Put(r.op.Header[:])
	r.op.Peer = transport.Addr(r.peer)
	if done, err = e.post(p.rail, &r.op); err == nil {
		p.sendSeq++
		p.owed = 0
	}
	return done, err
}

// post gives a message to the endpoint of a rail. If the endpoint keeps it until
// the next Read of the queue, a goroutine must poll: the sender if it waits next,
// else the background goroutine.
//
// Hot path: no allocation, no system call but the endpoint's.
func (e *Engine) post(r *rail, op *transport.Op) (bool, error) {
	done, err := r.Endpoint.Send(op)
	if r.batch != nil && !r.unsent && r.batch.Unsent() {
		r.unsent, r.skip = true, 0
		e.unsent++
		e.rouse()
		e.attendRequest(false)
	}
	return done, err
}

// posting notes that the endpoint has r.op, and wakes the goroutine that sleeps on the
// transports: the endpoint may need polls for it.
func (e *Engine) posting(r *request) {
	r.inflight = true
	e.move(r)
	if r.kind == kindControl {
		e.entrust(r) // no goroutine waits for it here, but the peer does
	}
	e.rouse()
}

// rouse wakes the goroutine that sleeps on the transports, because there is new work
// for it.
func (e *Engine) rouse() {
	if e.asleep {
		e.signal()
	}
}

// sent goes on when the endpoint has done with a message's buffers.
func (e *Engine) sent(r *request) {
	switch {
	case r.kind != kindSend:
		e.finish(r, nil)
	case r.phase == phasePumping && r.offset < r.total:
		e.submit(r)
	case !r.awaitsReply():
		e.complete(r, r.err)
	case len(e.revoked) > 0 && e.revoked[r.ctx.id/2] != nil:
		e.complete(r, e.revoked[r.ctx.id/2])
	}
}

// awaitsReply reports whether a message has left that the receiver answers.
func (r *request) awaitsReply() bool {
	return r.phase == phaseSent && (r.header.Kind == wire.MsgRTS || r.header.Kind == wire.MsgEagerSync) && !r.replied
}

// sendControl sends a message of the engine's own.
func (e *Engine) sendControl(peer int32, m wire.Message, data []byte) {
	p := &e.peers[peer]
	if p.err != nil || e.closed {
		return
	}
	r := e.take(kindControl)
	r.peer, r.abandoned = peer, true
	m.Length = max(m.Length, len(data))
	r.header = m
	r.op.Data = data
	e.submit(r)
}

// stall notes that something is queued for a peer.
func (e *Engine) stall(peer int32) {
	if p := &e.peers[peer]; !p.isQueued {
		p.isQueued = true
		e.stalled = append(e.stalled, peer)
		e.rouse()
	}
}

// retry sends what is queued, until the endpoints have no room.
func (e *Engine) retry() {
	e.stalled, e.stalledSpare = e.stalledSpare[:0], e.stalled
	for _, i := range e.stalledSpare {
		p := &e.peers[i]
		p.again = false
		for _, q := range [...]*list{&p.control, &p.data} {
			for q.head != nil && !p.again {
				switch r := q.pop(); {
				case e.attempt(r):
					p.waits = 0
				case r.phase == phasePumping:
					q.push(&r.node) // others have their turn between two pieces
				default:
					q.pushFront(&r.node)
				}
			}
		}
		p.isQueued = false
		if p.control.head != nil || p.data.head != nil {
			e.stall(i)
		} else {
			p.waits = 0
		}
	}
}

// owe gives credit back for a message that was received: with the next message to the
// peer, or by MsgCredit when half a window is owed.
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
		err := e.fill(rr, r.peer, &m, r.buf)
		if r.mode == Standard && len(r.buf) <= e.eagerLimit { // the send does not wait for the receive
			err = nil
		}
		e.complete(r, err)
		return
	}
	p := &e.peers[r.peer]
	if cost := messageCost + len(r.buf); r.mode == Standard && len(r.buf) <= e.eagerLimit && p.credit >= cost {
		p.credit -= cost
		e.keep(r.peer, &m, r.buf, cost)
		e.complete(r, nil)
		return
	}
	u := e.keep(r.peer, &m, nil, 0)
	u.self = Request{r: r, gen: r.gen} // it completes when it is received
	r.phase = phaseSent
	r.header = m
}
