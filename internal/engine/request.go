package engine

import (
	"context"
	"errors"

	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Status describes the message that a receive or probe has matched.
type Status struct {
	Source    int // the sender's rank in the context's group
	Tag       int
	Bytes     int  // length of the whole message, also if only a part of it was received
	Cancelled bool // the receive was withdrawn, or its call was cut short, so it has received no message
}

// Request identifies an operation of the program. It is a value, which may be copied. When Wait or
// a similar call has freed the operation, all copies of the Request are stale: they report the
// operation as complete, without an error. The zero Request also stands for a complete operation.
type Request struct {
	r *request // slot of the operation, in the engine's table of requests; nil in the zero Request
	// Generation of the slot when the operation began; if the slot has another one now, the Request is
	// stale.
	gen  uint32
	Note uint32 // for use by the program; the engine does not read it
}

// requestKind says what a slot of the table of requests is used for.
type requestKind uint8

const (
	kindFree     requestKind = iota // unused
	kindSend                        // a send of the program
	kindRecv                        // a receive of the program
	kindControl                     // a message that the engine itself sends; no Request identifies it
	kindTask                        // a function that Engine.Go runs
	kindTransfer                    // the slot of a Transfer; no Request identifies it
	kindOp                          // an operation of one-sided communication, from Port.Begin to Port.Complete
	kindProgram                     // an operation of the program, from Engine.Begin to Request.Complete
)

// phase is the state of a send or receive. It changes under the engine's lock. done in the picture
// is the field of request:
//
//	send:    queued ─► sent ─────────────────────────► done     eager
//	            └────► sent ─► (FIN or ACK) ─────────► done     rendezvous, synchronous
//	            └────► sent ─► CTS ─► streaming ─────► done     rendezvous without RMA
//	recv:    posted ─► done                                     eager
//	            └────► reading ───► done                        rendezvous: this rank reads by RMA
//	            └────► registering ─► reading                   the same, if the fabric must pin the buffer first
//	            └────► receiving ─► done                        rendezvous: the sender sends MsgData
//	            └────► pulling ◄─► reading ─► done              partitioned message; see partitioned.go
//	            └────► matched ───► reading                     the message's transfer belongs to an earlier receive; see cut.go
//
// Upper-case words are messages between engines (wire.MessageKind).
type phase uint8

const (
	phaseIdle        phase = iota // not a send or receive, or one that has not begun or has ended
	phaseQueued                   // send: the message has not left
	phaseSent                     // send: the endpoint has got the message or the RTS
	phaseStreaming                // send: the receiver has asked for the data, which leaves in segments (MsgData)
	phasePosted                   // receive: waits for a message
	phaseReading                  // receive: this rank reads the data by RMA
	phaseReceiving                // receive: the data arrives in segments (MsgData)
	phasePulling                  // receive of a partitioned message: waits for partitions to become ready
	phaseRegistering              // receive: its buffer is being registered for phaseReading (registrar.go)
	phaseMatched                  // receive: has matched a message whose data an earlier receive still transfers (cut.go)
)

// request is a slot of the engine's table of requests. A slot is used for one operation after the
// other. Engine.mu guards all fields. The fields that a small message needs are together at the
// beginning, in few cache lines.
type request struct {
	e     *Engine
	index uint32 // index in Engine.slots
	// Generation: a number that changes when the slot is freed. A Request or handle with another
	// number belongs to an earlier operation in this slot.
	gen   uint32
	kind  requestKind
	phase phase
	mode  Mode

	done      bool // the operation has ended
	abandoned bool // no goroutine will collect the request, so complete frees it
	longWait  bool // a call of QueryPeers has found this request waiting for its peer
	replied   bool // of a send: MsgFin or MsgAck has arrived, perhaps while the endpoint still had op
	reported  bool // a wait for the request has returned the error of its ctx
	inflight  bool // the endpoint has op, and uses its buffers
	// Engine.active counts the request: the background goroutine polls for it if no other goroutine
	// does.
	background bool
	buffered   bool // SendBuffered has started it; Context.buffered counts it
	// A Request of the program identifies it; while it is also done, Engine.uncollected counts it.
	named bool
	// Of a receive from any source: if a member of the group fails, the receive stays posted, and
	// waits for it return ErrPending. Otherwise the receive fails. See pendingErr.
	stays  bool
	moving bool // its data is being transferred; Engine.moving counts it
	// See registrar.go. registering: the registrar has the task to register buf. registered: that task has
	// ended, or the transport had no room for a region; if region is set, the registrar closes it.
	registering, registered bool
	// Engine.release must clear op, transfer, cut, parts, view, form, packed, offset, total, registering
	// and registered. It is false for most receives, which do not set these fields.
	loaded bool

	sig  uint16 // signature of the message's elements, from Env.Sig
	peer int32  // world rank of the peer; wild: a receive from any source that has not matched
	tag  int32  // tag of the message, from Env.Tag; AnyTag: a receive of any tag
	// Of a receive that has matched a message: its number and how it came, for the record.
	arrived  uint32 // wire.Message.Seq
	protocol record.Protocol

	ctx    *Context
	buf    []byte   // data to send, or buffer of the receive; nil: the data has a form
	waiter *waiter  // waiter of the goroutine that waits for this request alone; nil: none does
	next   *request // next slot in the list of unused ones
	err    error    // error of the operation; of a receive under way: ErrTruncate, if the message is too long
	// Memory region of buf; nil: none. Of a send: the receiver reads from it by RMA. Of a receive:
	// this rank reads into it, if the transport needs a region for that (MRLocal).
	region transport.MemoryRegion
	status Status // result of a receive; Source is a rank of the context's group
	node   node   // place in a list of requests

	span *Span // span that region belongs to; nil: the request owns region, and Engine.complete closes it
	// Index at which WaitAny or a similar call has found the request in its caller's slice, plus 1; 0:
	// no hint. Engine.complete puts a request with a hint into Engine.finished.
	hint uint32
	// Bytes of the rendezvous that were transferred so far, and bytes to transfer. While this rank
	// reads partitions: where the rest of them begins and ends in the data.
	offset, total int
	// Of a send without RMA: handle of the receiver's request. Of a receive by rendezvous: address of
	// the data in the sender's memory.
	remote uint64
	key    uint64 // of a receive by rendezvous: key of the sender's memory region
	// Of a send or control message: its header. Of a receive by rendezvous: the header of its RTS.
	header wire.Message
	// Of a request whose data only a Form can copy; see view.go.
	view   []byte      // the memory that has the data
	form   layout.Form // which bytes of view are the data; nil: the data is buf
	packed []byte      // of a send: copy of the part of the data in op, in a buffer of the engine; nil: there is none

	op       transport.Op // operation that the request gives to the endpoint
	transfer *Transfer    // Transfer that the slot belongs to; nil: none
	// Set when the context.Context of the request's blocking call has ended while the request still
	// transfers data: the error of that call. In phaseMatched: the error of the earlier receive's
	// call. See cut.go.
	cut   *Unfinished
	parts *Partitions // of a partitioned message; see partitioned.go
}

// handle returns the number that identifies the request in messages to peers.
func (r *request) handle() uint64 { return uint64(r.index)<<32 | uint64(r.gen) }

// slot returns the request of the given kind, with the peer, that a handle in a message of the peer
// identifies. It returns nil without an error if the request has ended on this rank, which the peer
// could not know yet. It returns an error if the peer can have no such handle.
func (e *Engine) slot(handle uint64, kind requestKind, peer int32) (*request, error) {
	i := handle >> 32
	if i >= uint64(len(e.slots)) {
		return nil, errHandle
	}
	switch r := e.slots[i]; {
	case r == nil:
		return nil, nil
	case r.gen != uint32(handle) || r.done:
		return nil, nil
	case r.kind != kind || r.peer != peer:
		return nil, errHandle
	default:
		return r, nil
	}
}

// take returns an unused slot, for a request of this kind.
//
// Hot path: no allocation in steady state.
func (e *Engine) take(kind requestKind) *request {
	r := e.free
	if r == nil {
		r = e.moreSlots()
	}
	e.free = r.next
	e.unused--
	r.next = nil
	r.kind = kind
	r.loaded = kind != kindRecv
	return r
}

// moreSlots allocates slotsAtOnce slots, adds them to the table, links them by next, and returns
// the first one.
func (e *Engine) moreSlots() *request {
	block := make([]request, slotsAtOnce)
	for i := range block {
		r := &block[i]
		r.e = e
		r.node.req = r
		r.op.User = r
		if i+1 < len(block) {
			r.next = &block[i+1]
		}
		if n := len(e.vacant); n > 0 {
			r.index, r.gen = e.vacant[n-1].index, e.vacant[n-1].gen
			e.vacant = e.vacant[:n-1]
			e.slots[r.index] = r
			continue
		}
		r.index = uint32(len(e.slots))
		e.slots = append(e.slots, r)
	}
	e.unused += len(block)
	return &block[0]
}

const (
	// slotsAtOnce is the number of slots that moreSlots allocates together.
	slotsAtOnce = 16
	// slotsKept is the maximum number of unused slots that the engine keeps. It removes other
	// unused slots from the table. The garbage collector frees them when all slots that were
	// allocated together are removed.
	slotsKept = 4096
)

// vacancy is an index of Engine.slots that has no slot. The next slot at this index begins with the
// generation gen, so handles and Requests of earlier slots do not identify it.
type vacancy struct{ index, gen uint32 }

// vacate removes an unused slot from the table, so that the garbage collector can free it. Requests
// that identify it stay stale.
func (e *Engine) vacate(r *request) {
	e.slots[r.index] = nil
	e.vacant = append(e.vacant, vacancy{r.index, r.gen})
}

// release frees a slot, for use by another request. The endpoint does not have its op.
func (e *Engine) release(r *request) {
	if r.named {
		r.named = false
		if r.done {
			e.uncollected--
		}
		if r.hint != 0 {
			r.hint = 0
			r.node.remove()
		}
	}
	r.gen++
	r.kind, r.phase = kindFree, phaseIdle
	r.done, r.abandoned, r.longWait, r.replied, r.reported = false, false, false, false, false
	r.err, r.ctx, r.buf, r.waiter = nil, nil, nil, nil
	r.status = Status{}
	r.sig, r.mode = 0, Standard
	if r.loaded {
		r.loaded = false
		e.dropPacked(r)
		r.view, r.form = nil, nil
		r.op.Data, r.op.Region, r.transfer, r.cut, r.parts = nil, nil, nil, nil, nil
		r.offset, r.total = 0, 0
		r.registering, r.registered = false, false
	}
	if e.unused == slotsKept {
		e.vacate(r)
		return
	}
	e.unused++
	r.next = e.free
	e.free = r
}

// complete ends a request with err, which is nil if the operation succeeded. It wakes the goroutine
// that waits for this request, and all waiters in completionWaiters. If no goroutine will collect
// the request, complete frees it.
func (e *Engine) complete(r *request, err error) {
	if r.done {
		return
	}
	if r.region != nil {
		if cerr := r.dropRegion(); err == nil {
			err = cerr
		}
	}
	r.done = true
	if r.err = err; err == nil {
		e.count(r)
	}
	e.stopMoving(r)
	e.removeBackground(r)
	if r.named {
		if e.uncollected++; r.hint != 0 {
			e.finished.push(&r.node)
		}
	}
	if r.abandoned {
		e.abandoned(r)
		return
	}
	if w := r.waiter; w != nil {
		e.wake(w)
	}
	e.wakeAll(e.completionWaiters)
}

// abandoned frees a request that has ended and that no goroutine collects. Before, it stores the
// error of a buffered send for FlushBuffered, and continues with the message of a call that was cut
// short.
func (e *Engine) abandoned(r *request) {
	if r.cut != nil {
		e.cutEnded(r)
	}
	if r.buffered {
		r.buffered = false
		c := r.ctx
		if c.bufferedErr == nil {
			c.bufferedErr = r.err
		}
		c.buffered--
	}
	e.release(r)
	e.wakeAll(e.completionWaiters)
}

// collect returns the status and the error of a request that has ended, and frees its slot.
func (e *Engine) collect(r *request) (Status, error) {
	st, err := r.status, r.err
	e.release(r)
	return st, err
}

// public returns a Request for the program that identifies r. If attended is not set, the
// background goroutine polls for r, if no other goroutine polls, until r has ended; see
// Env.Attended.
func (e *Engine) public(r *request, attended bool) Request {
	if !r.done && !attended {
		e.addBackground(r)
	}
	return e.name(r)
}

// name returns a Request that identifies r.
func (e *Engine) name(r *request) Request {
	r.named = true
	if r.done {
		e.uncollected++
	}
	return Request{r: r, gen: r.gen}
}

// addBackground makes the background goroutine poll for a request until the request has ended, if
// no other goroutine polls. It may be called again for the same request.
func (e *Engine) addBackground(r *request) {
	if r.background {
		return
	}
	r.background = true
	e.active++
	if r.large() {
		e.large++
	}
	e.ensureRequestProgress(r.large() || r.kind == kindControl)
}

// removeBackground undoes addBackground, if it was called for the request.
func (e *Engine) removeBackground(r *request) {
	if r.background {
		r.background = false
		e.active--
		if r.large() {
			e.large--
		}
	}
}

// large reports whether a request probably is a rendezvous: its buffer is longer than the eager
// limit. The length of the message is not known for a receive.
func (r *request) large() bool { return r.size() > r.e.eagerLimit }

// startMoving records that the data of a request is being transferred. While there are such
// requests, goroutines poll longer before they sleep.
func (e *Engine) startMoving(r *request) {
	if !r.moving {
		r.moving = true
		e.moving++
	}
}

// stopMoving undoes startMoving, if it was called for the request.
func (e *Engine) stopMoving(r *request) {
	if r.moving {
		r.moving = false
		e.moving--
	}
}

// Done reports whether the operation has ended. It neither frees the operation nor polls the
// transports.
func (q Request) Done() bool {
	if q.r == nil {
		return true
	}
	q.r.e.mu.Lock()
	defer q.r.e.mu.Unlock()
	return q.doneLocked()
}

// Peek reports whether the operation has ended, and returns its error. It neither frees the operation nor
// polls the transports. If the result was collected, err is nil.
func (q Request) Peek() (done bool, err error) {
	if q.r == nil {
		return true, nil
	}
	q.r.e.mu.Lock()
	defer q.r.e.mu.Unlock()
	switch {
	case q.r.gen != q.gen:
		return true, nil
	case q.r.done:
		return true, q.r.err
	}
	return false, nil
}

// Status reports whether the operation has ended, after it has polled the transports once if
// necessary, and returns its result. Unlike Test, it does not free the operation. If the result was
// collected, it returns the zero Status and nil.
func (q Request) Status() (st Status, done bool, err error) {
	if q.r == nil {
		return Status{}, true, nil
	}
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if !q.doneLocked() {
		e.poll()
	}
	switch {
	case q.r.gen != q.gen:
		return Status{}, true, nil
	case q.r.done:
		return q.r.status, true, q.r.err
	}
	e.testFailed()
	return Status{}, false, q.r.pendingErr()
}

// Begin returns a request for an operation that the program performs, and that Complete ends.
func (e *Engine) Begin() Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.name(e.take(kindProgram))
}

// Complete ends the operation of a request that Begin has returned, with this result. A second call
// has no effect. Any goroutine may call it, also after the engine was closed.
func (q Request) Complete(st Status, err error) {
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.doneLocked() {
		return
	}
	q.r.status = st
	e.complete(q.r, err)
}

// Collected reports whether the result of the operation was returned already, by any copy of the
// Request, so that Wait would return nothing.
func (q Request) Collected() bool {
	if q.r == nil {
		return true
	}
	q.r.e.mu.Lock()
	defer q.r.e.mu.Unlock()
	return q.r.gen != q.gen
}

// doneLocked is Done for a caller that holds the lock.
func (q Request) doneLocked() bool { return q.r == nil || q.r.gen != q.gen || q.r.done }

// Wait blocks until the operation has ended, frees it, and returns its result. If ctx ends first,
// Wait returns ctx's error. The engine then still uses the operation's buffer, and Wait may be
// called again. The same holds if Wait returns ErrPending.
func (q Request) Wait(ctx context.Context) (Status, error) {
	if q.r == nil {
		return Status{}, nil
	}
	e := q.r.e
	e.mu.Lock()
	st, err := e.waitFor(ctx, q)
	e.mu.Unlock()
	return st, err
}

// waitFor is Wait for a caller that holds the lock.
func (e *Engine) waitFor(ctx context.Context, q Request) (Status, error) {
	r := q.r
	for !q.doneLocked() {
		err := r.pendingErr()
		if err != nil { // do not wait
		} else if r.waiter != nil { // another goroutine waits for the same request
			err = e.awaitIn(ctx, &e.completionWaiters, awaited{passive: r.kind == kindTask})
		} else {
			err = e.awaitRequest(ctx, r)
		}
		if err != nil && !q.doneLocked() {
			r.reported = true
			if r.kind == kindSend || r.kind == kindRecv {
				e.addBackground(r) // because no goroutine waits for the request any more
			}
			return Status{}, err
		}
	}
	return e.outcome(q)
}

// outcome returns the result of an operation that has ended, and frees it. If another goroutine has
// freed it, the result is the zero Status and nil.
func (e *Engine) outcome(q Request) (Status, error) {
	if q.r.gen != q.gen {
		return Status{}, nil
	}
	return e.collect(q.r)
}

// awaitRequest blocks until r has ended, ctx ends or the engine closes. The caller holds the lock
// on entry and on return. No other goroutine is in awaitRequest for r.
func (e *Engine) awaitRequest(ctx context.Context, r *request) error {
	gen := r.gen
	w := e.newWaiter()
	w.passive = r.kind == kindTask
	r.waiter, w.request = w, r
	err := e.await(ctx, w)
	if r.gen == gen { // otherwise another goroutine has collected the request, and the slot may have a new one
		r.waiter = nil
	}
	e.freeWaiter(w)
	return err
}

// Finish is Wait for a blocking call that uses a Request: if ctx ends first, Finish ends the
// operation, as [Context.Send] and [Context.Recv] do.
func (q Request) Finish(ctx context.Context) (Status, error) {
	if q.r == nil {
		return Status{}, nil
	}
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.blockOn(ctx, q.r)
}

// Retract does what Finish does after its ctx has ended with the error why, without blocking. If
// the operation has ended, it returns the result. Otherwise Status.Cancelled is true, and the error
// says whether the transport still uses the buffer ([Unfinished]).
func (q Request) Retract(why error) (Status, error) {
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.r.done {
		return e.collect(q.r)
	}
	return Status{Cancelled: true}, e.cutShort(q.r, why)
}

// WaitEach calls Wait for each of the n requests that at returns, in order, except zero ones. at
// also returns the context.Context of the wait for its request. WaitEach calls then with the index,
// the result and the error of each wait. done is false if only the wait has ended, for example
// because its context.Context has. WaitEach calls both functions under the engine's lock, so they
// must not use the engine.
//
// Hot path: no allocation.
func WaitEach(n int, at func(i int) (Request, context.Context), then func(i int, st Status, done bool, err error)) {
	var e *Engine
	for i := range n {
		q, ctx := at(i)
		if q.r == nil {
			continue
		}
		if q.r.e != e {
			if e != nil {
				e.mu.Unlock()
			}
			e = q.r.e
			e.mu.Lock()
		}
		// This is faster than waitFor. After the first wait most requests have ended.
		if r := q.r; r.done && r.gen == q.gen {
			st, err := e.collect(r)
			then(i, st, true, err)
			continue
		}
		st, err := e.waitFor(ctx, q)
		then(i, st, q.doneLocked(), err)
	}
	if e != nil {
		e.mu.Unlock()
	}
}

// Test reports whether the operation has ended, after it has polled the transports once if
// necessary. If the operation has ended, Test returns its result and frees it. Otherwise err is nil
// or ErrPending.
func (q Request) Test() (Status, bool, error) {
	if q.r == nil {
		return Status{}, true, nil
	}
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if !q.doneLocked() {
		e.poll()
	}
	if !q.doneLocked() {
		e.testFailed()
	}
	if !q.doneLocked() {
		return Status{}, false, q.r.pendingErr()
	}
	st, err := e.outcome(q)
	return st, true, err
}

// pendingErr returns ErrPending, with the failure, if r is a posted receive from any source that
// stays although a member of the group has failed, until Acknowledge has recorded the failure: the
// member may be the sender that the receive waits for (ULFM, MPIX_ERR_PROC_FAILED_PENDING).
// Otherwise it returns nil.
func (r *request) pendingErr() error {
	if r.e.failures == 0 || r.phase != phasePosted || r.peer != wild || !r.stays {
		return nil
	}
	if why := r.ctx.unacknowledged(); why != nil {
		return reasonError("%w: %w", ErrPending, why)
	}
	return nil
}

// Cancel withdraws a receive that has not matched a message yet; Wait then returns a Status with
// Cancelled set, and no error. Other operations continue, as MPI permits (MPI 4.1, 3.8.4).
func (q Request) Cancel() error {
	if q.r == nil {
		return nil
	}
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := q.r; !q.doneLocked() && r.phase == phasePosted {
		r.status.Cancelled = true
		e.cancel(r, nil)
	} else if r.gen == q.gen && r.kind == kindRecv && errors.Is(r.err, ErrFinalized) {
		// The receive has matched no message, because its source is in Finalize.
		r.status.Cancelled, r.err = true, nil
	}
	return nil
}
