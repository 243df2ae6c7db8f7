package mpi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
)

// callName stands for the name of a call in an Error. A Request holds a callName in 5 bits (see
// call), instead of a string of two words.
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
	opCollective // any nonblocking collective; its error has the collective's name already
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
	opIsendValue
	opNewRequest
	opTask // a function of Comm.Background

	// No Request has these, so they need not fit into 5 bits.
	opBsend
	opWait
	opWaitAll
	opWaitAny
	opTest
	opProbe
	opMprobe
	opPut
	opGet
	opAccumulate
	opGetAccumulate
	opLock
	opUnlock
	opLockAll
	opUnlockAll
	opFlush
	opFlushLocal
	opFlushAll
	opFlushLocalAll
	opSync
	opComplete
	opDetach
	opStart
	opTryLock
	opAgree
	opShrink
)

var callNames = [...]string{"", "Send", "Ssend", "Rsend", "Sendrecv", "SendrecvReplace", "Isend", "Issend", "Irecv", "Imrecv", "Wait",
	"RPut", "RGet", "RAccumulate", "RGetAccumulate", "FetchOp", "RFetchOp", "CompareSwap", "RCompareSwap", "Recv", "Mrecv", "IsendValue", "NewRequest", "Wait",
	"Bsend", "Wait", "WaitAll", "WaitAny", "Test", "Probe", "Mprobe", "Put", "Get", "Accumulate", "GetAccumulate",
	"Lock", "Unlock", "LockAll", "UnlockAll", "Flush", "FlushLocal", "FlushAll", "FlushLocalAll", "Sync", "Complete", "Detach",
	"Start", "TryLock", "Agree", "Shrink"}

func (o callName) String() string { return callNames[o] }

// Request is the type behind comm.Request: a nonblocking operation (MPI_Request). It has four
// words, so that the compiler keeps it in registers.
type Request struct {
	// The engine's request. Its Note is the size of a receive's elements in bytes, and 0 for other
	// operations.
	r engine.Request
	// The communicator of the request, or a Comm that holds only the result (Comm.completed). c is
	// nil in the zero Request.
	c    *Comm
	call call
}

// call holds the fields of an Error about a call: its name, peer and tag. From the highest bits to
// the lowest:
//
//	┌ callName ┬ peer ───┬ tag ────┐
//	└ 5 bits   ┴ 27 bits ┴ 32 bits ┘
type call uint64

func callOf(op callName, peer, tag int) call {
	return call(op)<<59 | call(peer)<<37>>5 | call(uint32(tag))
}

func (c call) op() callName { return callName(c >> 59) }
func (c call) peer() int    { return int(int64(c) << 5 >> 37) }
func (c call) tag() int     { return int(int32(c)) }

// completedRequest is the result of a request that was complete when its call returned: of a
// refused call (see refusals), or of an operation that was complete at once. Request.c is then a
// Comm that holds only this result.
type completedRequest struct {
	st  Status
	err error
	// The job whose field refusals may count the request. nil: the request was not refused, or no
	// job is known.
	job *job
	// For a request that job.refusals has counted: the line of the program that made the call. It
	// is empty without the tunable check.
	line string

	counted bool // job.refusals counts the request; guarded by refusals.mu

	// Only for a send that was complete at once, on a rank with a checker of buffers.
	use *bufcheck.Operation // the checker's record that the buffer is in use until Wait or Test; otherwise nil
	at  call                // the send's name, peer and tag
	c   *Comm               // the communicator of the send
}

// completedSend returns the request of a send that was complete at once. p is the checker's record
// of the send; if p is not nil, the buffer counts as in use until Wait or Test.
func (c *Comm) completedSend(p *bufcheck.Operation, op callName, peer, tag int) Request {
	if p == nil {
		return Request{c: completedAtStart}
	}
	p.Began(c.s, engine.Request{})
	return Request{c: &Comm{completed: &completedRequest{use: p, at: callOf(op, peer, tag), c: c}}}
}

// withPending returns the Comm for the request r, whose buffers the checker has recorded as p. If p
// is nil, it returns c. Otherwise it returns a copy of c that holds p.
func (c *Comm) withPending(p *bufcheck.Operation, r engine.Request) *Comm {
	if p == nil {
		return c
	}
	return c.copyWith(p, r)
}

// copyWith does the work of withPending if p is not nil. It is not inlined, so that the compiler
// inlines withPending.
//
//go:noinline
func (c *Comm) copyWith(p *bufcheck.Operation, r engine.Request) *Comm {
	p.Began(c.s, r)
	return &Comm{s: c.s, ctx: c.ctx, use: p}
}

// Values of Request.c for the most frequent requests that were complete from the start.
var (
	// A receive from ProcNull.
	procNullRecv = &Comm{completed: &completedRequest{st: procNullStatus}}
	// A send or a one-sided operation that was complete at once.
	completedAtStart = &Comm{completed: &completedRequest{}}
)

// startedRequest returns the Request for r, an operation that the engine has started for the call
// op. size is the size of a receive's elements in bytes, and 0 for other operations.
func (c *Comm) startedRequest(r engine.Request, op callName, peer, tag, size int) Request {
	if c.s.job.checks {
		noteLine(r)
	}
	r.Note = uint32(size)
	return Request{r: r, c: c, call: callOf(op, peer, tag)}
}

// Isend implements comm.Isend, which documents the call.
func (c *Comm) Isend(b elem.Buffer, dest, tag int) Request {
	return c.isend(opIsend, b, dest, tag, engine.Standard)
}

// Issend implements comm.Issend, which documents the call.
func (c *Comm) Issend(b elem.Buffer, dest, tag int) Request {
	return c.isend(opIssend, b, dest, tag, engine.Synchronous)
}

// Irecv implements comm.Irecv, which documents the call.
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
	began := s.began()
	p, err := s.checkStart(opIrecv, noBuffer, b)
	if err != nil {
		return c.refused("Irecv", source, tag, err)
	}
	r := s.p2p.Irecv(b.Bytes(), engine.Env{Peer: source, Tag: tag, Sig: b.Type.Sig, Form: b.Type.Form})
	p.Received(r)
	if began != 0 {
		s.recordCall(opIrecv, began, source, tag, b.Size())
	}
	return c.withPending(p, r).startedRequest(r, opIrecv, source, tag, b.Type.Size)
}

// isend starts a nonblocking send for the call op.
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
	began := s.began()
	p, err := s.checkStart(op, b, noBuffer)
	if err != nil {
		return c.refused(op.String(), dest, tag, err)
	}
	r := s.p2p.Isend(b.Bytes(), engine.Env{Peer: dest, Tag: tag, Sig: b.Type.Sig, Mode: mode, Form: b.Type.Form})
	if began != 0 {
		s.recordCall(op, began, dest, tag, b.Size())
	}
	if r == (engine.Request{}) {
		return c.completedSend(p, op, dest, tag)
	}
	return c.withPending(p, r).startedRequest(r, op, dest, tag, 0)
}

// Wait implements comm.Request.Wait, which documents the call.
//
// Hot path: no allocation.
func (r Request) Wait() (Status, error) {
	if r.c == nil {
		return Status{}, nil
	}
	if e := r.c.completed; e != nil {
		return e.result()
	}
	began := r.c.s.began()
	st, err := r.r.Wait(r.context())
	if began != 0 && err == nil {
		r.c.s.recordCall(opWait, began, r.call.peer(), r.call.tag(), st.Bytes)
	}
	return r.result(st, err == nil || !isInterruption(err) || r.r.Done(), err)
}

// WaitContext implements comm.Request.WaitContext, which documents the call.
func (r Request) WaitContext(ctx context.Context) (Status, error) {
	if r.c == nil {
		return Status{}, nil
	}
	if e := r.c.completed; e != nil {
		return e.result()
	}
	began := r.c.s.began()
	st, err := r.r.Wait(ctx)
	if began != 0 && err == nil {
		r.c.s.recordCall(opWait, began, r.call.peer(), r.call.tag(), st.Bytes)
	}
	return r.result(st, err == nil || !isInterruption(err) || r.r.Done(), err)
}

// wait is Wait for a blocking call that makes the request and records itself.
func (r Request) wait() (Status, error) {
	if !r.pending() {
		return r.Wait()
	}
	st, err := r.r.Wait(r.context())
	return r.result(st, err == nil || !isInterruption(err) || r.r.Done(), err)
}

// context returns the context whose end makes a Wait for the request return.
func (r *Request) context() context.Context {
	if r.call.op() == opCollective {
		return context.Background() // the collective observes the communicator's context itself
	}
	return r.c.ctx
}

// Test implements comm.Request.Test, which documents the call.
func (r Request) Test() (Status, bool, error) {
	if r.c == nil {
		return Status{}, true, nil
	}
	if e := r.c.completed; e != nil {
		st, err := e.result()
		return st, true, err
	}
	st, done, err := r.r.Test()
	if !done {
		return Status{}, false, r.pendingError(err)
	}
	st, err = r.result(st, true, err)
	return st, true, err
}

// ElemSize returns the size of the elements of a receive in bytes, and 0 for other operations.
func (r *Request) ElemSize() int { return int(r.r.Note) }

// Cancel implements comm.Request.Cancel, which documents the call.
func (r Request) Cancel() error {
	if !r.pending() {
		return nil
	}
	if r.call.op() == opNewRequest {
		return r.cancelProgram()
	}
	if err := r.r.Cancel(); err != nil {
		return r.c.fail("Cancel", r.call.peer(), r.call.tag(), err)
	}
	return nil
}

// result returns what Wait returns. st and err are what the engine's Wait has returned. done says
// whether the operation has ended; if it has not, err is ErrProcFailedPending or the error of the context that
// ended the wait.
func (r *Request) result(st Status, done bool, err error) (Status, error) {
	st, err = r.received(st, err)
	if done {
		err = r.c.use.End(err)
	}
	if err == nil {
		return st, nil
	}
	return st, r.named(done, err)
}

// received returns the status and the error of the operation from those of the engine: a send has no
// status, and a receive must have received a whole number of elements.
func (r *Request) received(st Status, err error) (Status, error) {
	switch r.call.op() {
	case opIrecv, opImrecv:
		return st, checkCount(st.Bytes, r.ElemSize(), err)
	case opNewRequest, opTask:
		return st, err
	default:
		return Status{}, err
	}
}

// named returns err, the error of a request, as an Error of the call that has started the request.
// done says whether the operation has ended.
func (r *Request) named(done bool, err error) error {
	op := r.call.op()
	if err == nil || done && op == opTask {
		return err
	}
	if errors.Is(err, engine.ErrGoexit) {
		err = fmt.Errorf("%w: %w", ErrOp, err)
	}
	if !done && op != opCollective {
		err = fmt.Errorf("%w; the operation goes on and keeps its buffer", err)
	}
	return r.c.fail(op.String(), r.call.peer(), r.call.tag(), err)
}

// pendingError returns err, which is nil or ErrProcFailedPending, as an Error of the call that has
// started the request.
func (r *Request) pendingError(err error) error {
	if err == nil {
		return nil
	}
	return r.named(false, err)
}

// Peek implements comm.Request.Peek, which documents the call.
func (r Request) Peek() (Status, bool, error) {
	if r.c == nil {
		return Status{}, true, nil
	}
	if e := r.c.completed; e != nil {
		return e.st, true, e.err
	}
	st, done, err := r.r.Status()
	if !done {
		return Status{}, false, r.pendingError(err)
	}
	st, err = r.received(st, err)
	return st, true, r.named(true, err)
}

// pending reports whether the request has one of the engine: it is neither zero nor was complete
// from the start.
func (r Request) pending() bool { return r.c != nil && r.c.completed == nil }

// WaitAll implements comm.WaitAll, which documents the call.
func WaitAll(rs []Request) error {
	t := timingOf(rs)
	var first error
	at := len(rs) // index of the request whose error first holds
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
		r := &rs[i]
		if err != nil || r.c.use != nil || checkCount(st.Bytes, r.ElemSize(), nil) != nil {
			_, err = r.result(st, done, err)
			failed(i, err)
		}
		if done {
			*r = Request{}
		}
	})
	t.end(opWaitAll, noRank, noRank, 0)
	return first
}

// WaitEach implements comm.WaitEach, which documents the call.
func WaitEach(rs []Request, done []Completion) ([]Completion, error) {
	t := timingOf(rs)
	before := len(done)
	for i := range rs {
		done = append(done, Completion{Index: i})
	}
	all := done[before:]
	engine.WaitEach(len(rs), func(i int) (engine.Request, context.Context) {
		r := &rs[i]
		if !r.pending() {
			if r.c != nil {
				all[i].Status, all[i].Err = r.c.completed.result()
			}
			*r = Request{}
			return engine.Request{}, nil
		}
		return r.r, r.context()
	}, func(i int, st engine.Status, done bool, err error) {
		r := &rs[i]
		size := r.ElemSize()
		all[i].Status, all[i].Err = r.result(st, done, err)
		all[i].Count = elem.Whole(all[i].Status.Bytes, size)
		if done {
			*r = Request{}
		}
	})
	t.end(opWaitAll, noRank, noRank, 0)
	for i := range all {
		if all[i].Err != nil {
			return done, all[i].Err
		}
	}
	return done, nil
}

// TestEach implements comm.TestEach, which documents the call.
func TestEach(rs []Request, done []Completion) ([]Completion, bool, error) {
	if !engine.AllDone(len(rs), func(i int) engine.Request { return rs[i].r }) {
		return done, false, firstPending(rs)
	}
	done, err := WaitEach(rs, done)
	return done, true, err
}

// firstPending returns the error of the first request of rs for which a wait returns
// ErrProcFailedPending; nil: there is none.
func firstPending(rs []Request) error {
	i := engine.FirstPending(len(rs), func(i int) engine.Request { return rs[i].r })
	if i < 0 {
		return nil
	}
	_, _, err := rs[i].Peek()
	return err
}

// WaitAny implements comm.WaitAny, which documents the call. If a context ends first, or if all
// requests are zero or copies of requests that the program has waited for, Completion.Index is -1.
func WaitAny(rs []Request) Completion {
	first, done := firstCompleted(rs)
	switch {
	case done >= 0:
		return take(rs, done)
	case first == nil:
		return Completion{Index: -1}
	}
	t := first.c.timing()
	i, err := engine.WaitAny(first.c.ctx, len(rs), func(i int) engine.Request { return rs[i].r })
	t.end(opWaitAny, noRank, noRank, 0)
	if err != nil {
		return Completion{Index: -1, Err: first.c.fail("WaitAny", noRank, noRank, err)}
	}
	if i < 0 { // all requests are zero, or copies of requests whose results the program already has
		clear(rs)
		return Completion{Index: -1}
	}
	return take(rs, i)
}

// firstCompleted looks for a request that was complete from the start: done is the index of the
// first one, or -1 if there is none. Of the requests before it, or of all if there is none, first
// is the first that has a request of the engine; nil: none has.
func firstCompleted(rs []Request) (first *Request, done int) {
	// The Comm of the last request that had one of the engine, to skip further requests with the
	// same Comm.
	var known *Comm
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

// take returns the result of rs[i], which is complete, with the number of elements that it has
// received, and sets rs[i] to zero. If a wait for rs[i] returns ErrProcFailedPending, rs[i] stays.
func take(rs []Request, i int) Completion {
	c := Completion{Index: i}
	c.Status, c.Err = rs[i].Wait()
	c.Count = elem.Whole(c.Status.Bytes, rs[i].ElemSize())
	if c.Err == nil || !errors.Is(c.Err, ErrProcFailedPending) {
		rs[i] = Request{}
	}
	return c
}

// TestAny implements comm.TestAny, which documents the call.
func TestAny(rs []Request) (c Completion, done bool) {
	first, i := firstCompleted(rs)
	if i < 0 && first != nil {
		var live bool
		if i, live = engine.TestAny(len(rs), func(i int) engine.Request { return rs[i].r }); i < 0 && live {
			return Completion{Index: -1}, false
		}
	}
	if i < 0 {
		clear(rs) // all requests are zero, or copies of requests whose results the program already has
		return Completion{Index: -1}, true
	}
	return take(rs, i), true
}

// TestAll implements comm.TestAll, which documents the call.
func TestAll(rs []Request) (bool, error) {
	if !engine.AllDone(len(rs), func(i int) engine.Request { return rs[i].r }) {
		return false, firstPending(rs)
	}
	return true, WaitAll(rs)
}

// Completion is the result of one request of a slice. comm.Completion has the same fields, with
// Count in its Status.
type Completion struct {
	Index  int // of the request in the slice; -1: there is no such request
	Status Status
	Count  int // number of elements of a receive; 0 for other operations
	Err    error
}

// WaitSome implements comm.WaitSome, which documents the call.
func WaitSome(rs []Request, done []Completion) ([]Completion, error) {
	before := len(done)
	if done = collect(rs, done); len(done) > before {
		return done, nil
	}
	c := WaitAny(rs)
	if c.Index < 0 {
		return done, c.Err
	}
	return collect(rs, append(done, c)), nil
}

// TestSome implements comm.TestSome, which documents the call.
func TestSome(rs []Request, done []Completion) []Completion {
	before := len(done)
	if done = collect(rs, done); len(done) > before {
		return done
	}
	c, ok := TestAny(rs)
	if !ok || c.Index < 0 {
		return done
	}
	return collect(rs, append(done, c))
}

// collect appends the results of the complete requests of rs to done, in the order of rs, and sets
// these requests to zero. It does not block.
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
		some[k] = take(rs, some[k].Index)
	}
	return done
}
