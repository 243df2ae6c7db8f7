package engine

import (
	"context"
	"errors"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Status is what a receive or probe found.
type Status struct {
	Source    int // rank in the context's group
	Tag       int
	Bytes     int  // length of the whole message
	Cancelled bool // the receive was cancelled before it matched
}

// Request names an operation under way. It is a value. After Wait has freed the
// operation, copies of the Request are stale and report it as complete. The zero
// Request is complete.
type Request struct {
	r    *request
	gen  uint32
	Note uint32 // the holder's; the engine carries it along
}

type requestKind uint8

const (
	kindFree     requestKind = iota
	kindSend                 // a user's send
	kindRecv                 // a user's receive
	kindControl              // a message of the engine's own; abandoned from the start
	kindTask                 // a function on a goroutine of its own
	kindTransfer             // a Transfer's; no Request names it
	kindOp                   // what a Port completes
)

// phase is where a request stands. Arrows are taken under the engine's lock.
//
//	send:    queued ─► sent ─────────────────────► done     eager
//	            └────► sent ─► (FIN or ACK) ─────► done     rendezvous, synchronous
//	            └────► sent ─► CTS ─► pumping ───► done     rendezvous without RMA
//	recv:    posted ─► done                                 eager
//	            └────► reading ─► done                      rendezvous: our reads
//	            └────► filling ─► done                      rendezvous: their data
//	            └────► matched ─► reading                   after a receive that was cut short; see cut.go
type phase uint8

const (
	phaseIdle phase = iota
	phaseQueued
	phaseSent
	phasePumping
	phasePosted
	phaseReading
	phaseFilling
	phaseMatched
)

// request is a slot of the engine's table. All fields are guarded by Engine.mu.
// What a small message touches stands together in front.
type request struct {
	e     *Engine
	index uint32
	gen   uint32
	kind  requestKind
	phase phase
	mode  Mode

	done       bool
	inflight   bool // op is with the endpoint, and with it buf
	background bool // counted in Engine.active: perhaps no goroutine polls for it
	abandoned  bool // no goroutine collects it; free it when it is done
	buffered   bool // of SendBuffered; counted in Context.buffered
	named      bool // a Request names it; if it is done it is counted in Engine.ended
	waited     bool // an QueryPeers has found it posted
	replied    bool // send: FIN or ACK has come before op was done
	moving     bool // counted in Engine.moving
	reported   bool // Wait has returned an error of its context
	loaded     bool // release must clear op, transfer, offset and total; a receive sets it if it reads

	sig  uint16
	peer int32 // world rank; wild for a receive from any
	tag  int32

	ctx    *Context
	buf    []byte
	waiter *waiter  // to be told when it is done
	next   *request // free list
	err    error
	region transport.MemoryRegion // of buf: what a rendezvous sender lets be read, or an MRLocal fabric reads into
	status Status                 // Source is a rank of ctx's group
	node   node

	span     *Span        // whose region that is; nil: it is this request's own
	hint     uint32       // where WaitAny and the like have found it in their slice, plus 1; then it goes to Engine.finished
	offset   int          // bytes moved so far
	total    int          // bytes to be moved
	remote   uint64       // the other side's request, or memory address
	key      uint64       // the other side's memory key
	header   wire.Message // of what is to be sent
	op       transport.Op
	transfer *Transfer   // the Transfer that owns the request
	cut      *Unfinished // of this request; in phaseMatched, that of the earlier one
}

// handle is the request's name on the wire.
func (r *request) handle() uint64 { return uint64(r.index)<<32 | uint64(r.gen) }

// slot returns the request that a handle from a peer names. nil without an error: the
// request has ended here, which the peer could not know yet.
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

// moreSlots makes slots, and returns the first of the free ones.
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

// vacancy is an index of Engine.slots without a slot. The next slot there begins with gen,
// so that handles which peers still have do not name it.
type vacancy struct{ index, gen uint32 }

// vacate gives a free slot to the garbage collector. Requests that name it are stale.
func (e *Engine) vacate(r *request) {
	e.slots[r.index] = nil
	e.vacant = append(e.vacant, vacancy{r.index, r.gen})
}

// release gives a slot back. Its op must not be in flight.
func (e *Engine) release(r *request) {
	if r.named {
		r.named = false
		if r.done {
			e.ended--
		}
		if r.hint != 0 {
			r.hint = 0
			r.node.remove()
		}
	}
	r.gen++
	r.kind, r.phase = kindFree, phaseIdle
	r.done, r.abandoned, r.replied, r.waited, r.reported = false, false, false, false, false
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

// complete ends a request, and tells the goroutine that waits for it and the watchers.
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
	e.moved(r)
	e.redeem(r)
	if r.named {
		if e.ended++; r.hint != 0 {
			e.finished.push(&r.node)
		}
	}
	if r.abandoned {
		e.abandoned(r)
		return
	}
	if w := r.waiter; w != nil {
		e.tell(w)
	}
	e.tellAll(e.watchers)
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
	e.tellAll(e.watchers)
}

// collect returns a completed request's outcome and frees its slot.
func (e *Engine) collect(r *request) (Status, error) {
	st, err := r.status, r.err
	e.release(r)
	return st, err
}

// public makes the value that the user holds.
func (e *Engine) public(r *request, attended bool) Request {
	if !r.done && !attended {
		e.entrust(r)
	}
	return e.name(r)
}

// name makes a Request of a slot.
func (e *Engine) name(r *request) Request {
	r.named = true
	if r.done {
		e.ended++
	}
	return Request{r: r, gen: r.gen}
}

// entrust leaves a request to asynchronous progress until it is done.
func (e *Engine) entrust(r *request) {
	if r.background {
		return
	}
	r.background = true
	e.active++
	if r.large() {
		e.large++
	}
	e.attendRequest(r.large() || r.kind == kindControl)
}

// redeem takes a request back from asynchronous progress.
func (e *Engine) redeem(r *request) {
	if r.background {
		r.background = false
		e.active--
		if r.large() {
			e.large--
		}
	}
}

// large says that a request takes part in a rendezvous, as far as one can tell.
func (r *request) large() bool { return len(r.buf) > r.e.eagerLimit }

// move notes that a request's data is on its way.
func (e *Engine) move(r *request) {
	if !r.moving {
		r.moving = true
		e.moving++
	}
}

// moved undoes move when the request has ended.
func (e *Engine) moved(r *request) {
	if r.moving {
		r.moving = false
		e.moving--
	}
}

// Done reports whether the operation has ended, without freeing it and without
// moving anything on.
func (q Request) Done() bool {
	if q.r == nil {
		return true
	}
	q.r.e.mu.Lock()
	defer q.r.e.mu.Unlock()
	return q.doneLocked()
}

func (q Request) doneLocked() bool { return q.r == nil || q.r.gen != q.gen || q.r.done }

// Wait blocks until the operation has ended, and frees the request. If ctx ends
// first its error is returned; the request and its buffer stay with the engine,
// and Wait may be called again.
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
			err = e.awaitIn(ctx, &e.watchers, awaited{passive: r.kind == kindTask})
		} else {
			err = e.awaitRequest(ctx, r)
		}
		if err != nil && !q.doneLocked() {
			r.reported = true
			if r.kind == kindSend || r.kind == kindRecv {
				e.entrust(r) // no goroutine attends to it any more
			}
			return Status{}, err
		}
	}
	return e.outcome(q)
}

// outcome collects a request that has ended, unless another goroutine has.
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

// WaitEach is Wait for each of the n requests that at returns, except zero ones. at
// also returns the context that ends the wait. then gets the outcome; done is false
// if only the wait has ended. WaitEach calls both under the engine's lock, so they
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
		if r := q.r; r.done && r.gen == q.gen { // most are, after the first
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

// Test moves the engine on once and reports whether the operation has ended. If it
// has, Test frees the request.
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
		e.foundNothing()
	}
	if !q.doneLocked() {
		return Status{}, false, nil
	}
	st, err := e.outcome(q)
	return st, true, err
}

// Cancel withdraws a receive that has not matched a message yet; Wait then
// reports Status.Cancelled. Anything else goes on as it would have, as MPI has
// it (MPI 4.1, 3.8.4).
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
		r.status.Cancelled, r.err = true, nil // the receive had matched nothing
	}
	return nil
}
