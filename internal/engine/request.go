package engine

import (
	"context"

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

// Request names an operation under way. It is a value: a copy of one whose
// operation has been waited for is harmless and answers "complete". The zero
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
	kindControl              // a message of the engine's own; no Request names it
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
//	control: queued ─► sent ─► free
type phase uint8

const (
	phaseIdle phase = iota
	phaseQueued
	phaseSent
	phasePumping
	phasePosted
	phaseReading
	phaseFilling
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
	background bool // counted in Engine.active: nobody may be polling for it
	abandoned  bool // its blocking call has left; free it when it is done
	replied    bool // send: FIN or ACK has come before op was done
	moving     bool // counted in Engine.moving
	loaded     bool // release must drop what op and its like have; of a receive only if it reads

	sig  uint16
	peer int32 // world rank; wild for a receive from any
	tag  int32

	ctx    *Context
	buf    []byte
	waiter *waiter  // who is to be told
	next   *request // free list, or a peer's queue
	err    error
	region transport.MemoryRegion // of buf: what a rendezvous sender lets be read, or an MRLocal fabric reads into
	status Status                 // Source is a rank of ctx's group
	node   node                   // in the posted queue

	span     *Span        // whose region that is; nil: it is this request's own
	offset   int          // bytes moved so far
	total    int          // bytes to be moved
	remote   uint64       // the other side's request, or memory address
	key      uint64       // the other side's memory key
	header   wire.Message // of what is to be sent
	op       transport.Op
	transfer *Transfer // whose request it is
}

// handle is the request's name on the wire.
func (r *request) handle() uint64 { return uint64(r.index)<<32 | uint64(r.gen) }

// slot returns the request that a handle from the wire names; nil without an
// error for one that was given up here, which the peer could not know yet.
func (e *Engine) slot(handle uint64) (*request, error) {
	i := handle >> 32
	if i >= uint64(len(e.slots)) {
		return nil, errHandle
	}
	r := e.slots[i]
	if r.gen != uint32(handle) || r.done {
		return nil, nil
	}
	return r, nil
}

// take returns a fresh slot.
//
// Hot path: no allocation in steady state.
func (e *Engine) take(kind requestKind) *request {
	r := e.free
	if r == nil {
		r = &request{e: e, index: uint32(len(e.slots))}
		r.node.req = r
		r.op.User = r
		e.slots = append(e.slots, r)
	} else {
		e.free = r.next
		r.next = nil
	}
	r.kind = kind
	r.loaded = kind != kindRecv
	return r
}

// release gives a slot back. Its op must not be in flight.
func (e *Engine) release(r *request) {
	e.moved(r)
	r.gen++
	r.kind, r.phase = kindFree, phaseIdle
	r.done, r.abandoned, r.replied = false, false, false
	r.err, r.ctx, r.buf, r.waiter = nil, nil, nil, nil
	r.status = Status{}
	r.sig, r.mode = 0, Standard
	if r.loaded {
		r.loaded = false
		r.op.Data, r.op.Region, r.transfer = nil, nil, nil
		r.offset, r.total = 0, 0
	}
	r.next = e.free
	e.free = r
}

// complete ends a request. What it was waited for by is told.
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
	r.err = err
	e.moved(r)
	e.redeem(r)
	if r.abandoned {
		e.release(r)
		return
	}
	if w := r.waiter; w != nil {
		e.tell(w)
	}
	if len(e.watchers) > 0 {
		e.tellWatchers()
	}
}

// collect hands a completed request's outcome over and frees its slot.
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
	if urgent := r.large() || r.kind == kindControl; urgent || e.async == asyncParked {
		e.wantProgress(urgent)
	}
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

// moved notes that it is not any more.
func (e *Engine) moved(r *request) {
	if r.moving {
		r.moving = false
		e.moving--
	}
}

// completed returns a request that is complete with err.
func (e *Engine) completed(err error) Request {
	e.mu.lock()
	defer e.mu.unlock()
	r := e.take(kindTask)
	e.complete(r, err)
	return Request{r: r, gen: r.gen}
}

// Done reports whether the operation has ended, without freeing it and without
// moving anything on.
func (q Request) Done() bool {
	if q.r == nil {
		return true
	}
	q.r.e.mu.lock()
	defer q.r.e.mu.unlock()
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
	e.mu.lock()
	st, err := e.waitFor(ctx, q)
	e.mu.unlock()
	return st, err
}

func (e *Engine) waitFor(ctx context.Context, q Request) (Status, error) {
	r := q.r
	for {
		if r.gen != q.gen {
			return Status{}, nil
		}
		if r.done {
			return e.collect(r)
		}
		w := e.newWaiter()
		w.passive = r.kind == kindTask
		shared := r.waiter != nil // another goroutine waits for the same request
		if shared {
			e.watchers = append(e.watchers, w)
		} else {
			r.waiter = w
		}
		err := e.await(ctx, w)
		if shared {
			e.unwatch(w)
		} else if r.gen == q.gen {
			r.waiter = nil
		}
		e.freeWaiter(w)
		if err != nil && !q.doneLocked() {
			if r.kind == kindSend || r.kind == kindRecv {
				e.entrust(r) // nobody attends to it any more
			}
			return Status{}, err
		}
	}
}

// WaitEach is Wait for each of the n requests that at returns, zero ones left
// out, in one go: at gives the context that ends the wait too, and then is told
// what became of the request, and whether that was its end. Both are called under
// the engine's lock and must not use the engine.
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
				e.mu.unlock()
			}
			e = q.r.e
			e.mu.lock()
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
		e.mu.unlock()
	}
}

// Test moves the engine on once and says whether the operation has ended; if
// so the request is freed.
func (q Request) Test() (Status, bool, error) {
	if q.r == nil {
		return Status{}, true, nil
	}
	e := q.r.e
	e.mu.lock()
	defer e.mu.unlock()
	if !q.doneLocked() {
		e.poll()
	}
	if !q.doneLocked() {
		e.offer(q.r.kind == kindTask)
	}
	if q.r.gen != q.gen {
		return Status{}, true, nil
	}
	if !q.r.done {
		return Status{}, false, nil
	}
	st, err := e.collect(q.r)
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
	e.mu.lock()
	defer e.mu.unlock()
	if r := q.r; !q.doneLocked() && r.phase == phasePosted {
		e.posted.withdraw(r)
		r.status.Cancelled = true
		e.complete(r, nil)
	}
	return nil
}

// WaitAny blocks until one of the n requests that at returns has ended, and
// returns its index without freeing it; -1 where none is under way or
// complete: all are zero or stale. Among several it returns the first.
func WaitAny(ctx context.Context, n int, at func(i int) Request) (int, error) {
	var e *Engine
	for i := range n {
		if q := at(i); q.r != nil {
			e = q.r.e
			break
		}
	}
	if e == nil {
		return -1, nil
	}
	e.mu.lock()
	defer e.mu.unlock()
	for polled := false; ; {
		live := 0
		for i := range n {
			q := at(i)
			if q.r == nil || q.r.gen != q.gen {
				continue
			}
			if q.r.done {
				return i, nil
			}
			live++
		}
		if live == 0 {
			return -1, nil
		}
		if !polled {
			e.poll()
			polled = true
			continue
		}
		w := e.newWaiter()
		w.passive = true
		for i := range n {
			q := at(i)
			if q.r == nil || q.r.gen != q.gen {
				continue
			}
			w.passive = w.passive && q.r.kind == kindTask
			if q.r.waiter != nil {
				e.watchers = append(e.watchers, w)
				continue
			}
			q.r.waiter = w
		}
		err := e.await(ctx, w)
		for i := range n {
			if q := at(i); q.r != nil && q.r.waiter == w {
				q.r.waiter = nil
			}
		}
		e.unwatch(w)
		e.freeWaiter(w)
		if err != nil {
			return -1, err
		}
	}
}

// fifo is a queue of requests through request.next.
type fifo struct{ head, tail *request }

func (q *fifo) push(r *request) {
	r.next = nil
	if q.tail == nil {
		q.head = r
	} else {
		q.tail.next = r
	}
	q.tail = r
}

func (q *fifo) pop() *request {
	r := q.head
	q.head = r.next
	if q.head == nil {
		q.tail = nil
	}
	r.next = nil
	return r
}

// unpop puts back what pop took.
func (q *fifo) unpop(r *request) {
	r.next = q.head
	q.head = r
	if q.tail == nil {
		q.tail = r
	}
}

// drop takes r out of the middle.
func (q *fifo) drop(r *request) {
	var kept fifo
	for q.head != nil {
		if x := q.pop(); x != r {
			kept.push(x)
		}
	}
	*q = kept
}
