package engine

import (
	"context"
	"errors"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Status describes the message that a receive or probe has found.
type Status struct {
	Source    int // rank in the context's group
	Tag       int
	Bytes     int  // length of the whole message
	Cancelled bool // the receive was cancelled before it matched
}

// Request identifies an operation under way. It is a value. After Wait has freed the operation,
// copies of the Request are stale and report the operation as complete. The zero Request is
// complete.
type Request struct {
	r    *request
	gen  uint32
	Note uint32 // for use by the program above the engine, which does not read it
}

type requestKind uint8

const (
	kindFree     requestKind = iota
	kindSend                 // a user's send
	kindRecv                 // a user's receive
	kindControl              // a message that the engine itself sends; abandoned from the start
	kindTask                 // a function of Engine.Go
	kindTransfer             // belongs to a Transfer; no Request names it
	kindOp                   // an operation of Port.Begin, which Port.Complete ends
)

// phase is the state of a request. It changes under the engine's lock.
//
//	send:    queued ─► sent ─────────────────────────► done     eager
//	            └────► sent ─► (FIN or ACK) ─────────► done     rendezvous, synchronous
//	            └────► sent ─► CTS ─► streaming ─────► done     rendezvous without RMA
//	recv:    posted ─► done                                     eager
//	            └────► reading ───► done                        rendezvous: this rank reads by RMA
//	            └────► receiving ─► done                        rendezvous: the sender sends MsgData
//	            └────► matched ───► reading                     the message's transfer belongs to an earlier receive; see cut.go
type phase uint8

const (
	phaseIdle phase = iota
	phaseQueued
	phaseSent
	phaseStreaming
	phasePosted
	phaseReading
	phaseReceiving
	phaseMatched
)

// request is a slot of the engine's table. Engine.mu guards all fields. The fields that a small
// message needs are together at the front.
type request struct {
	e     *Engine
	index uint32
	gen   uint32
	kind  requestKind
	phase phase
	mode  Mode

	done       bool
	inflight   bool // the endpoint has op, and so uses buf
	background bool // counted in Engine.active: the background goroutine polls for it if no goroutine leads
	abandoned  bool // no goroutine collects it, so complete frees it
	buffered   bool // started by SendBuffered; counted in Context.buffered
	named      bool // a Request identifies it; if it is also done, Engine.uncollected counts it
	longWait   bool // a call of QueryPeers has found it posted
	replied    bool // of a send: FIN or ACK has arrived while the endpoint had op
	moving     bool // counted in Engine.moving
	reported   bool // Wait has returned its context's error
	loaded     bool // release must clear op, transfer, offset and total; a receive needs that only after a rendezvous

	sig  uint16
	peer int32 // world rank; wild: a receive from any source
	tag  int32

	ctx    *Context
	buf    []byte
	waiter *waiter  // the goroutine to wake when the request is done
	next   *request // free list
	err    error
	region transport.MemoryRegion // of buf: for the receiver's Read of a rendezvous, or, with MRLocal, for this rank's Read into buf
	status Status                 // Source is a rank of the context's group
	node   node

	span     *Span        // the span that region belongs to; nil: region belongs to this request
	hint     uint32       // index at which WaitAny or a similar call has found it, plus 1; if not 0, complete puts the request into Engine.finished
	offset   int          // bytes transferred so far
	total    int          // bytes to transfer
	remote   uint64       // handle of the peer's request, or address of the peer's memory
	key      uint64       // key of the peer's memory region
	header   wire.Message // of the message to send; of a receive by rendezvous: of its RTS
	op       transport.Op
	transfer *Transfer   // the Transfer that owns the request
	cut      *Unfinished // error of the call that this request belongs to; in phaseMatched: of the earlier receive's call
}

// handle returns the number that identifies the request in messages.
func (r *request) handle() uint64 { return uint64(r.index)<<32 | uint64(r.gen) }

// slot returns the request that a handle from a peer identifies. It returns nil without an error
// if the request has ended here, which the peer could not know yet.
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

// take returns a fresh slot.
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

// moreSlots allocates slots and returns the first of a list of free ones.
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
	// slotsAtOnce is how many slots are allocated together.
	slotsAtOnce = 16
	// slotsKept bounds the free slots that are kept. The garbage collector frees the other
	// slots of a burst, when all that were allocated together are free.
	slotsKept = 4096
)

// vacancy is an index of Engine.slots without a slot. The next slot at this index begins with
// generation gen, so handles that peers still have do not identify it.
type vacancy struct{ index, gen uint32 }

// vacate removes a free slot from the table, so the garbage collector can free it. Requests that
// identify it are stale.
func (e *Engine) vacate(r *request) {
	e.slots[r.index] = nil
	e.vacant = append(e.vacant, vacancy{r.index, r.gen})
}

// release frees a slot. Its op must not be in flight.
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
	r.done, r.abandoned, r.replied, r.longWait, r.reported = false, false, false, false, false
	r.err, r.ctx, r.buf, r.waiter = nil, nil, nil, nil
	r.status = Status{}
	r.sig, r.mode = 0, Standard
	if r.loaded {
		r.loaded = false
		r.op.Data, r.op.Region, r.transfer, r.cut = nil, nil, nil, nil
		r.offset, r.total = 0, 0
	}
	if e.unused == slotsKept {
		e.vacate(r)
		return
	}
	e.unused++
	r.next = e.free
	e.free = r
}

// complete ends a request, and wakes the goroutine that waits for it and the completionWaiters.
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

// abandoned frees a request that is complete and that no goroutine collects.
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

// collect returns the status and error of a completed request, and frees its slot.
func (e *Engine) collect(r *request) (Status, error) {
	st, err := r.status, r.err
	e.release(r)
	return st, err
}

// public returns the Request of a slot for the program. Unless attended is set, the background
// goroutine serves the request.
func (e *Engine) public(r *request, attended bool) Request {
	if !r.done && !attended {
		e.addBackground(r)
	}
	return e.name(r)
}

// name returns a Request that identifies a slot.
func (e *Engine) name(r *request) Request {
	r.named = true
	if r.done {
		e.uncollected++
	}
	return Request{r: r, gen: r.gen}
}

// addBackground adds a request to those that the background goroutine serves until they are done.
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

// removeBackground undoes addBackground.
func (e *Engine) removeBackground(r *request) {
	if r.background {
		r.background = false
		e.active--
		if r.large() {
			e.large--
		}
	}
}

// large reports whether a request probably uses a rendezvous. For a receive, only its buffer's
// size is known.
func (r *request) large() bool { return len(r.buf) > r.e.eagerLimit }

// startMoving records that a request's data is being transferred.
func (e *Engine) startMoving(r *request) {
	if !r.moving {
		r.moving = true
		e.moving++
	}
}

// stopMoving undoes startMoving after the request has ended.
func (e *Engine) stopMoving(r *request) {
	if r.moving {
		r.moving = false
		e.moving--
	}
}

// Done reports whether the operation has ended. It neither frees the request nor polls the
// transports.
func (q Request) Done() bool {
	if q.r == nil {
		return true
	}
	q.r.e.mu.Lock()
	defer q.r.e.mu.Unlock()
	return q.doneLocked()
}

func (q Request) doneLocked() bool { return q.r == nil || q.r.gen != q.gen || q.r.done }

// Wait blocks until the operation has ended, and frees the request. If ctx ends first, Wait
// returns ctx's error; the engine still uses the request and its buffer, and Wait may be called
// again.
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

func (e *Engine) waitFor(ctx context.Context, q Request) (Status, error) {
	r := q.r
	for !q.doneLocked() {
		var err error
		if r.waiter != nil { // another goroutine waits for the same request
			err = e.awaitIn(ctx, &e.completionWaiters, awaited{passive: r.kind == kindTask})
		} else {
			err = e.awaitRequest(ctx, r)
		}
		if err != nil && !q.doneLocked() {
			r.reported = true
			if r.kind == kindSend || r.kind == kindRecv {
				e.addBackground(r) // no goroutine waits for it any more
			}
			return Status{}, err
		}
	}
	return e.outcome(q)
}

// outcome collects a request that has ended, unless another goroutine has collected it.
func (e *Engine) outcome(q Request) (Status, error) {
	if q.r.gen != q.gen {
		return Status{}, nil
	}
	return e.collect(q.r)
}

// awaitRequest blocks until r has ended, ctx ends or the engine closes. The caller
// holds the lock on entry and on return.
func (e *Engine) awaitRequest(ctx context.Context, r *request) error {
	gen := r.gen
	w := e.newWaiter()
	w.passive = r.kind == kindTask
	r.waiter = w
	err := e.await(ctx, w)
	if r.gen == gen { // else another goroutine has collected it
		r.waiter = nil
	}
	e.freeWaiter(w)
	return err
}

// Finish is Wait for a blocking call: if ctx ends first, Finish ends the request as
// [Context.Send] and [Context.Recv] do.
func (q Request) Finish(ctx context.Context) (Status, error) {
	if q.r == nil {
		return Status{}, nil
	}
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.blockOn(ctx, q.r)
}

// Retract is Finish for a context that has already ended: it does not block. If nothing
// was received, Status.Cancelled is true.
func (q Request) Retract(why error) (Status, error) {
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if q.r.done {
		return e.collect(q.r)
	}
	return Status{Cancelled: true}, e.cutShort(q.r, why)
}

// WaitEach calls Wait for each of the n requests that at returns, except zero ones. at also
// returns the context that ends the wait. then gets the outcome; its argument done is false if
// only the wait has ended. WaitEach calls both functions under the engine's lock, so they must
// not use the engine.
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
		if r := q.r; r.done && r.gen == q.gen { // after the first wait, most requests are done
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

// Test polls the transports once and reports whether the operation has ended. If it has, Test
// frees the request.
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
		return Status{}, false, nil
	}
	st, err := e.outcome(q)
	return st, true, err
}

// Cancel withdraws a receive that has not matched a message yet; Wait then reports
// Status.Cancelled. Other operations continue, as MPI permits (MPI 4.1, 3.8.4).
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
		r.status.Cancelled, r.err = true, nil // the receive has matched no message
	}
	return nil
}
