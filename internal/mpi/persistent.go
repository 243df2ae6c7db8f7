package mpi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/arena"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Persistent is the type behind comm.Persistent: an operation with fixed arguments that the program
// may start many times (MPI 4.1 §3.9, §6.13). One goroutine at a time uses a Persistent.
//
//	SendInit, … ─► inactive ── Start ─► active ── Wait, Test ─► inactive ── Free
//
// Each persistent collective has a communicator of its own, which the Init function makes as Dup
// does. So the ranks may start the operations of the program's communicator in different orders,
// and each operation keeps its link, its scratch memory and its arena. A start has one of two
// forms:
//
//	published   Start writes this rank's part to the arena, and Wait reads the parts of the others, on
//	            the caller's goroutine. The other ranks need nothing more of this rank. Only for short
//	            calls in shared memory; see coll/host_short.go.
//	task        Start gives the collective to another goroutine, as a nonblocking collective does.
type Persistent struct {
	c    *Comm    // of a message: the program's communicator; of a collective: the operation's own
	call callName // of a message: the call that Start makes; of a collective: opCollective
	name string   // of the call that made p, such as "SendInit"

	// Of a message.
	buf       elem.Buffer
	peer, tag int

	l       *link  // of a collective; nil for a message
	version uint32 // Engine.StateVersion when the collective last started

	active    bool
	published bool                // the collective is active in the form published
	tests     int                 // number of calls of Test since the collective was published
	use       *bufcheck.Operation // the checker's record of the active, published collective
	r         Request             // the active operation, if it is not published
	lent      bool                // Request has returned r, so the program may wait for r by other calls
}

// SendInit implements comm.SendInit, which documents the call.
func (c *Comm) SendInit(b elem.Buffer, dest, tag int) (*Persistent, error) {
	return c.sendInit("SendInit", opIsend, b, dest, tag)
}

// SsendInit implements comm.SsendInit, which documents the call.
func (c *Comm) SsendInit(b elem.Buffer, dest, tag int) (*Persistent, error) {
	return c.sendInit("SsendInit", opIssend, b, dest, tag)
}

func (c *Comm) sendInit(name string, op callName, b elem.Buffer, dest, tag int) (*Persistent, error) {
	if _, err := c.checkSend(b.Type, dest, tag); err != nil {
		return nil, c.fail(name, dest, tag, err)
	}
	return &Persistent{c: c, call: op, name: name, buf: b, peer: dest, tag: tag}, nil
}

// RecvInit implements comm.RecvInit, which documents the call.
func (c *Comm) RecvInit(b elem.Buffer, source, tag int) (*Persistent, error) {
	if _, err := c.checkRecv(b.Type, source, tag); err != nil {
		return nil, c.fail("RecvInit", source, tag, err)
	}
	return &Persistent{c: c, call: opIrecv, name: "RecvInit", buf: b, peer: source, tag: tag}, nil
}

// persist makes a persistent collective. prepare calls a function such as Comm.bcast, which checks
// the arguments and prepares the link of the collective on the communicator that persist passes to
// prepare.
func (c *Comm) persist(name string, prepare func(c *Comm) (*link, error)) (*Persistent, error) {
	s, id, err := c.agreeOnID(name, calls.KindInit)
	if err != nil {
		return nil, err
	}
	own := &Comm{s: s.newStateFor(id), ctx: c.ctx}
	l, err := prepare(own)
	if err != nil {
		// The other ranks detect the error by the revocation of own: in Init, Start or Wait.
		own.s.abandon()
		return nil, err
	}
	l.leave()
	l.short = coll.ShortCall{What: l.what, Send: l.send, Recv: l.recv, Op: l.op, Root: l.root, Config: l.s.job.coll}
	l.sendViews, l.recvViews = slices.Clone(l.sendViews), slices.Clone(l.recvViews)
	l.finishTask = l.finishPublished
	l.dropRecord()
	l.persistent, l.usedByPlan, l.largeByPlan = true, l.used, len(l.large)
	l.yieldSlot()
	return &Persistent{c: own, call: opCollective, name: name, l: l}, nil
}

// Start implements comm.Persistent.Start, which documents the call.
//
// Hot path: no allocation in steady state.
func (p *Persistent) Start() error {
	if p == nil || p.c == nil {
		return nilOperation("Start")
	}
	if p.active && !p.collected() {
		return p.fail(fmt.Errorf("%w: the operation is active: wait for it before it is started again", ErrArg))
	}
	p.active, p.lent = true, false
	switch p.call {
	case opIrecv:
		p.r = p.c.Irecv(p.buf, p.peer, p.tag)
	case opIsend:
		p.r = p.c.isend(opIsend, p.buf, p.peer, p.tag, engine.Standard)
	case opIssend:
		p.r = p.c.isend(opIssend, p.buf, p.peer, p.tag, engine.Synchronous)
	default:
		return p.startCollective()
	}
	return nil
}

// collected reports whether the active operation needs no wait, for example because the program has
// already got its result through a request that Persistent.Request has returned.
func (p *Persistent) collected() bool { return !p.published && p.lent && p.r.collected() }

// collected returns true if the request is zero, if it was complete when its call returned, or if
// the program has already got its result.
func (r *Request) collected() bool {
	if r.c == nil || r.c.completed != nil {
		return true
	}
	return r.r.Collected()
}

func (p *Persistent) fail(err error) error { return p.c.fail("Start of "+p.name, noRank, noRank, err) }

// startCollective starts the next round of a collective.
func (p *Persistent) startCollective() error {
	l, s := p.l, p.c.s
	_, err := p.c.live()
	if version := s.job.eng.StateVersion(); err == nil && version != p.version {
		if err = s.coll.Err(); err == nil {
			p.version = version
		}
	}
	var use *bufcheck.Operation
	if err == nil {
		use, err = l.checkStart()
	}
	if err != nil {
		p.active = false
		return p.fail(err)
	}
	if err = l.again(); err == nil {
		p.published, err = l.publish()
	}
	if err != nil {
		p.active, p.published = false, false
		return p.fail(use.End(l.end(err)))
	}
	if p.published {
		p.use, p.tests = use, 0
		return nil
	}
	r := s.job.eng.Go(l.task)
	p.r = p.c.withPending(use, r).startedRequest(r, opCollective, noRank, noRank, 0)
	return nil
}

// publishedTests is the number of calls of Test after which a task continues a published
// collective.
const publishedTests = 100

// again prepares the link of a persistent collective for its next round.
func (l *link) again() error {
	if l.rounds++; l.rounds > 1 { // begin has numbered the first round
		l.env.Tag = int(l.s.seq.Add(1) & seqMask)
		l.unrecorded = true
	}
	l.enterRecord()
	if !l.inter {
		if err := l.regainSlot(); err != nil {
			return err
		}
		if l.hood != nil {
			l.requestNeighborArena()
		} else {
			l.requestArena(l.count)
		}
	}
	return l.pack()
}

// publish starts a round in shared memory and returns true, if it need not wait for another rank.
// Otherwise it starts nothing and returns false.
func (l *link) publish() (bool, error) {
	s := l.s
	if !l.mayPublish() || !l.hasSlot || l.opID == calls.OpOfProgram || s.stateVersion != s.job.eng.StateVersion() {
		return false, nil
	}
	a := s.arena.Load()
	l.arena = a
	if l.hood != nil && l.short.Neighbors == nil {
		c := l.neighborCall()
		l.short.Neighbors = &c
	}
	l.acquire()
	published, err := a.Host.Publish(l, &l.short)
	if published && err == nil {
		l.yieldSlot()
	}
	return published, err
}

// mayPublish reports whether the call runs in the arena, which exists. A neighbour collective may
// also need messages.
func (l *link) mayPublish() bool {
	if l.hood == nil {
		return l.shared
	}
	a := l.s.arena.Load()
	return l.wantsArena && a != nil && a != arena.None
}

// rewind ends a round of a persistent collective. It keeps the memory that the plan uses.
func (l *link) rewind() {
	if l.unrecorded {
		l.recordCall()
	}
	l.leaveRecord()
	l.leave()
	l.used = l.usedByPlan
	for _, b := range l.large[l.largeByPlan:] {
		if !l.tainted { // otherwise a transfer may still use the memory
			giveLarge(b)
		}
	}
	clear(l.large[l.largeByPlan:])
	l.large = l.large[:l.largeByPlan]
	l.reqs = l.reqs[:0]
	l.clearWait()
	if l.queued {
		l.s.dequeue(l)
	}
	l.yieldSlot()
	l.arena = nil
}

// yieldSlot releases the slot, if l holds it. Between two rounds, and while a round is published, a
// persistent collective does not hold the slot, so that closeSlot need not wait for the program.
func (l *link) yieldSlot() {
	if !l.hasSlot {
		return
	}
	a := l.arena
	wake := a != nil && a.Host.TakePendingWake()
	l.dropSlot() // its store is the full barrier before the wake
	if wake {
		l.s.wake(a)
	}
}

// regainSlot acquires the slot again, if l does not hold it. No other collective uses the slot, but the
// stall detector acquires it for a moment, and closeSlot for ever. After closeSlot, regainSlot returns
// ErrClosed.
//
// Hot path: no allocation, and no lock if the slot is free.
func (l *link) regainSlot() error {
	s := l.s
	if l.hasSlot {
		return nil
	}
	if l.spare = s.tryAcquireSlot(); l.spare != nil {
		l.hasSlot = true
		return nil
	}
	if s.enqueue(l); !l.queued {
		return ErrClosed
	}
	return s.awaitSlot(l)
}

// finishPublished completes a round that publish has started.
func (l *link) finishPublished() error {
	l.acquire()
	if err := l.regainSlot(); err != nil {
		return l.end(err)
	}
	return l.end(l.arena.Host.Finish(&l.short))
}

// Wait implements comm.Persistent.Wait, which documents the call.
//
// Hot path: no allocation.
func (p *Persistent) Wait() (Status, error) {
	switch {
	case p == nil || !p.active:
		return Status{}, nil
	case p.published:
		p.active, p.published = false, false
		use := p.use
		p.use = nil
		return Status{}, use.End(p.l.finishPublished())
	}
	st, err := p.r.Wait()
	p.active = !p.r.collected() // if the context has ended first, the operation stays active
	return st, err
}

// Test implements comm.Persistent.Test, which documents the call.
func (p *Persistent) Test() (Status, bool, error) {
	switch {
	case p == nil || !p.active:
		return Status{}, true, nil
	case p.published:
		// With the slot, because after closeSlot the memory of the arena is freed.
		if p.l.regainSlot() != nil || p.l.arena.Host.Ready(&p.l.short) {
			st, err := p.Wait()
			return st, true, err
		}
		p.l.yieldSlot()
		// Ready does not detect the failure of a rank. A task does.
		if p.tests++; p.tests == publishedTests {
			p.Request()
		}
		p.c.s.job.eng.Poll()
		return Status{}, false, nil
	}
	st, done, err := p.r.Test()
	if done {
		p.active = false
	}
	return st, done, err
}

// Request implements comm.Persistent.Request, which documents the call.
func (p *Persistent) Request() Request {
	switch {
	case p == nil || !p.active:
		return Request{}
	case p.published:
		l := p.l
		r := p.c.s.job.eng.Go(l.finishTask)
		p.r = p.c.withPending(p.use, r).startedRequest(r, opCollective, noRank, noRank, 0)
		p.published, p.use = false, nil
	}
	p.lent = true
	return p.r
}

// ElemSize returns the size of the elements of a receive in bytes, and 0 for other operations.
func (p *Persistent) ElemSize() int {
	if p == nil || p.call != opIrecv {
		return 0
	}
	return p.buf.Type.Size
}

// Free implements comm.Persistent.Free, which documents the call.
func (p *Persistent) Free() error {
	if p == nil || p.c == nil {
		return nil
	}
	if p.active && !p.collected() {
		return p.c.fail("Free of "+p.name, noRank, noRank, fmt.Errorf("%w: the operation is active: wait for it first", ErrArg))
	}
	c, l := p.c, p.l
	*p = Persistent{}
	if l == nil {
		return nil
	}
	l.persistent = false
	l.release()
	c.s.detach()
	err := c.Free()
	if errors.Is(err, ErrRevoked) {
		return nil
	}
	return err
}

// abandon closes the state on this rank without a wait for the other ranks. It is for a
// communicator that some ranks have not made or have revoked, and for the state of partitioned
// messages.
func (s *state) abandon() {
	if !s.closed.CompareAndSwap(false, true) {
		return
	}
	s.shut()
}

// StartAll implements comm.StartAll, which documents the call.
func StartAll(ps []*Persistent) error {
	var first error
	for _, p := range ps {
		if err := p.Start(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
