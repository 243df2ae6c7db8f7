package engine

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// Blocking calls whose context.Context ends
//
//	send     queued ──────────────────────────► withdrawn, the caller owns the buffer
//	         given to the endpoint, or an RTS ► continues; Unfinished
//	receive  posted ──────────────────────────► withdrawn, the caller owns the buffer
//	         matched by a rendezvous ─────────► its message is unexpected again:
//
//	         this rank reads it     the Read completes, and its data is dropped; Unfinished.
//	                                The next receive of the message reads after that
//	         the sender sends it    the data goes to a buffer of the engine, and the next
//	                                receive copies it from there
//
// So a receive whose context ends loses no message. The message returns to its place: before
// later messages of the same sender. If another receive that matches it has been posted
// meanwhile, that receive gets it. In one case a message is lost: it is too long for its receive
// (ErrTruncate), and its sender is sending it. The sender sends only the part that fits.
//
//	                  held                    the transfer ends
//	unexpected ◄──► Unfinished ◄── request   ─────────────────► the message becomes an
//	                   │                                        ordinary unexpected one,
//	                   └─► taker: a later receive that          or the taker gets it
//	                       has matched it (phaseMatched)

// Unfinished is the error of a blocking call whose context has ended while the transport
// uses the call's buffer.
type Unfinished struct {
	e        *Engine
	why      error       // error of the context
	r        *request    // the operation
	msg      *unexpected // of a receive: its message, which is unexpected again; nil: the message was dropped
	taker    Request     // a receive that has matched msg
	receives bool        // the sender sends the data (MsgData) to r.buf, which is a buffer of the engine
	done     bool        // msg, taker and done are guarded by Engine.mu
	err      error       // of a send: its error
}

// Error returns a text that says that the buffer is still in use.
func (u *Unfinished) Error() string {
	return fmt.Sprintf("%v; the transfer has begun and still uses its buffer", u.why)
}

// Unwrap returns the context's error.
func (u *Unfinished) Unwrap() error { return u.why }

// Wait blocks until the transport no longer uses the buffer. It returns the error of a
// send, and nil for a receive. If ctx ends first, Wait returns ctx's error.
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

// Done reports whether Wait would return without waiting.
func (u *Unfinished) Done() bool {
	u.e.mu.Lock()
	defer u.e.mu.Unlock()
	return u.done
}

// cutShort ends the request of a blocking call whose context has ended, and returns the
// call's error.
func (e *Engine) cutShort(r *request, why error) error {
	switch {
	case r.phase == phasePosted, r.phase == phaseQueued: // no transfer has begun
		e.drop(r, why)
		return why
	case r.kind == kindRecv && e.closedErr() == nil && e.revoked[r.ctx.id/2] == nil:
		return e.returnMessage(r, why)
	}
	return e.detach(r, why)
}

// drop ends a request that uses no buffer, and frees it.
func (e *Engine) drop(r *request, why error) {
	e.cancel(r, why)
	e.release(r)
}

// detach separates a request from its call. The request continues, and the engine frees it when
// it ends.
func (e *Engine) detach(r *request, why error) *Unfinished {
	r.cut = &Unfinished{e: e, why: why, r: r}
	r.abandoned, r.loaded = true, true
	e.addBackground(r)
	return r.cut
}

// returnMessage ends a receive that has matched a rendezvous message, and returns the message to
// the unexpected queue.
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
	case r.phase == phaseReading && !r.inflight:
		e.drop(r, why)
		e.restore(u)
		return why
	case r.phase == phaseReading:
		cut := e.detach(r, why)
		cut.msg, u.held = u, cut
		e.restore(u)
		return cut
	}
	e.removeBackground(r) // before r.buf changes, because large depends on the buffer
	own := e.buffers.get(r.total)
	copy(own, r.buf[:r.offset])
	r.buf = own
	cut := e.detach(r, why)
	if r.err != nil { // the message is too long, so the sender does not send all of it
		e.unexpected.put(u)
		return fmt.Errorf("%w: %w", r.err, why)
	}
	u.header.Kind = wire.MsgEager
	cut.receives, cut.msg, u.held = true, u, cut
	e.restore(u)
	return why
}

// restore returns a message to its place in the unexpected queue, or gives it to a matching
// receive that has been posted meanwhile.
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

// matchHeld matches a receive with a message that the transfer of an earlier receive still uses.
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

// cutEnded continues after the request of an Unfinished has ended.
func (e *Engine) cutEnded(r *request) {
	cut, u := r.cut, r.cut.msg
	r.cut = nil
	cut.done, cut.msg = true, nil
	if r.kind == kindSend {
		cut.err = r.err
		return
	}
	if u == nil {
		return // no message goes back: it was dropped, or was too long for its receive
	}
	u.held = nil
	why := e.revoked[u.header.Context/2]
	if cut.receives {
		u.data = r.buf
		if r.err != nil && why == nil { // the transfer failed with its sender: as an RTS, the message makes a later receive fail, too
			u.header.Kind = wire.MsgRTS
		}
	}
	to := cut.taker
	if to.r == nil {
		if e.leaving != nil && u.nodes[0].list != nil { // otherwise Mprobe has taken the message
			e.refuseInFinalize(u)
		}
		return
	}
	switch {
	case to.doneLocked(): // the engine, the peer or the communicator has ended it
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
