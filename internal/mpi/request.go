package mpi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
)

// callName is the name of a call in an Error, as one byte, which each Request holds.
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
	opCollective // the error of the collective has its name already
	opRPut
	opRGet
	opRAccumulate
	opRGetAccumulate
	opFetchOp
	opRFetchOp
	opCompareSwap
	opRCompareSwap
	opRecv
	opMrecv
)

var callNames = [...]string{"", "Send", "Ssend", "Rsend", "Sendrecv", "SendrecvReplace", "Isend", "Issend", "Irecv", "Imrecv", "Wait",
	"RPut", "RGet", "RAccumulate", "RGetAccumulate", "FetchOp", "RFetchOp", "CompareSwap", "RCompareSwap", "Recv", "Mrecv"}

func (o callName) String() string { return callNames[o] }

// Request is comm.Request. It has four words, so that the compiler keeps it in registers.
type Request struct {
	r    engine.Request // its Note is the size of a receive's elements
	c    *Comm          // nil in the zero Request
	call call
}

// call holds the fields of an Error about the operation:
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

// completedRequest is the result of a request that is complete from the start. Request.c is then a
// Comm that holds only this result.
type completedRequest struct {
	st   Status
	err  error
	job  *job   // the job whose refusals may hold it; nil: the request was not refused
	line string // line of the program that made the call; empty without the tunable check

	counted bool // job.refusals counts it; guarded by refusals.mu

	use *pending // of a send that was complete at once; nil without a checker
	at  call     // of that send
	c   *Comm    // of that send
}

// completedSend returns the request of a send that was complete when it started. With a checker, its
// buffer stays in use until Wait.
func (c *Comm) completedSend(p *pending, op callName, peer, tag int) Request {
	if p == nil {
		return Request{c: completedAtStart}
	}
	p.began(c.s, engine.Request{})
	return Request{c: &Comm{completed: &completedRequest{use: p, at: callOf(op, peer, tag), c: c}}}
}

// withPending returns the Comm for a request r that the checker has recorded as p: a copy of c that
// holds p. If p is nil, withPending returns c.
func (c *Comm) withPending(p *pending, r engine.Request) *Comm {
	if p == nil {
		return c
	}
	p.began(c.s, r)
	return &Comm{s: c.s, ctx: c.ctx, use: p}
}

var (
	procNullRecv     = &Comm{completed: &completedRequest{st: procNullStatus}}
	completedAtStart = &Comm{completed: &completedRequest{}} // a send or a one-sided operation that was complete at once
)

// startedRequest returns the Request for r, an operation that the engine has started. size is the
// size of a receive's elements.
func (c *Comm) startedRequest(r engine.Request, op callName, peer, tag, size int) Request {
	if c.s.job.checks {
		noteLine(r)
	}
	r.Note = uint32(size)
	return Request{r: r, c: c, call: callOf(op, peer, tag)}
}

// Isend is comm.Isend.
func (c *Comm) Isend(b elem.Buffer, dest, tag int) Request {
	return c.isend(opIsend, b, dest, tag, engine.Standard)
}

// Issend is comm.Issend.
func (c *Comm) Issend(b elem.Buffer, dest, tag int) Request {
	return c.isend(opIssend, b, dest, tag, engine.Synchronous)
}

// Irecv is comm.Irecv.
//
// Hot path: no allocation.
func (c *Comm) Irecv(b elem.Buffer, source, tag int) Request {
	s, err := c.checkRecv(b.Type, source, tag)
	if err != nil {
		return c.refused("Irecv", source, tag, err)
	}
	if source == ProcNull {
		return Request{c: procNullRecv}
	}
	p, err := s.check.start(opIrecv, nil, b.Bytes())
	if err != nil {
		return c.refused("Irecv", source, tag, err)
	}
	r := s.p2p.Irecv(b.Bytes(), engine.Env{Peer: source, Tag: tag, Sig: b.Type.Sig})
	p.received(r)
	return c.withPending(p, r).startedRequest(r, opIrecv, source, tag, b.Type.Size)
}

// isend starts a send.
//
// Hot path: no allocation.
func (c *Comm) isend(op callName, b elem.Buffer, dest, tag int, mode engine.Mode) Request {
	s, err := c.checkSend(b.Type, dest, tag)
	if err != nil {
		return c.refused(op.String(), dest, tag, err)
	}
	if dest == ProcNull {
		return Request{c: completedAtStart}
	}
	p, err := s.check.start(op, b.Bytes(), nil)
	if err != nil {
		return c.refused(op.String(), dest, tag, err)
	}
	r := s.p2p.Isend(b.Bytes(), engine.Env{Peer: dest, Tag: tag, Sig: b.Type.Sig, Mode: mode})
	if r == (engine.Request{}) {
		return c.completedSend(p, op, dest, tag)
	}
	return c.withPending(p, r).startedRequest(r, op, dest, tag, 0)
}

// Wait is comm.Request.Wait.
//
// Hot path: no allocation.
func (r Request) Wait() (Status, error) {
	if r.c == nil {
		return Status{}, nil
	}
	if e := r.c.completed; e != nil {
		return e.result()
	}
	st, err := r.r.Wait(r.context())
	return r.result(st, err == nil || !isContext(err) || r.r.Done(), err)
}

// context returns the context that ends a Wait for the request.
func (r *Request) context() context.Context {
	if r.call.op() == opCollective {
		return context.Background() // the collective observes the communicator's context itself
	}
	return r.c.ctx
}

// Test is comm.Request.Test.
func (r Request) Test() (Status, bool, error) {
	if r.c == nil {
		return Status{}, true, nil
	}
	if e := r.c.completed; e != nil {
		st, err := e.result()
		return st, true, err
	}
	est, done, err := r.r.Test()
	if !done {
		return Status{}, false, nil
	}
	st, err := r.result(est, true, err)
	return st, true, err
}

// Cancel is comm.Request.Cancel.
func (r Request) Cancel() error {
	if !r.pending() {
		return nil
	}
	if err := r.r.Cancel(); err != nil {
		return r.c.fail("Cancel", r.call.peer(), r.call.tag(), err)
	}
	return nil
}

// result returns what Wait returns, from the engine's status and error. done reports whether the
// operation has ended.
func (r *Request) result(est engine.Status, done bool, err error) (Status, error) {
	var st Status
	op := r.call.op()
	if op == opIrecv || op == opImrecv {
		st, err = status(est, int(r.r.Note), err)
	}
	if done {
		err = r.c.use.end(err)
	}
	if err == nil {
		return st, nil
	}
	if errors.Is(err, engine.ErrGoexit) {
		err = fmt.Errorf("%w: %w", ErrOp, err)
	}
	if !done && op != opCollective {
		err = fmt.Errorf("%w; the operation goes on and keeps its buffer", err)
	}
	return st, r.c.fail(op.String(), r.call.peer(), r.call.tag(), err)
}

// pending reports whether the request is neither zero nor complete from the start.
func (r Request) pending() bool { return r.c != nil && r.c.completed == nil }

// WaitAll is comm.WaitAll.
func WaitAll(rs []Request) error {
	var first error
	at := len(rs) // index of the request that first is the error of
	failed := func(i int, err error) {
		if err != nil && i < at {
			first, at = err, i
		}
	}
	engine.WaitEach(len(rs), func(i int) (engine.Request, context.Context) {
		r := &rs[i]
		if !r.pending() {
			if r.c != nil {
				_, err := r.c.completed.result()
				failed(i, err)
			}
			*r = Request{}
			return engine.Request{}, nil
		}
		return r.r, r.context()
	}, func(i int, st engine.Status, done bool, err error) {
		_, err = rs[i].result(st, done, err)
		failed(i, err)
		if done {
			rs[i] = Request{}
		}
	})
	return first
}

// WaitAny is comm.WaitAny.
func WaitAny(rs []Request) (int, Status, error) {
	first, done := firstCompleted(rs)
	switch {
	case done >= 0:
		return take(rs, done)
	case first == nil:
		return -1, Status{}, nil
	}
	i, err := engine.WaitAny(first.c.ctx, len(rs), func(i int) engine.Request { return rs[i].r })
	if err != nil {
		return -1, Status{}, first.c.fail("WaitAny", noRank, noRank, err)
	}
	if i < 0 { // all are copies of requests that the program has waited for
		clear(rs)
		return -1, Status{}, nil
	}
	return take(rs, i)
}

// firstCompleted returns the index of the first request that is complete from the start, or -1 if
// there is none. first is the first request before it that the engine knows.
func firstCompleted(rs []Request) (first *Request, done int) {
	var known *Comm // the last Comm that the loop has found to be of the engine's requests
	for i := range rs {
		c := rs[i].c
		if c == nil || c == known {
			continue
		}
		if c.completed != nil {
			return first, i
		}
		if known = c; first == nil {
			first = &rs[i]
		}
	}
	return first, -1
}

// take returns the result of a request that is complete, and sets the request to zero.
func take(rs []Request, i int) (int, Status, error) {
	st, err := rs[i].Wait()
	rs[i] = Request{}
	return i, st, err
}

// TestAny is comm.TestAny.
func TestAny(rs []Request) (int, Status, bool, error) {
	first, i := firstCompleted(rs)
	if i < 0 && first != nil {
		var live bool
		if i, live = engine.TestAny(len(rs), func(i int) engine.Request { return rs[i].r }); i < 0 && live {
			return -1, Status{}, false, nil
		}
	}
	if i < 0 {
		clear(rs) // all are zero, or copies of requests that the program has waited for
		return -1, Status{}, true, nil
	}
	i, st, err := take(rs, i)
	return i, st, true, err
}

// TestAll is comm.TestAll.
func TestAll(rs []Request) (bool, error) {
	if !engine.AllDone(len(rs), func(i int) engine.Request { return rs[i].r }) {
		return false, nil
	}
	return true, WaitAll(rs)
}

// Completion is comm.Completion.
type Completion struct {
	Index  int // in the slice of requests
	Status Status
	Err    error
}

// WaitSome is comm.WaitSome.
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

// TestSome is comm.TestSome.
func TestSome(rs []Request, done []Completion) []Completion {
	before := len(done)
	if done = collect(rs, done); len(done) > before {
		return done
	}
	i, st, ok, err := TestAny(rs)
	if !ok || i < 0 {
		return done
	}
	done = append(done, Completion{Index: i, Status: st, Err: err})
	return collect(rs, done)
}

// collect appends the results of the complete requests to done, and sets these requests to zero.
func collect(rs []Request, done []Completion) []Completion {
	before := len(done)
	found := func(i int) { done = append(done, Completion{Index: i}) }
	for i := range rs {
		if c := rs[i].c; c != nil && c.completed != nil {
			found(i)
		}
	}
	engine.EachDone(len(rs), func(i int) engine.Request { return rs[i].r }, found)
	some := done[before:]
	slices.SortFunc(some, func(a, b Completion) int { return cmp.Compare(a.Index, b.Index) })
	for k := range some {
		_, some[k].Status, some[k].Err = take(rs, some[k].Index)
	}
	return done
}
