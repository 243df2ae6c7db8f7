package mpi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/internal/coll"
	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/mpi/bufcheck"
	"github.com/weft-hpc/weft/internal/mpi/calls"
)

// Persistent is the type behind comm.Persistent: an operation whose arguments are fixed, and which the
// program starts many times (MPI 4.1 §3.9, §6.13). One goroutine at a time uses it.
//
//	SendInit, … ─► inactive ── Start ─► active ── Wait, Test ─► inactive ── Free
//
// A collective has a communicator of its own, which Init makes as Dup does. So the operations of a
// communicator may start in any order, which may differ between ranks, and each keeps its link, its
// scratch memory and its arena. A start has one of two forms:
//
//	published   Start writes this rank's part to the arena, and Wait reads the parts of the others, on
//	            the caller's goroutine. The other ranks need nothing more of this rank. Only for short
//	            calls in shared memory; see coll/host_short.go.
//	task        Start gives the collective to another goroutine, as a nonblocking collective does.
type Persistent struct {
	c    *Comm    // the communicator of the messages; for a collective, the operation's own one
	call callName // of a message: the call that Start makes; opCollective
	name string   // of the call that made p, such as "SendInit"

	// Of a message.
	buf       elem.Buffer
	peer, tag int

	l       *link  // of a collective; nil: the operation is a message
	version uint32 // Engine.StateVersion when the collective last started

	active    bool
	published bool                // the collective is active, and was published
	tests     int                 // number of Tests since the collective was published
	use       *bufcheck.Operation // the checker's record of the active, published collective
	r         Request             // the active operation, if it is not published
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

// persist makes a persistent collective: prepare, which calls a function such as Comm.bcast, starts the
// collective on the communicator that it gets.
func (c *Comm) persist(name string, prepare func(c *Comm) (*link, error)) (*Persistent, error) {
	own, err := c.dup(name)
	if err != nil {
		return nil, err
	}
	own.s.of = c.s
	own.s.attach(c.s)
	l, err := prepare(own)
	if err != nil {
		// The other ranks learn of the error by the revocation of own, when they start the operation.
		own.s.abandon()
		return nil, err
	}
	l.leave()
	l.short = coll.ShortCall{What: l.what, Send: l.send, Recv: l.recv, Op: l.op, Root: l.root, Config: l.s.job.coll}
	l.sendViews, l.recvViews = slices.Clone(l.sendViews), slices.Clone(l.recvViews)
	l.finishTask = l.finishPublished
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
	p.active = true
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

// collected reports whether the program has already got the result of the active operation by a
// request of Request.
func (p *Persistent) collected() bool { return !p.published && p.r.collected() }

// collected reports whether the program can learn nothing more from the request.
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
	l.again()
	if p.published = l.publish(); p.published {
		p.use, p.tests = use, 0
		return nil
	}
	r := s.job.eng.Go(l.task)
	p.r = p.c.withPending(use, r).startedRequest(r, opCollective, noRank, noRank, 0)
	return nil
}

// publishedTests is the number of Tests of a published collective after which a task continues it.
const publishedTests = 100

// again prepares the link of a persistent collective for its next round.
func (l *link) again() {
	if l.rounds++; l.rounds > 1 { // begin has numbered the first one
		l.env.Tag = int(l.s.seq.Add(1) & seqMask)
		l.unrecorded = true
	}
	if l.hood == nil {
		l.regainSlot()
		l.requestArena(l.count)
		l.pack()
	}
}

// publish starts a round in shared memory, if it needs no wait for another rank. Otherwise it returns
// false and has done nothing.
func (l *link) publish() bool {
	s := l.s
	if !l.shared || !l.hasSlot || l.opID == calls.OpOfProgram || s.stateVersion != s.job.eng.StateVersion() {
		return false
	}
	a := s.arena.Load()
	l.arena = a
	l.acquire()
	published, err := a.Host.Publish(l, &l.short)
	if published = published && err == nil; published {
		l.yieldSlot()
	}
	return published
}

// rewind ends a round of a persistent collective. It keeps the memory that the plan uses.
func (l *link) rewind() {
	if l.unrecorded {
		l.recordCall()
	}
	l.leave()
	l.used = l.usedByPlan
	for _, b := range l.large[l.largeByPlan:] {
		giveLarge(b)
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

// yieldSlot gives up the slot, if l holds it. Between two rounds, and while a round is published, a
// persistent collective does not hold the slot, so that closeSlot need not wait for the program.
func (l *link) yieldSlot() {
	if !l.hasSlot {
		return
	}
	l.hasSlot = false
	a := l.arena
	wake := a != nil && a.Host.TakePendingWake()
	l.s.releaseSlot(l) // its store is the full barrier before the wake
	if wake {
		l.s.wake(a)
	}
}

// regainSlot acquires the slot, which only closeSlot can have acquired meanwhile. It reports whether l
// holds the slot.
func (l *link) regainSlot() bool {
	if x := l.s.tryAcquireSlot(); x != nil {
		if x != l { // the link that dropSlot has stored
			l.s.linkMu.Lock()
			l.s.links = append(l.s.links, x)
			l.s.linkMu.Unlock()
		}
		l.hasSlot = true
	}
	return l.hasSlot
}

// finishPublished completes a round that publish has started.
func (l *link) finishPublished() error {
	l.acquire()
	if !l.regainSlot() {
		return l.end(ErrClosed)
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
	p.active = !p.collected() // if the context of the wait has ended, the operation goes on
	return st, err
}

// Test implements comm.Persistent.Test, which documents the call.
func (p *Persistent) Test() (Status, bool, error) {
	switch {
	case p == nil || !p.active:
		return Status{}, true, nil
	case p.published:
		if p.l.arena.Host.Ready(&p.l.short) {
			st, err := p.Wait()
			return st, true, err
		}
		// A task also learns of the failure of a rank.
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

// abandon ends the use of a communicator that some ranks have not made or have revoked, without a wait
// for the other ranks.
func (s *state) abandon() {
	if !s.closed.CompareAndSwap(false, true) {
		return
	}
	s.job.stall.remove(s)
	s.p2p.Close()
	s.coll.Close()
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
