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
//	    done when the endpoint          done by MsgFin; the data stays
//	    has taken the buffer            in buf until the receiver reads
//	                                    it or asks for it
//
// Credit is memory at the receiver, in bytes: each receiver grants each peer a limit for data
// that no receive has asked for yet. An eager message takes its cost from the sender's credit
// when it leaves, and frees it when it is received. The receiver returns the credit with its next
// message, or by MsgCredit when it owes half a window. A MsgRTS takes no credit: its envelope is
// small, it costs the sender a request that is not complete, and if it waited for credit, a
// receive could fail to find a message that has been sent (MPI 4.1, 3.5, progress).
//
// Messages of the program to one peer leave in the order in which they were posted. Messages of
// the engine itself may overtake them.
//
// If the transport has no room for another memory region, the MsgRTS says so, and the receiver
// asks for the data by MsgCTS, as on a fabric without RMA.

// messageCost is the credit that an eager message takes in addition to its data: the size of its
// entry in the unexpected queue and of the smallest buffer. (A buffer may be up to twice as long
// as its data.)
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

// Isend starts a send. The engine uses buf until the request is complete. If the send is complete
// at once, the request is zero.
//
// Hot path: no allocation, no system call except the endpoint's.
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

// SendBuffered starts a send and returns at once (MPI_Bsend). The engine owns buf from then on,
// and frees the request when the send has ended.
func (c *Context) SendBuffered(buf []byte, env Env) {
	e := c.e
	e.mu.Lock()
	if r := c.startSend(buf, &env); r != nil {
		c.buffered++
		r.buffered, r.abandoned = true, true
		if r.done {
			e.abandoned(r)
		} else {
			e.addBackground(r)
		}
	}
	e.mu.Unlock()
}

// FlushBuffered blocks until no send of SendBuffered is under way. It returns the first error of
// the sends that have ended since the last call. If ctx ends first, it returns ctx's error.
func (c *Context) FlushBuffered(ctx context.Context) error {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for c.buffered > 0 {
		if err := e.awaitIn(ctx, &e.completionWaiters, awaited{}); err != nil {
			return err
		}
	}
	err := c.bufferedErr
	c.bufferedErr = nil
	return err
}

// blockOn waits for the request of a blocking call and collects it. If ctx ends first, blockOn
// ends the request by cutShort.
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

// startSend starts a send. It returns nil if the send is complete, as most small ones are.
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

// sendNow sends an eager message for which there is credit. It gives the endpoint the op of a
// spare slot. The slot becomes a request only if the endpoint keeps the op or has no room. If the
// message has left, sendNow returns nil.
//
// Hot path: no allocation, no system call except the endpoint's.
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
		e.markInflight(r)
	case errors.Is(err, transport.ErrAgain):
		p.noteNoRoom(err)
		r.phase = phaseQueued
		e.enqueue(&p.data, r)
	default:
		e.complete(r, e.peerError(to, err))
	}
	return r
}

// submit starts a request's next operation. If other requests are queued before it or the
// endpoint has no room, submit queues the request.
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
		e.addBackground(r) // no goroutine of this rank waits for it, but the peer does
	}
}

// attempt starts a request's next operation. While the endpoint completes operations at once,
// attempt continues with the next operation. It returns false if the endpoint has no room.
func (e *Engine) attempt(r *request) bool {
	for {
		done, err := e.launch(r)
		switch {
		case errors.Is(err, transport.ErrAgain):
			e.peers[r.peer].noteNoRoom(err)
			return false
		case err == nil && !done:
			e.markInflight(r)
			return true
		case err != nil || r.phase != phaseStreaming || r.offset == r.total:
			e.opDone(r, err)
			return true
		}
	}
}

// launch gives a request's next operation to its endpoint. done is true if the endpoint no longer
// needs the buffers.
func (e *Engine) launch(r *request) (done bool, err error) {
	switch {
	case r.kind == kindTransfer:
		return e.launchTransfer(r.transfer)
	case r.kind == kindRecv:
		return false, e.read(r)
	case r.kind == kindControl:
		return e.message(r)
	case r.phase == phaseStreaming:
		return e.sendSegment(r)
	}
	return e.sendData(r)
}

// sendData sends a message of the program, or its RTS.
func (e *Engine) sendData(r *request) (done bool, err error) {
	p := &e.peers[r.peer]
	cost := messageCost + len(r.buf)
	m := &r.header
	*m = wire.Message{Kind: wire.MsgEager, Sig: r.sig, Context: r.ctx.id, Tag: r.tag, Length: len(r.buf)}
	if r.mode == modeLeave {
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
			e.startMoving(r)
		}
	}
	return done, err
}

// sendSegment sends the next segment of the data of a rendezvous without RMA.
func (e *Engine) sendSegment(r *request) (done bool, err error) {
	n := min(r.total-r.offset, e.peers[r.peer].rail.attr.MaxMsgSize-transport.HeaderSize)
	r.header = wire.Message{Kind: wire.MsgData, Context: r.ctx.id, Length: n, Handle: r.remote, Addr: uint64(r.offset)}
	r.op.Data = r.buf[r.offset : r.offset+n]
	if done, err = e.message(r); err == nil {
		r.offset += n
	}
	return done, err
}

// message gives the endpoint a message of r.header and r.op.Data.
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

// post gives a message to the endpoint of a rail. If the endpoint keeps the message until the
// next Read of its queue, a goroutine must poll: the sender if it waits next, else the background
// goroutine.
//
// Hot path: no allocation, no system call except the endpoint's.
func (e *Engine) post(r *rail, op *transport.Op) (bool, error) {
	done, err := r.Endpoint.Send(op)
	if r.batch != nil && !r.unsent && r.batch.Unsent() {
		r.unsent, r.skip = true, 0
		e.unsent++
		e.wakeSleeper()
		e.ensureRequestProgress(false)
	}
	return done, err
}

// markInflight records that the endpoint has r.op, and wakes the goroutine that sleeps on the
// transports, because the endpoint may need polls for the op.
func (e *Engine) markInflight(r *request) {
	r.inflight = true
	e.startMoving(r)
	if r.kind == kindControl {
		e.addBackground(r) // no goroutine of this rank waits for it, but the peer does
	}
	e.wakeSleeper()
}

// wakeSleeper wakes the goroutine that sleeps on the transports, because there is new work for
// it.
func (e *Engine) wakeSleeper() {
	if e.asleep {
		e.signal()
	}
}

// sent continues a request after the endpoint has finished with a message's buffers.
func (e *Engine) sent(r *request) {
	switch {
	case r.kind != kindSend:
		e.finish(r, nil)
	case r.phase == phaseStreaming && r.offset < r.total:
		e.submit(r)
	case !r.awaitsReply():
		e.complete(r, r.err)
	case len(e.revoked) > 0 && e.revoked[r.ctx.id/2] != nil:
		e.complete(r, e.revoked[r.ctx.id/2])
	}
}

// awaitsReply reports whether the request's message has left and the receiver has yet to answer
// it.
func (r *request) awaitsReply() bool {
	return r.phase == phaseSent && (r.header.Kind == wire.MsgRTS || r.header.Kind == wire.MsgEagerSync) && !r.replied
}

// sendControl sends a message of the engine itself.
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

// stall records that a request is queued for a peer.
func (e *Engine) stall(peer int32) {
	if p := &e.peers[peer]; !p.isQueued {
		p.isQueued = true
		e.stalled = append(e.stalled, peer)
		e.wakeSleeper()
	}
}

// retry starts the queued operations until the endpoints have no room.
func (e *Engine) retry() {
	e.stalled, e.stalledSpare = e.stalledSpare[:0], e.stalled
	for _, i := range e.stalledSpare {
		p := &e.peers[i]
		p.noRoom = false
		for _, q := range [...]*list{&p.control, &p.data} {
			for q.head != nil && !p.noRoom {
				switch r := q.pop(); {
				case e.attempt(r):
					p.noRoomSince = 0
				case r.phase == phaseStreaming:
					q.push(&r.node) // so that other requests send between two segments
				default:
					q.pushFront(&r.node)
				}
			}
		}
		p.isQueued = false
		if p.control.head != nil || p.data.head != nil {
			e.stall(i)
		} else {
			p.noRoomSince = 0
		}
	}
}

// returnCredit returns the credit of a message that was received: with the next message to the
// peer, or by MsgCredit when half a window is owed.
func (e *Engine) returnCredit(peer int32, cost int) {
	if int(peer) == e.rank {
		e.peers[peer].credit += cost
		return
	}
	p := &e.peers[peer]
	p.owed += cost
	if p.owed >= e.window/2 && p.control.head == nil { // otherwise a queued message will return the credit
		e.sendControl(peer, wire.Message{Kind: wire.MsgCredit}, nil)
	}
}

// sendSelf delivers a message from this rank to itself.
func (e *Engine) sendSelf(r *request) {
	m := wire.Message{Kind: wire.MsgEager, Sig: r.sig, Context: r.ctx.id, Tag: r.tag, Length: len(r.buf)}
	if rr := e.posted.match(matchKey{m.Context, r.peer, m.Tag}); rr != nil {
		err := e.completeEager(rr, r.peer, &m, r.buf)
		if r.mode == Standard && len(r.buf) <= e.eagerLimit { // an eager send does not wait for the receive, so it has no error of the receive
			err = nil
		}
		e.complete(r, err)
		return
	}
	p := &e.peers[r.peer]
	if cost := messageCost + len(r.buf); r.mode == Standard && len(r.buf) <= e.eagerLimit && p.credit >= cost {
		p.credit -= cost
		e.keepUnexpected(r.peer, &m, r.buf, cost)
		e.complete(r, nil)
		return
	}
	u := e.keepUnexpected(r.peer, &m, nil, 0)
	u.self = Request{r: r, gen: r.gen} // the send completes when the message is received
	r.phase = phaseSent
	r.header = m
}
