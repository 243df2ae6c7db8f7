package engine

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// Blocking calls whose context.Context ends
//
//	send     queued ──────────────────────────► withdrawn, the buffer is the caller's
//	         given to the endpoint, or an RTS ► goes on; Unfinished
//	receive  posted ──────────────────────────► withdrawn, the buffer is the caller's
//	         matched by a rendezvous ─────────► its message is unexpected again:
//
//	         this rank reads it     the Read completes, and its data is dropped; Unfinished.
//	                                The next receive of the message reads after that
//	         the sender sends it    the data goes to a buffer of the engine, and the next
//	                                receive copies it from there
//
// So a receive whose context ends loses no message. The message returns to its place:
// before later messages of the same sender. If another receive that matches it has been
// posted meanwhile, that receive gets it. One case loses a message: it is too long for
// its receive (ErrTruncate), and its sender is sending it. The sender sends only the part
// that fits.
//
//	                  held                    the transfer ends
//	unexpected ◄──► Unfinished ◄── request   ─────────────────► the message is an
//	                   │                                        unexpected one like
//	                   └─► taker: a later receive that          others, or goes to
//	                       has matched it (phaseMatched)        the taker

// Unfinished is the error of a blocking call whose context has ended while the transport
// uses the call's buffer.
type Unfinished struct {
	e     *Engine
	why   error       // error of the context
	r     *request    // the operation
	msg   *unexpected // of a receive: its message, which is unexpected again; nil: purged
	taker Request     // a receive that has matched msg
	fills bool        // the sender sends the data to r.buf, which belongs to the engine
	done  bool        // msg, taker and done are guarded by Engine.mu
	err   error       // error of a send
}

// Error returns a text that says that the buffer is in use.
func (u *Unfinished) Error() string {
	return fmt.Sprintf("%v; the transfer has begun, goes on and keeps its buffer", u.why)
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
		if err := e.awaitIn(ctx, &e.watchers, awaited{}); err != nil && !u.done {
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
	case r.kind == kindRecv && e.over() == nil && e.revoked[r.ctx.id/2] == nil:
		return e.giveBack(r, why)
	}
	return e.goOn(r, why)
}

// drop ends a request that uses no buffer, and frees it.
func (e *Engine) drop(r *request, why error) {
	e.cancel(r, why)
	e.release(r)
}

// goOn detaches a request from its caller. The request continues, and is freed when it
// ends.
func (e *Engine) goOn(r *request, why error) *Unfinished {
	r.cut = &Unfinished{e: e, why: why, r: r}
	r.abandoned, r.loaded = true, true
	e.entrust(r)
	return r.cut
}

// giveBack ends a receive that has matched a rendezvous message, and puts the message back
// into the unexpected queue.
func (e *Engine) giveBack(r *request, why error) error {
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
		cut := e.goOn(r, why)
		cut.msg, u.held = u, cut
		e.restore(u)
		return cut
	}
	e.redeem(r) // before r.buf changes: whether r counts as large depends on its buffer
	own := e.buffers.get(r.total)
	copy(own, r.buf[:r.offset])
	r.buf = own
	cut := e.goOn(r, why)
	if r.err != nil { // too long: the sender does not send all of it
		e.unexpected.put(u)
		return fmt.Errorf("%w: %w", r.err, why)
	}
	u.header.Kind = wire.MsgEager
	cut.fills, cut.msg, u.held = true, u, cut
	e.restore(u)
	return why
}

// restore puts a message back into its place in the unexpected queue, or gives it to a
// matching receive that has been posted meanwhile.
func (e *Engine) restore(u *unexpected) {
	if r := e.posted.match(matchKey{u.header.Context, u.source, u.header.Tag}); r != nil {
		e.accept(r, u)
		return
	}
	e.unexpected.restore(u)
	e.tellProbes(u)
	if e.leaving != nil {
		e.refuseLate(u)
	}
}

// takeHeld matches a receive with a message that the transfer of an earlier receive still
// uses.
func (e *Engine) takeHeld(r *request, u *unexpected) {
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
		return // purged, or too long
	}
	u.held = nil
	why := e.revoked[u.header.Context/2]
	if cut.fills {
		u.data = r.buf
		if r.err != nil && why == nil { // the sender has failed: a receive of the message fails
			u.header.Kind = wire.MsgRTS
		}
	}
	to := cut.taker
	if to.r == nil {
		if e.leaving != nil && u.nodes[0].list != nil { // otherwise Mprobe has taken the message
			e.refuseLate(u)
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
