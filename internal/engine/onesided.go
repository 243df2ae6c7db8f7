package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// One-sided communication
//
// A Port is what package internal/rma builds a window on: the engine's lock,
// the rails with all that they can do, and the messages of one context that
// are no user's.
//
//	        rma                                engine
//	 Post ─────────────────────────► launch ──► endpoint: Send, Read, Write, Atomic
//	                                   │ no room: the peer's control queue, retry
//	 Service.Done ◄────────────────────┴───────── completion
//	 Service.Deliver ◄───────────────────────── MsgWindow
//	 Service.Down, Service.End ◄─────────────── a peer's end; revoked, closed
//
// While a port of several ranks is open, asynchronous progress counts it as a
// request under way: it sleeps on the transports where nobody leads, so that
// this rank answers also while it computes. After a blocking call has ended
// that may take a watchTick; see async.go.

// Service is the protocol at a port. Its methods run under the engine's lock,
// so they must be short, and call nothing of the engine that takes it.
type Service interface {
	// Deliver takes a message of a rank of the group. data is valid until it
	// returns. An error says that no correct peer sends this, and the peer is
	// given up.
	Deliver(source int, w wire.Window, data []byte) error
	// Done says that a transfer that Post began has ended, and what failed.
	// What it points to is the service's again. It comes also after Close.
	Done(t *Transfer, err error)
	// Down says that a rank of the group has ended. Transfers with it that are
	// in flight end by themselves.
	Down(rank int, err error)
	// End says that the port is of no further use: the context is revoked or
	// the engine at its end.
	End(err error)
}

// Port is where the one-sided messages of a context arrive and leave. Where
// methods say so the caller holds the lock; see Lock.
type Port struct {
	e       *Engine
	c       *Context
	service Service
	err     error     // what End was told
	counted bool      // in Engine.active
	closed  bool      // by Close
	pauses  uint      // calls of Pause
	waiters []*waiter // those in Await
	all     []*Transfer
}

// OpenPort opens the context's port; a context has one, and then no messages of
// its own. The caller closes the port before the engine, or leaves it to its end.
func (c *Context) OpenPort(s Service) (*Port, error) {
	return c.OpenPortFor(func(*Port) Service { return s })
}

// OpenPortFor is OpenPort with the service that made returns for the port: it runs
// under the lock, before anything comes to the service.
func (c *Context) OpenPortFor(made func(p *Port) Service) (*Port, error) {
	e := c.e
	e.mu.lock()
	defer e.mu.unlock()
	switch {
	case e.closed:
		return nil, ErrClosed
	case e.fatal != nil:
		return nil, e.fatal
	case e.revoked[c.id/2] != nil:
		return nil, e.revoked[c.id/2]
	case e.ports[c.id] != nil:
		return nil, fmt.Errorf("context %d has a port already", c.id)
	}
	p := &Port{e: e, c: c}
	p.service = made(p)
	e.ports[c.id] = p
	if c.size > 1 {
		p.counted = true
		e.active++
		e.wantProgress(true)
	}
	return p, nil
}

// Close ends the port: nothing is delivered any more, and peers that ask are
// told that it is gone. The caller holds the lock. Transfers in flight still
// come to Service.Done.
func (p *Port) Close() {
	if p.closed {
		return
	}
	e := p.e
	p.closed = true
	delete(e.ports, p.c.id)
	if p.counted {
		e.active--
	}
	for _, t := range p.all {
		if t.r.done {
			t.forget()
		}
	}
	p.all = nil
	p.Tell()
}

// Lock takes the engine's lock. Nobody may keep it for longer than a copy or a
// post takes.
func (p *Port) Lock() { p.e.mu.lock() }

// Unlock gives the lock back.
func (p *Port) Unlock() { p.e.mu.unlock() }

// Breathe lets others have the lock in between.
func (p *Port) Breathe() { p.e.mu.breathe() }

// Rank is this rank in the group, Size the number of its ranks.
func (p *Port) Rank() int { return p.c.rank(int32(p.e.rank)) }

// Size is the number of ranks of the group.
func (p *Port) Size() int { return p.c.size }

// Poll moves the transports on once. The caller holds the lock.
func (p *Port) Poll() { p.e.poll() }

// Await blocks until Tell, and returns the error of ctx, or ErrClosed. The
// caller holds the lock, which is open meanwhile, and looks afterwards whether
// what it waits for has happened.
func (p *Port) Await(ctx context.Context) error {
	e := p.e
	w := e.newWaiter()
	p.waiters = append(p.waiters, w)
	err := e.await(ctx, w)
	for i, x := range p.waiters {
		if x == w {
			p.waiters = append(p.waiters[:i], p.waiters[i+1:]...)
			break
		}
	}
	e.freeWaiter(w)
	return err
}

// Tell ends every Await. The caller holds the lock.
func (p *Port) Tell() {
	for _, w := range p.waiters {
		p.e.tell(w)
	}
}

// Begin returns a request for Complete to complete. The caller holds the lock.
func (p *Port) Begin() Request {
	r := p.e.take(kindOp)
	return Request{r: r, gen: r.gen}
}

// Complete ends a request of Begin's. The caller holds the lock.
func (p *Port) Complete(q Request, err error) {
	if !q.doneLocked() {
		p.e.complete(q.r, err)
	}
}

// Abandon says that nobody will wait for a request of Begin's: it is freed when
// it is complete.
func (q Request) Abandon() {
	if q.r == nil {
		return
	}
	e := q.r.e
	e.mu.lock()
	defer e.mu.unlock()
	switch r := q.r; {
	case r.gen != q.gen:
	case r.done:
		e.release(r)
	default:
		r.abandoned = true
	}
}

// Rails is the number of rails.
func (p *Port) Rails() int { return len(p.e.rails) }

// Rail is the number of the rail that leads to a rank of the group; -1 for this
// rank itself.
func (p *Port) Rail(rank int) int {
	if to := p.e.peers[p.c.world(rank)].rail; to != nil {
		return to.index
	}
	return -1
}

// Attr says what a rail is and can.
func (p *Port) Attr(rail int) transport.Attr { return p.e.rails[rail].attr }

// Memory is memory that a rail knows.
type Memory struct {
	Region transport.MemoryRegion
	Key    uint64
	Base   uint64 // what peers name the first byte by
	span   *Span
	served bool // counted in Engine.exposed
}

// Register registers memory with a rail, or finds where it was: memory of
// Alloc is not given back before Deregister. The caller holds the lock.
func (p *Port) Register(rail int, buf []byte, access transport.Access) (Memory, error) {
	e := p.e
	if e.closed || e.fatal != nil {
		return Memory{}, ErrClosed
	}
	served := access&transport.RemoteWrite != 0 && e.rails[rail].attr.Progress == transport.ProgressManual
	m := Memory{served: served}
	if s := e.span(buf); s != nil && s.regions[rail] != nil {
		s.holds++
		mr := s.regions[rail]
		m = Memory{mr, mr.Key(), mr.Base() + uint64(address(buf)-s.start), s, served}
	} else {
		mr, err := e.rails[rail].Domain.RegisterMemory(buf, access)
		if err != nil {
			return Memory{}, fmt.Errorf("register %d bytes: %w", len(buf), err)
		}
		m.Region, m.Key, m.Base = mr, mr.Key(), mr.Base()
	}
	if served {
		e.exposed++
		e.rouse()
	}
	return m, nil
}

// Deregister ends what Register began; the zero Memory is none. Where the
// engine is being closed its transports do it. The caller holds the lock.
func (p *Port) Deregister(m Memory) error {
	if m.served {
		p.e.exposed--
	}
	if m.span != nil {
		m.span.holds--
		return nil
	}
	if m.Region == nil || p.e.closed { // Shutdown has the transport to itself
		return nil
	}
	return m.Region.Close()
}

// Hold keeps the span that buf lies in from being given back until Drop; nil:
// it lies in none. The caller holds the lock.
func (p *Port) Hold(buf []byte) *Span {
	s := p.e.span(buf)
	if s != nil {
		s.holds++
	}
	return s
}

// Drop ends a Hold; s may be nil. The caller holds the lock.
func (p *Port) Drop(s *Span) {
	if s != nil {
		s.holds--
	}
}

// AtomicValid asks a rail; see transport.AtomicEndpoint. The caller holds the
// lock.
func (p *Port) AtomicValid(rail int, op *transport.Op) (int, bool) {
	if a := p.e.rails[rail].atomic; a != nil {
		return a.AtomicValid(op)
	}
	return 0, false
}

// TransferKind says what a Transfer is.
type TransferKind uint8

// The kinds.
const (
	TransferMessage TransferKind = iota // of Say
	TransferRead                        // Op.Data, Region, RemoteKey, RemoteAddr
	TransferWrite                       // the same
	TransferAtomic                      // the same, Fetch, Compare, Atomic, Datatype
)

// Transfer is an operation of a rail, to be posted again and again. Between
// Post and its end it is the engine's with all that Op points to.
type Transfer struct {
	Op   *transport.Op // for the service to fill; Peer, Header and User are the engine's
	User any           // the service's

	kind TransferKind
	rail *rail
	port *Port
	r    *request
}

// NewTransfer makes a transfer, which is the port's for good. The caller holds
// the lock.
func (p *Port) NewTransfer() *Transfer {
	t := &Transfer{port: p, r: p.e.take(kindTransfer)}
	t.Op = &t.r.op
	t.r.transfer = t
	t.r.done = true // not under way
	p.all = append(p.all, t)
	return t
}

// Say makes t a message.
func (t *Transfer) Say(w wire.Window, data []byte) {
	t.r.header = w.Message(t.port.c.id, len(data))
	t.Op.Data = data
}

// Post begins a transfer with a rank. Either it is done when Post returns, or
// Service.Done says later how it ended; an error means that nothing was begun.
// Messages to one rank leave in the order of their posts. rail is looked at for
// transfers with this rank itself, which messages cannot be. The caller holds
// the lock.
//
// Hot path: no allocation, no system call but the endpoint's.
func (p *Port) Post(t *Transfer, kind TransferKind, rank, rail int) (done bool, err error) {
	e, r := p.e, t.r
	r.peer = p.c.world(rank)
	to := &e.peers[r.peer]
	switch {
	case e.closed:
		return false, ErrClosed
	case e.fatal != nil:
		return false, e.fatal
	case to.err != nil:
		return false, to.err
	}
	t.kind = kind
	if t.rail = to.rail; t.rail == nil {
		t.rail = &e.rails[rail]
	}
	if to.control.head == nil {
		done, err = e.launch(t)
		switch {
		case err == nil && done:
			return true, nil
		case err == nil:
			r.done = false
			e.posting(r)
			return false, nil
		case !errors.Is(err, transport.ErrAgain):
			return false, e.peerError(r.peer, err)
		}
		to.hold(err)
	}
	r.done, r.phase = false, phaseQueued
	to.control.push(r)
	e.stall(r.peer)
	return false, nil
}

// launch gives a transfer to its endpoint.
func (e *Engine) launch(t *Transfer) (done bool, err error) {
	r := t.r
	r.op.Peer = transport.Addr(r.peer)
	r.op.HeaderLen = 0
	switch t.kind {
	case TransferRead:
		err = t.rail.rma.Read(&r.op)
	case TransferWrite:
		err = t.rail.rma.Write(&r.op)
	case TransferAtomic:
		err = t.rail.atomic.Atomic(&r.op)
	default:
		p := &e.peers[r.peer]
		m := &r.header
		m.Seq, m.Credit = p.sendSeq+1, uint32(p.owed)
		r.op.HeaderLen = m.Put(r.op.Header[:])
		if done, err = t.rail.Endpoint.Send(&r.op); err == nil {
			p.sendSeq++
			p.owed = 0
		}
	}
	if err == nil {
		r.phase = phaseSent
	}
	return done, err
}

// railOf is the rail that has a request which is in flight.
func (e *Engine) railOf(r *request) *rail {
	if r.kind == kindTransfer { // to this rank itself by any
		return r.transfer.rail
	}
	return e.peers[r.peer].rail
}

// relaunch gives a transfer that was queued to its endpoint; false: there is
// still no room.
func (e *Engine) relaunch(r *request) bool {
	done, err := e.launch(r.transfer)
	switch {
	case errors.Is(err, transport.ErrAgain):
		e.peers[r.peer].hold(err)
		return false
	case err != nil:
		e.transferDone(r, e.peerError(r.peer, err))
	case done:
		e.transferDone(r, nil)
	default:
		e.posting(r)
	}
	return true
}

// transferDone ends a transfer.
func (e *Engine) transferDone(r *request, err error) {
	t := r.transfer
	r.done, r.phase = true, phaseIdle
	e.moved(r)
	t.port.service.Done(t, err)
	if t.port.closed && r.done {
		t.forget()
	}
	e.tellWatchers()
}

// forget gives a transfer's slot back.
func (t *Transfer) forget() {
	t.Op.Fetch, t.Op.Compare = nil, nil
	t.port.e.release(t.r)
}

// deliver takes a MsgWindow.
//
// Hot path: no allocation, no system call.
func (e *Engine) deliver(source int32, m *wire.Message, data []byte) error {
	var w wire.Window
	if err := w.Parse(m); err != nil {
		return err
	}
	p := e.ports[m.Context]
	if p == nil || p.err != nil {
		return e.gone(source, m, w)
	}
	if !p.c.has(source) {
		return errMember
	}
	return p.service.Deliver(p.c.rank(source), w, data)
}

// goneMax is how many answers of MsgWindow for windows that are not there may
// wait for a peer; a correct one has fewer questions open.
const goneMax = 4096

var errGone = errors.New("questions for windows that are not there without end")

// gone answers a message for a window that was closed or revoked here before
// its sender knew.
func (e *Engine) gone(source int32, m *wire.Message, w wire.Window) error {
	if w.Kind.Answer() {
		return nil
	}
	n := 0
	for r := e.peers[source].control.head; r != nil; r = r.next {
		if n++; n > goneMax {
			return errGone
		}
	}
	answer := wire.Window{Kind: wire.WinGone, Flag: e.revoked[m.Context/2] != nil}
	e.sendControl(source, answer.Message(m.Context, 0), nil)
	return nil
}

// endPorts ends the ports that which picks.
func (e *Engine) endPorts(which func(*Port) bool, err error) {
	for _, p := range e.ports {
		if p.err == nil && which(p) {
			p.err = err
			p.service.End(err)
			p.Tell()
		}
	}
}

// portsLose tells every port whose group has it that a peer has ended.
func (e *Engine) portsLose(peer int32) {
	for _, p := range e.ports {
		if p.err == nil && p.c.has(peer) {
			p.service.Down(p.c.rank(peer), e.peers[peer].err)
			p.Tell()
		}
	}
}
