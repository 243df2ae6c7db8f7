package engine

import (
	"context"
	"errors"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Sending
//
//	             data ≤ eager limit, and credit for it?
//	          yes ┌───────────────┴───────────────┐ no
//	         MsgEager                           MsgRTS
//	    done when the endpoint          done by MsgFin, or when the last
//	    no longer needs buf             MsgData has left; the data stays
//	                                    in buf until then
//
// Credit is memory of the receiver, in bytes. Each receiver grants each peer the same amount
// (Engine.window), for messages that have arrived and that no receive has matched yet. An eager
// message takes its cost from the sender's credit when it leaves. When the message is received, the
// receiver owes this credit to the sender. The receiver returns the credit with its next message to
// the sender, or by a MsgCredit when it owes half of the window.
//
// A MsgRTS takes no credit, for three reasons. Its envelope is small. It costs the sender a request
// that is not complete. And if it waited for credit, a receive could fail to find a message that
// has been sent (MPI 4.1, 3.5, progress).
//
// Messages of the program to one peer leave in the order in which they were posted. Messages of the
// engine itself may overtake them.
//
// If the transport has no room to register the buffer of a send, the MsgRTS says so
// (wire.NoRegion), and the receiver asks for the data by MsgCTS, as on a fabric without RMA. The
// receiver does the same if its endpoint does not reach the region. So the receiver alone decides,
// and the sender accepts either answer.

// messageCost is the credit, in bytes, that an eager message takes in addition to the length of its
// data. It is at least the size of an entry of the unexpected queue plus that of the smallest
// buffer for data. (A buffer may be up to twice as long as its data.)
const messageCost = 448

// Send blocks until buf may be reused: the transport no longer uses it. A Synchronous send also
// blocks until a receive has matched the message. If ctx ends first, Send returns an error that
// wraps ctx's error. If this error is an [Unfinished], the engine still uses buf, and the message
// may still be received. Otherwise the message was withdrawn.
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

// Isend starts a send. The engine uses buf until the request is complete. If a small message leaves
// at once without an error, Isend returns the zero Request, which stands for a complete operation.
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

// SendBuffered starts a send and returns at once (MPI_Bsend). From then on the engine owns buf, so
// the caller must not use it again. No Request identifies the send; FlushBuffered waits for it and
// returns its error.
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

// FlushBuffered blocks until no send of SendBuffered is under way in this context. It returns the
// first error of the sends that have ended since the last call. If ctx ends first, FlushBuffered
// returns ctx's error.
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

// blockOn waits until the request of a blocking call has ended, and frees the request. If ctx ends
// first, blockOn ends the call by cutShort.
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

// startSend starts a send. It returns nil if the message has left already and without an error, as
// most small ones do. Otherwise it returns the request of the send, which may be complete.
func (c *Context) startSend(buf []byte, env *Env) *request {
	e := c.e
	to := c.world(env.Peer)
	p := &e.peers[to]
	if env.Form == nil && len(buf) <= p.eager && p.credit >= messageCost+len(buf) && p.data.head == nil &&
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

// address stores in r the context, the peer (world rank to), the buffer and the envelope of a send.
func (r *request) address(c *Context, to int32, buf []byte, env *Env) {
	r.ctx = c
	r.peer, r.tag, r.sig, r.mode = to, int32(env.Tag), env.Sig, env.Mode
	r.setData(buf, env.Form)
}

// sendNow sends an eager message for which there is credit. to is the world rank of the peer p.
// sendNow gives the endpoint the op of Engine.spare, an unused slot. If the message leaves at once,
// sendNow returns nil, and the slot stays the spare one. If the endpoint keeps the op or has no
// room, or Send fails, the slot becomes the request of the send, and sendNow returns it.
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
	// With exact times, that of the record must be before that at which the receiver can have the message.
	// Otherwise the record comes after the message, which it would delay.
	first := c.recorded && e.record.Exact()
	if first {
		e.record.Sent(c.record, to, int32(env.Tag), len(buf), c.kind|record.Eager, p.sendSeq+1)
	}
	done, err := p.rail.Endpoint.Send(op)
	if p.rail.batch != nil {
		e.noteUnsent(p.rail)
	}
	if err != nil && first {
		e.record.Unsent(to, len(buf))
	}
	if err == nil {
		p.sendSeq++
		if c.recorded && !first {
			e.record.Sent(c.record, to, int32(env.Tag), len(buf), c.kind|record.Eager, p.sendSeq)
		}
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

// submit starts the next operation of a request. If other requests of its kind to the same peer are
// queued, or the endpoint has no room, submit puts the request into their queue instead. It also
// queues a stream if any other request to the peer is queued, and while drain runs.
func (e *Engine) submit(r *request) {
	p := &e.peers[r.peer]
	q, wait := &p.control, false
	switch {
	case r.kind == kindSend && r.phase == phaseQueued:
		q = &p.data
	case r.kind == kindSend && r.phase == phaseStreaming:
		sends := p.data.head != nil && !p.data.head.req.registering
		q, wait = &p.streams, e.draining || p.control.head != nil || sends
	}
	if wait || q.head != nil || !e.attempt(r) {
		e.enqueue(q, r)
	}
}

// enqueue puts a request at the end of q, one of the queues of its peer. retry starts it from
// there.
func (e *Engine) enqueue(q *list, r *request) {
	q.push(&r.node)
	e.stall(r.peer)
	if r.kind == kindControl {
		// The background goroutine must poll for r: no goroutine of this rank waits for the
		// message, but the peer does.
		e.addBackground(r)
	}
}

// streamBurst is the number of bytes of a rendezvous without RMA that one call of attempt sends at
// most, plus one segment. The caller holds the engine's lock meanwhile, and the rank reads nothing.
const streamBurst = 256 << 10

// attempt starts the next operation of a request. If the endpoint completes the operation at once
// and the request has further segments to send, attempt starts the next one, and so on. It returns
// false if the endpoint has no room, or after a streamBurst, which counts as if the endpoint had no
// room. The caller then queues the request.
func (e *Engine) attempt(r *request) bool {
	for from := r.offset; ; {
		done, err := e.launch(r)
		switch {
		case err == nil && !done:
			e.markInflight(r)
			return true
		case errors.Is(err, transport.ErrAgain):
			e.peers[r.peer].noteNoRoom(err)
			return false
		case errors.Is(err, errRegistering):
			return false
		case err != nil || r.phase != phaseStreaming || r.offset == r.total:
			e.opDone(r, err)
			return true
		case r.offset-from >= streamBurst:
			e.peers[r.peer].noteNoRoom(nil)
			return false
		}
	}
}

// launch gives the next operation of a request to its endpoint. done is true if the endpoint no
// longer needs the buffers of the operation, so no completion will follow.
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

// sendData sends a message of the program: eagerly with its data, or as an RTS. It also sends a
// MsgLeave. done is as in launch.
func (e *Engine) sendData(r *request) (done bool, err error) {
	p := &e.peers[r.peer]
	size := r.size()
	cost := messageCost + size
	m := &r.header
	*m = wire.Message{Kind: wire.MsgEager, Sig: r.sig, Context: r.ctx.id, Tag: r.tag, Length: size}
	if r.mode == modeLeave {
		cost, m.Kind = 0, wire.MsgLeave
	} else if size <= p.eager && p.credit >= cost && r.mode != modePartitioned {
		if r.op.Data, err = e.part(r, 0, size); err != nil {
			return false, err
		}
		if r.mode == Synchronous {
			m.Kind, m.Handle = wire.MsgEagerSync, r.handle()
		}
	} else {
		cost = 0
		m.Kind, m.Handle = wire.MsgRTS, r.handle()
		e.dropPacked(r)
		r.op.Data = nil
		buf, _ := r.whole(p.rail)
		// To register a short buffer would cost more than the messages that it saves.
		if p.rail.rma != nil && len(buf) > 0 && (size > p.eager || p.rail.pin == nil) {
			if err = e.registerFor(r, p.rail, buf, transport.RemoteRead|transport.MayKeep); err != nil {
				return false, err
			}
		}
		m.Addr = wire.NoRegion
		if r.region != nil {
			m.Key, m.Addr = r.region.Key(), remoteAddr(r.region, r.span, buf)
		}
	}
	recorded := r.ctx.recorded && r.mode != modeLeave
	if recorded {
		e.recordSent(r, p.sendSeq+1) // before the send, as in sendNow
	}
	if done, err = e.message(r); err != nil && recorded {
		e.record.Unsent(r.peer, size)
	}
	if err == nil {
		p.credit -= cost
		r.phase = phaseSent
		switch {
		case m.Kind != wire.MsgRTS:
		case r.parts != nil:
			e.rtsLeft(r)
		default:
			e.startMoving(r)
		}
	}
	return done, err
}

// sendSegment sends the next segment of the data of a rendezvous without RMA (MsgData). done is as
// in launch.
func (e *Engine) sendSegment(r *request) (done bool, err error) {
	n := min(r.total-r.offset, e.peers[r.peer].rail.attr.MaxMsgSize-transport.HeaderSize)
	if r.form != nil {
		n = min(n, viewSegment)
	}
	if r.op.Data, err = e.part(r, r.offset, n); err != nil {
		e.sendFin(r.peer, r.remote, err)
		return false, err
	}
	r.header = wire.Message{Kind: wire.MsgData, Context: r.ctx.id, Length: n, Handle: r.remote, Addr: uint64(r.offset)}
	if done, err = e.message(r); err == nil {
		r.offset += n
		if done {
			e.dropPacked(r)
		}
	}
	return done, err
}

// message gives the endpoint the message whose header is r.header and whose data is r.op.Data. It
// adds the sequence number, and the credit that this rank owes to the peer. done is as in launch.
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

// post gives a message to the endpoint of a rail. done, the first result, is as in launch.
//
// Hot path: no allocation, no system call except the endpoint's.
func (e *Engine) post(r *rail, op *transport.Op) (bool, error) {
	done, err := r.Endpoint.Send(op)
	if r.batch != nil {
		e.noteUnsent(r)
	}
	return done, err
}

// noteUnsent runs after a Send on a rail whose endpoint may keep small messages, to send several at
// once (rail.batch). If the endpoint keeps the message until the next Read of its queue, a
// goroutine must poll: the sender if it waits next, or else the background goroutine, which
// noteUnsent makes ready for this.
func (e *Engine) noteUnsent(r *rail) {
	if r.unsent || !r.batch.Unsent() {
		return
	}
	r.unsent, r.skip = true, 0
	e.unsent++
	e.wakeSleeper()
	e.ensureRequestProgress(false)
}

// markInflight records that the endpoint has the operation r.op, and uses its buffers. It wakes the
// goroutine that sleeps on the transports, because the operation may need polls.
func (e *Engine) markInflight(r *request) {
	r.inflight = true
	e.startMoving(r)
	if r.kind == kindControl {
		// The background goroutine must poll for r: no goroutine of this rank waits for the
		// message, but the peer does.
		e.addBackground(r)
	}
	e.wakeSleeper()
}

// wakeSleeper wakes the goroutine that sleeps on the transports, if there is one, because it has to
// poll or to sleep with another time limit.
func (e *Engine) wakeSleeper() {
	if e.asleep {
		e.signal()
	}
}

// sent continues a request after the endpoint has finished with the buffers of its last message.
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

// awaitsReply reports whether the message of a send has left, and the receiver has to answer it and
// has not done so yet. It is false for a standard eager send.
func (r *request) awaitsReply() bool {
	return r.phase == phaseSent && (r.header.Kind == wire.MsgRTS || r.header.Kind == wire.MsgEagerSync) && !r.replied
}

// sendControl sends a message of the engine itself, such as MsgAck, with the header m, to a peer.
// It does nothing if no more messages can be sent to the peer, or the engine is closed.
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

// stall records that the queues of a peer have a request, so that retry looks at them.
func (e *Engine) stall(peer int32) {
	if p := &e.peers[peer]; !p.isQueued {
		p.isQueued = true
		e.stalled = append(e.stalled, peer)
		e.wakeSleeper()
	} else if e.asleep && e.nap < 0 && p.noRoom && !p.absent {
		e.signal() // so far the requests to the peer have waited for a registration only, without a time limit
	}
}

// retry starts the requests in the queues of all peers, until an endpoint has no room for a peer's
// next one. It returns the number of requests of which it has sent something.
//
// For each peer, retry serves the messages of the engine itself first, then the sends of the
// program, and streams last, so a small message does not wait for the end of a stream. But a segment
// of a stream needs more room than a small message. So if no stream of the peer could move in the
// last retry, streams come first, and the other requests wait for at most one streamBurst.
func (e *Engine) retry() (n int) {
	e.stalled, e.stalledSpare = e.stalledSpare[:0], e.stalled
	for _, i := range e.stalledSpare {
		p := &e.peers[i]
		p.noRoom = false
		moved := 0
		if p.starved {
			moved = e.serve(p, &p.streams)
		}
		n += e.serve(p, &p.control) + e.serve(p, &p.data)
		if !p.starved {
			moved = e.serve(p, &p.streams)
		}
		n += moved
		p.starved = p.streams.head != nil && moved == 0
		p.isQueued = false
		if p.control.head != nil || p.data.head != nil || p.streams.head != nil {
			e.stall(i)
		} else {
			p.noRoomSince = 0
		}
	}
	return n
}

// serve starts the requests in q, a queue of peer p, in their order. It ends if the endpoint has no
// room for the next one, if the buffer of the next one is being registered, or if streams have sent a
// streamBurst. It returns the number of requests of which it has sent something.
func (e *Engine) serve(p *peer, q *list) (n int) {
	sent := 0 // bytes of streams
loop:
	for q.head != nil && !p.noRoom {
		r := q.pop()
		streams, offset, total := r.phase == phaseStreaming, r.offset, r.total
		switch {
		case e.attempt(r):
			n++
			if streams {
				sent += total - offset
			}
		case streams:
			if r.offset > offset {
				n++
			}
			sent += r.offset - offset
			q.push(&r.node) // at the end, so that the streams to this peer take turns
		default:
			q.pushFront(&r.node)
			if r.registering {
				break loop
			}
		}
		if sent >= streamBurst && q.head != nil {
			p.noteNoRoom(nil)
		}
	}
	if n > 0 {
		p.noRoomSince = 0
	}
	return n
}

// returnCredit returns credit of cost bytes to a peer, because this rank has received a message of
// the peer. The next message to the peer carries the credit. If this rank owes half of the window,
// returnCredit sends a MsgCredit.
func (e *Engine) returnCredit(peer int32, cost int) {
	if int(peer) == e.rank {
		e.peers[peer].credit += cost
		return
	}
	p := &e.peers[peer]
	p.owed += cost
	// If the queue control is not empty, a message there will return the credit.
	if p.owed >= e.window/2 && p.control.head == nil {
		e.sendControl(peer, wire.Message{Kind: wire.MsgCredit}, nil)
	}
}

// sendSelf delivers a message of this rank to itself. If no receive matches it, a small standard
// message with credit is copied, and the data of any other message stays in the buffer of the send
// until it is received.
func (e *Engine) sendSelf(r *request) {
	size := r.size()
	e.ownSeq++
	m := wire.Message{Kind: wire.MsgEager, Sig: r.sig, Context: r.ctx.id, Tag: r.tag, Seq: e.ownSeq, Length: size}
	if c := r.ctx; c.recorded {
		e.record.Sent(c.record, r.peer, r.tag, size, c.kind|record.Own, m.Seq)
	}
	if rr := e.posted.match(matchKey{m.Context, r.peer, m.Tag}); rr != nil {
		err := e.completeOwn(rr, r, &m)
		// An eager send does not wait for the receive, so it does not report the receive's error.
		if r.mode == Standard && size <= e.eagerLimit && !errors.Is(err, elem.ErrDevice) {
			err = nil
		}
		e.complete(r, err)
		return
	}
	p := &e.peers[r.peer]
	if cost := messageCost + size; r.mode == Standard && size <= e.eagerLimit && p.credit >= cost {
		data, err := e.part(r, 0, size)
		if err == nil {
			p.credit -= cost
			e.keepUnexpected(r.peer, &m, data, cost)
		}
		e.complete(r, err)
		return
	}
	u := e.keepUnexpected(r.peer, &m, nil, 0)
	u.self = Request{r: r, gen: r.gen} // accept completes the send when a receive gets the message
	r.phase = phaseSent
	r.header = m
}
