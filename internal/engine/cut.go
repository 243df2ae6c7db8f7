package engine

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// Blocking calls whose context.Context ends
//
// If the context.Context of a blocking send or receive ends, the call is cut short: it returns the
// error of the context.Context. What happens to its request depends on the request's state:
//
//	send     queued ──────────────────────────► withdrawn, the caller owns the buffer
//	         given to the endpoint, or an RTS ► continues; Unfinished
//	receive  posted ──────────────────────────► withdrawn, the caller owns the buffer
//	         matched by a rendezvous ─────────► its message is unexpected again:
//
//	         its buffer is being registered   at once; the caller owns the buffer
//	         this rank reads it     the Read completes, and its data is dropped; Unfinished.
//	                                The next receive of the message reads after that
//	         the sender sends it    the data goes to a buffer of the engine, and the next
//	                                receive copies it from there
//
// So no message is lost if a receive is cut short. (Exceptions: if the message is too long for the
// receive (ErrTruncate), and the sender is sending it, it is lost, because the sender sends only
// the part that fits. A message is also lost if a copy from or to a device fails.) The message returns to its place in the unexpected queue, before later
// messages of the same sender. If another receive that accepts the message was posted meanwhile,
// that receive gets it.
//
// The following picture shows the objects. The request of the call that was cut short still
// transfers the data. Unfinished connects the request with its message (held, msg) and with a later
// receive that has matched the message (taker):
//
//	                  held                    the transfer ends
//	unexpected ◄──► Unfinished ◄── request   ─────────────────► the message becomes an
//	                   │                                        ordinary unexpected one,
//	                   └─► taker: a later receive that          or the taker gets it
//	                       has matched it (phaseMatched)

// Unfinished is the error of a blocking call whose context.Context has ended while the transport
// still used the call's buffer. The engine also makes one if only the transfer into a buffer of the
// engine continues; the call does not return that one.
type Unfinished struct {
	e   *Engine
	why error    // error of the context.Context
	r   *request // the request of the call, which continues
	// Of a receive: its message, which waits for another receive or has matched taker; nil: the
	// message was dropped, or the transfer has ended.
	msg      *unexpected
	taker    Request // a later receive that has matched msg; zero: there is none
	receives bool    // the data arrives in MsgData messages and goes to r.buf, which is a buffer of the engine
	done     bool    // the transfer has ended; Engine.mu guards msg, taker, done and err
	err      error   // of a send: the error with which it has ended
	// Of a receive: the error of the next receive of its message, because the sender could not send all of the
	// message, or a revocation has ended the transfer; nil: the message can be received. Engine.mu guards it.
	lost error
}

// Error returns a text that says that the transfer still uses the call's buffer.
func (u *Unfinished) Error() string {
	return fmt.Sprintf("%v; the transfer has begun and still uses its buffer", u.why)
}

// Unwrap returns the error of the context.Context that has ended.
func (u *Unfinished) Unwrap() error { return u.why }

// Wait blocks until the transport no longer uses the buffer of the call. For a send, Wait returns
// the send's error. For a receive it returns nil. If ctx ends first, Wait returns ctx's error.
func (u *Unfinished) Wait(ctx context.Context) error {
	e := u.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for !u.done {
		if err := e.awaitIn(ctx, &e.completionWaiters, awaited{}); err != nil && !u.done {
			return err
		}
	}
	return u.err
}

// Done reports whether the transport no longer uses the buffer, so that Wait would not block.
func (u *Unfinished) Done() bool {
	u.e.mu.Lock()
	defer u.e.mu.Unlock()
	return u.done
}

// cutShort ends a blocking call whose request r is not complete. why is the error of the call's
// context.Context, or ErrClosed if the engine was closed. cutShort returns the error that the call
// returns.
func (e *Engine) cutShort(r *request, why error) error {
	switch {
	case r.phase == phasePosted: // no transfer has begun
		e.drop(r, why)
		return why
	case r.phase == phaseQueued:
		registering := r.registering
		e.drop(r, why)
		if registering && e.closedErr() == nil {
			e.retry() // requests may wait behind r
		}
		return why
	case r.kind == kindRecv && e.closedErr() == nil && e.revoked[r.ctx.id/2] == nil:
		return e.returnMessage(r, why)
	}
	return e.detach(r, why)
}

// drop ends a request that no transport uses, and frees its slot.
func (e *Engine) drop(r *request, why error) {
	e.cancel(r, why)
	e.release(r)
}

// detach makes a request continue without its call. The engine frees the request when it ends.
func (e *Engine) detach(r *request, why error) *Unfinished {
	r.cut = &Unfinished{e: e, why: why, r: r}
	r.abandoned, r.loaded = true, true
	e.addBackground(r)
	return r.cut
}

// returnMessage ends a receive that has matched a rendezvous message, and returns the message to
// the unexpected queue. The result is the error of the call that was cut short.
func (e *Engine) returnMessage(r *request, why error) error {
	if r.phase == phaseMatched {
		u := r.cut.msg
		r.cut.taker = Request{}
		e.drop(r, why)
		e.restore(u)
		return why
	}
	u := e.unexpected.get()
	u.header, u.source, u.cost = r.header, r.peer, 0
	u.nodes[0].seq = r.node.seq
	switch {
	case r.phase == phaseReading && !r.inflight, r.phase == phaseRegistering:
		e.drop(r, why)
		e.restore(u)
		return why
	case r.phase == phaseReading:
		cut := e.detach(r, why)
		cut.msg, u.held = u, cut
		e.restore(u)
		return cut
	}
	e.removeBackground(r) // before r.buf changes: Engine.large counts the request by the size of its buffer
	own := e.buffers.get(r.total)
	if err := r.copyTo(own[:r.offset]); err != nil && r.err == nil {
		r.err = err
	}
	r.setData(own, nil)
	cut := e.detach(r, why)
	// The message cannot be returned: it is too long for the receive, so the sender sends only a part of it; or
	// a device copy has failed, and a part is lost.
	if r.err != nil {
		e.unexpected.put(u)
		return fmt.Errorf("%w: %w", r.err, why)
	}
	u.header.Kind = wire.MsgEager
	cut.receives, cut.msg, u.held = true, u, cut
	e.restore(u)
	return why
}

// restore returns a message to its place in the unexpected queue. If a receive that accepts the
// message was posted meanwhile, restore gives the message to that receive instead.
func (e *Engine) restore(u *unexpected) {
	if r := e.posted.match(matchKey{u.header.Context, u.source, u.header.Tag}); r != nil {
		e.accept(r, u)
		return
	}
	e.unexpected.restore(u)
	e.wakeProbes(u)
	if e.leaving != nil {
		e.refuseInFinalize(u)
	}
}

// matchHeld matches the receive r with the message u, whose data the request of an earlier receive
// still transfers (u.held). r then waits for the end of that transfer (phaseMatched), unless it has
// failed because the two do not belong together (see matched).
func (e *Engine) matchHeld(r *request, u *unexpected) {
	if err := e.matched(r, u.source, &u.header); err != nil {
		e.refuse(u.source, &u.header, Request{}, err)
		e.discard(u)
		return
	}
	r.phase, r.loaded = phaseMatched, true
	r.cut = u.held
	r.cut.taker = Request{r: r, gen: r.gen}
}

// cutEnded runs when the request of an Unfinished has ended. If the request was a receive, its
// message becomes an ordinary unexpected message, or goes to the receive that has matched it.
func (e *Engine) cutEnded(r *request) {
	cut, u := r.cut, r.cut.msg
	r.cut = nil
	cut.done, cut.msg = true, nil
	if r.kind == kindSend {
		cut.err = r.err
		return
	}
	if u == nil {
		return // the message was dropped, or was too long for its receive
	}
	why := e.revoked[u.header.Context/2]
	if cut.receives {
		u.data = r.buf
		switch {
		case r.err == nil:
		case why != nil: // only a part of the data has arrived
			cut.lost = why
		case e.peers[u.source].err == nil:
			cut.lost = r.err
		default:
			// The transfer has failed because its sender has. The message becomes an RTS again, because a
			// receive that matches an RTS of a failed sender fails too.
			u.header.Kind = wire.MsgRTS
		}
	}
	if cut.lost == nil {
		u.held = nil
	}
	to := cut.taker
	if to.r == nil {
		// If the node is in a list, the message is in the unexpected queue. Otherwise Mprobe or Attend
		// has taken it out of the queue, so a receive may still follow.
		if e.leaving != nil && u.nodes[0].list != nil {
			e.refuseInFinalize(u)
		}
		return
	}
	switch {
	case to.doneLocked(): // the receive that matched the message has ended, for example by a revocation
		e.refuse(u.source, &u.header, Request{}, why)
		e.discard(u)
	case why != nil:
		e.complete(to.r, why)
		e.refuse(u.source, &u.header, Request{}, why)
		e.discard(u)
	default:
		to.r.cut = nil
		e.accept(to.r, u)
	}
}
