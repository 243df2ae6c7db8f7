package comm

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/engine"
)

// callName names a call that ends in an Error, one byte in each Request.
type callName uint8

const (
	opNone callName = iota
	opSend
	opSsend
	opRsend
	opSendrecv
	opSendrecvReplace
	opIsend
	opIssend
	opIrecv
	opImrecv
	opCollective // the error says its name itself
	opRPut
	opRGet
	opRAccumulate
	opRGetAccumulate
	opFetchOp
	opRFetchOp
	opCompareSwap
	opRCompareSwap
)

var callNames = [...]string{"", "Send", "Ssend", "Rsend", "Sendrecv", "SendrecvReplace", "Isend", "Issend", "Irecv", "Imrecv", "Wait",
	"RPut", "RGet", "RAccumulate", "RGetAccumulate", "FetchOp", "RFetchOp", "CompareSwap", "RCompareSwap"}

func (o callName) String() string { return callNames[o] }

// Request names an operation under way: a send, a receive or a collective
// (MPI 4.1 §3.7). It is a value; copies are the same request. A copy of one
// that has been waited for is harmless and answers that it is complete, as the
// zero Request does. What was wrong with the arguments of the call that
// started it is told by Wait or Test.
//
// The buffers of the operation belong to it until Wait or Test has said that
// it is complete. Every request must be waited for or tested to its end.
type Request struct { // of four words, which the compiler keeps in registers
	r    engine.Request // its note is the size of a receive's elements
	c    *Comm          // nil in the zero Request
	call call
}

// call is what an error says of the operation:
//
//	┌ operation ┬ peer ──┬ tag ┐
//	└ 5 bits    ┴ 27     ┴ 32  ┘
type call uint64

func callOf(op callName, peer, tag int) call {
	return call(op)<<59 | call(peer)<<37>>5 | call(uint32(tag))
}

func (c call) op() callName { return callName(c >> 59) }
func (c call) peer() int    { return int(int64(c) << 5 >> 37) }
func (c call) tag() int     { return int(int32(c)) }

// early is the outcome of a request that never was under way; its Comm stands
// for it in the Request.
type early struct {
	st  Status
	err error
}

var (
	fromNobody = &Comm{early: &early{st: nobody}}
	hasLeft    = &Comm{early: &early{}} // a send or a one-sided operation that was complete at once
)

// refused is a request whose arguments were wrong.
func refused(err error) Request { return Request{c: &Comm{early: &early{err: err}}} }

// begun is a request that is under way. size is of a receive's elements.
func (c *Comm) begun(r engine.Request, op callName, peer, tag, size int) Request {
	r.Note = uint32(size)
	return Request{r: r, c: c, call: callOf(op, peer, tag)}
}

// Isend is Send that returns at once; buf belongs to the request until it is
// complete, and must not be written to (MPI_Isend, MPI 4.1 §3.7).
//
// Hot path: no allocation.
func Isend[T any](c *Comm, buf []T, dest, tag int) Request {
	b, err := view(buf)
	if err != nil {
		return refused(c.fail("Isend", dest, tag, err))
	}
	return c.isend(opIsend, b, dest, tag, engine.Standard)
}

// Issend is Isend that is complete only when the receive has been matched
// (MPI_Issend, MPI 4.1 §3.7).
func Issend[T any](c *Comm, buf []T, dest, tag int) Request {
	b, err := view(buf)
	if err != nil {
		return refused(c.fail("Issend", dest, tag, err))
	}
	return c.isend(opIssend, b, dest, tag, engine.Synchronous)
}

// Irecv is Recv that returns at once; buf belongs to the request until it is
// complete. Receives match in the order in which they were started
// (MPI_Irecv, MPI 4.1 §3.7).
//
// Hot path: no allocation.
func Irecv[T any](c *Comm, buf []T, source, tag int) Request {
	b, err := view(buf)
	if err != nil {
		return refused(c.fail("Irecv", source, tag, err))
	}
	s, err := c.checkRecv(source, tag)
	if err != nil {
		return refused(c.fail("Irecv", source, tag, err))
	}
	if source == ProcNull {
		return Request{c: fromNobody}
	}
	r := s.p2p.Irecv(b, engine.Env{Peer: source, Tag: tag})
	return c.begun(r, opIrecv, source, tag, sizeOf[T]())
}

func (c *Comm) isend(op callName, b []byte, dest, tag int, mode engine.Mode) Request {
	s, err := c.checkSend(dest, tag)
	if err != nil {
		return refused(c.fail(op.String(), dest, tag, err))
	}
	if dest == ProcNull {
		return Request{c: hasLeft}
	}
	r := s.p2p.Isend(b, engine.Env{Peer: dest, Tag: tag, Mode: mode})
	if r == (engine.Request{}) {
		return Request{c: hasLeft}
	}
	return c.begun(r, op, dest, tag, 0)
}

// Wait blocks until the operation is complete (MPI_Wait). The status is a
// receive's; that of sends and collectives says nothing. Errors: those of the
// blocking call of the same kind. Where the communicator's context ends first
// its error is returned: the operation goes on, it keeps its buffers, and Wait
// may be called again.
//
// Hot path: no allocation.
func (r Request) Wait() (Status, error) {
	if r.c == nil {
		return Status{}, nil
	}
	if e := r.c.early; e != nil {
		return e.st, e.err
	}
	st, err := r.r.Wait(r.context())
	return r.outcome(st, err == nil || !isContext(err) || r.r.Done(), err)
}

// context ends a wait for the request.
func (r *Request) context() context.Context {
	if r.call.op() == opCollective {
		return context.Background() // it watches the communicator's context itself
	}
	return r.c.ctx
}

// Test says whether the operation is complete, without blocking (MPI_Test). If
// it is, the request is done with, as after Wait.
func (r Request) Test() (Status, bool, error) {
	if r.c == nil {
		return Status{}, true, nil
	}
	if e := r.c.early; e != nil {
		return e.st, true, e.err
	}
	est, done, err := r.r.Test()
	if !done {
		return Status{}, false, nil
	}
	st, err := r.outcome(est, true, err)
	return st, true, err
}

// Cancel withdraws a receive that has matched no message yet: Wait, which must
// still be called, then reports Status.Cancelled. A receive that has matched,
// a send and a collective go on as if it had not been called (MPI_Cancel). It
// is local and does not block.
func (r Request) Cancel() error {
	if !r.pending() {
		return nil
	}
	if err := r.r.Cancel(); err != nil {
		return r.c.fail("Cancel", r.call.peer(), r.call.tag(), err)
	}
	return nil
}

// outcome makes of the engine's outcome what Wait returns; done says that the
// operation has ended.
func (r *Request) outcome(est engine.Status, done bool, err error) (Status, error) {
	var st Status
	op := r.call.op()
	if op == opIrecv || op == opImrecv {
		st, err = status(est, int(r.r.Note), err)
	}
	if err == nil {
		return st, nil
	}
	if !done && op != opCollective {
		err = fmt.Errorf("%w; the operation goes on and keeps its buffer", err)
	}
	return st, r.c.fail(op.String(), r.call.peer(), r.call.tag(), err)
}

// pending says that the request is neither zero nor complete from the start.
func (r Request) pending() bool { return r.c != nil && r.c.early == nil }

// WaitAll blocks until all requests are complete, also where some fail, and
// makes them zero (MPI_Waitall). It returns the error of the first that
// failed, in the order of rs. Where a context ends first, the requests that
// are not complete stay as they are, and WaitAll may be called again.
func WaitAll(rs []Request) error {
	var first error
	at := len(rs) // of first
	failed := func(i int, err error) {
		if err != nil && i < at {
			first, at = err, i
		}
	}
	engine.WaitEach(len(rs), func(i int) (engine.Request, context.Context) {
		r := &rs[i]
		if !r.pending() {
			if r.c != nil {
				failed(i, r.c.early.err)
			}
			*r = Request{}
			return engine.Request{}, nil
		}
		return r.r, r.context()
	}, func(i int, st engine.Status, done bool, err error) {
		_, err = rs[i].outcome(st, done, err)
		failed(i, err)
		if done {
			rs[i] = Request{}
		}
	})
	return first
}

// complete says whether nothing of the request is under way.
func (r Request) complete() bool { return !r.pending() || r.r.Done() }

// WaitAny blocks until one of the requests is complete, makes it zero and
// returns its index, status and error (MPI_Waitany). The index is -1 where all
// are zero, or where a context ended first. All requests must be of one
// process; the context is that of the first.
func WaitAny(rs []Request) (int, Status, error) {
	var first *Request
	for i := range rs {
		switch {
		case rs[i].c == nil:
		case rs[i].c.early != nil:
			return take(rs, i)
		case first == nil:
			first = &rs[i]
		}
	}
	if first == nil {
		return -1, Status{}, nil
	}
	i, err := engine.WaitAny(first.c.ctx, len(rs), func(i int) engine.Request { return rs[i].r })
	if err != nil {
		return -1, Status{}, first.c.fail("WaitAny", noRank, noRank, err)
	}
	if i < 0 { // all are copies of requests that were waited for
		clear(rs)
		return -1, Status{}, nil
	}
	return take(rs, i)
}

// take waits for a request that is complete and makes it zero.
func take(rs []Request, i int) (int, Status, error) {
	st, err := rs[i].Wait()
	rs[i] = Request{}
	return i, st, err
}

// TestAny is WaitAny that does not block (MPI_Testany). It says false where
// requests are under way and none of them is complete.
func TestAny(rs []Request) (int, Status, bool, error) {
	active := false
	for i := range rs {
		if rs[i].c == nil {
			continue
		}
		active = true
		if st, done, err := rs[i].Test(); done {
			rs[i] = Request{}
			return i, st, true, err
		}
	}
	return -1, Status{}, !active, nil
}

// TestAll says whether all requests are complete, without blocking
// (MPI_Testall). If so it makes them zero and returns the error of the first
// that failed; if not they all stay as they are.
func TestAll(rs []Request) (bool, error) {
	if !allComplete(rs) {
		poll(rs)
		if !allComplete(rs) {
			return false, nil
		}
	}
	return true, WaitAll(rs)
}

func allComplete(rs []Request) bool {
	for i := range rs {
		if !rs[i].complete() {
			return false
		}
	}
	return true
}

// poll moves the engine on without ending a request, whatever has become of its
// communicator: transfers end by it too.
func poll(rs []Request) {
	for i := range rs {
		if rs[i].pending() {
			rs[i].c.s.job.eng.Poll()
			return
		}
	}
}

// Completion is one request's end, as WaitSome and TestSome tell it.
type Completion struct {
	Index  int // in the slice of requests
	Status Status
	Err    error
}

// WaitSome blocks until at least one of the requests is complete, makes all
// that are zero, and appends what became of them to done (MPI_Waitsome). It
// appends nothing where all were zero. The error is a context's that ended
// first; those of the operations are in the completions.
func WaitSome(rs []Request, done []Completion) ([]Completion, error) {
	before := len(done)
	if done = collect(rs, done); len(done) > before {
		return done, nil
	}
	i, st, err := WaitAny(rs)
	if i < 0 {
		return done, err
	}
	done = append(done, Completion{Index: i, Status: st, Err: err})
	return collect(rs, done), nil
}

// TestSome is WaitSome that does not block (MPI_Testsome).
func TestSome(rs []Request, done []Completion) []Completion {
	before := len(done)
	if done = collect(rs, done); len(done) > before {
		return done
	}
	poll(rs)
	return collect(rs, done)
}

// collect appends the requests that are complete to done, and makes them zero.
func collect(rs []Request, done []Completion) []Completion {
	for i := range rs {
		if rs[i].c == nil || !rs[i].complete() {
			continue
		}
		_, st, err := take(rs, i)
		done = append(done, Completion{Index: i, Status: st, Err: err})
	}
	return done
}
