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
// that may take a tick; see background.go.

// Service is the protocol at a port. Its methods run under the engine's lock,
// so they must be short, and call nothing of the engine that takes it.
type Service interface {
	// Deliver takes a message of a rank of the group. data is valid until it
	// returns. An error says that no correct peer sends this, and the peer is
	// given up.
	Deliver(source int, w wire.Window, data []byte) error
	// Done is called when a transfer that Post began has ended, with its error.
	// What the transfer points to is the service's again. Done comes also after Close.
	Done(t *Transfer, err error)
	// Down says that a rank of the group has ended. Transfers with it that are
	// in flight end by themselves.
	Down(rank int, err error)
	// End is called when the port cannot be used any more: the context is revoked,
	// or the engine is closed or has failed.
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
	waited  bool      // the last QueryPeers has found a goroutine in Await
	pauses  uint      // calls of Pause
	waiters []*waiter // those in Await
	all     []*Transfer
}

// OpenPort opens the context's port. A context has one port, and then no messages of
// its own. The caller closes the port before the engine, or leaves it to the engine's
// end. OpenPort calls made under the lock; made returns the service, which gets
// nothing before that.
func (c *Context) OpenPort(made func(p *Port) Service) (*Port, error) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := c.unusable(); err != nil {
		return nil, err
	}
	if e.ports[c.id] != nil {
		return nil, fmt.Errorf("context %d has a port already", c.id)
	}
	p := &Port{e: e, c: c}
	p.service = made(p)
	e.ports[c.id] = p
	if c.size > 1 {
		p.counted = true
		e.active++
		e.attendRequest(true)
	}
	return p, nil
}

// Close ends the port: it delivers nothing any more, and the engine answers peers
// that the port is gone. Transfers in flight still come to Service.Done. The caller
// holds the lock.
func (p *Port) Close() {
	if p.closed {
		return
	}
	e := p.e
	p.closed = true
	delete(e.ports, p.c.id)
	p.StopProgress()
	for _, t := range p.all {
		if t.r.done {
			t.forget()
		}
	}
	p.all = nil
	p.WakeAwait()
}

// Lock takes the engine's lock. The caller must not keep it for longer than a copy or
// a post takes.
func (p *Port) Lock() { p.e.mu.Lock() }

// Unlock releases the lock.
func (p *Port) Unlock() { p.e.mu.Unlock() }

// YieldLock lets others have the lock in between.
func (p *Port) YieldLock() { p.e.mu.breathe() }

// Rank is this rank in the group, Size the number of its ranks.
func (p *Port) Rank() int { return p.c.rank(int32(p.e.rank)) }

// Size is the number of ranks of the group.
func (p *Port) Size() int { return p.c.size }

// Poll moves the transports on once. The caller holds the lock, which may be open
// meanwhile.
func (p *Port) Poll() { p.e.poll() }

// Await blocks until WakeAwait, and returns the error of ctx, or ErrClosed. The caller
// holds the lock, which Await releases meanwhile, and checks afterwards whether what
// it waits for has happened.
func (p *Port) Await(ctx context.Context) error {
	return p.e.awaitIn(ctx, &p.waiters, awaited{})
}

// WakeAwait ends every Await. The caller holds the lock.
func (p *Port) WakeAwait() { p.e.tellAll(p.waiters) }

// Begin returns a request for Complete to complete. The caller holds the lock.
func (p *Port) Begin() Request {
	r := p.e.take(kindOp)
	return p.e.name(r)
}

// Complete ends a request of Begin's. The caller holds the lock.
func (p *Port) Complete(q Request, err error) {
	if !q.doneLocked() {
		p.e.complete(q.r, err)
	}
}

// Abandon says that no goroutine will wait for a request of Begin: the engine frees it
// when it is complete.
func (q Request) Abandon() {
	if q.r == nil {
		return
	}
	e := q.r.e
	e.mu.Lock()
	defer e.mu.Unlock()
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

// Register registers memory with a rail, or finds the region of memory of Alloc, which
// Reap then keeps until Deregister. The caller holds the lock.
func (p *Port) Register(rail int, buf []byte, access transport.Access) (Memory, error) {
	e := p.e
	if err := e.over(); err != nil {
		return Memory{}, err
	}
	served := access&transport.RemoteWrite != 0 && e.rails[rail].attr.Progress == transport.ProgressManual
	mr, s, err := e.region(&e.rails[rail], buf, access)
	if err != nil {
		return Memory{}, err
	}
	if s != nil {
		s.holds++
	}
	if served {
		e.exposed++
		e.rouse()
	}
	return Memory{mr, mr.Key(), remoteAddr(mr, s, buf), s, served}, nil
}

// Deregister undoes Register; for the zero Memory it does nothing. If the engine is
// being closed, its transports do it instead. The caller holds the lock.
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
	TransferMessage TransferKind = iota // of SetMessage
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

// SetMessage makes t a message.
func (t *Transfer) SetMessage(w wire.Window, data []byte) {
	t.r.header = w.Message(t.port.c.id, len(data))
	t.Op.Data = data
}

// Post begins a transfer with a rank. Either it is done when Post returns, or
// Service.Done gets its outcome later; an error means that nothing was begun.
// Messages to one rank leave in the order of their posts. Post uses rail only for
// transfers with this rank itself, which cannot be messages. The caller holds the
// lock.
//
// Hot path: no allocation, no system call but the endpoint's.
func (p *Port) Post(t *Transfer, kind TransferKind, rank, rail int) (done bool, err error) {
	e, r := p.e, t.r
	r.peer = p.c.world(rank)
	to := &e.peers[r.peer]
	if err = e.over(); err == nil {
		err = to.err
	}
	if err != nil {
		return false, err
	}
	t.kind = kind
	if t.rail = to.rail; t.rail == nil {
		t.rail = &e.rails[rail]
	}
	if to.control.head == nil {
		done, err = e.launch(r)
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
	r.done = false
	e.enqueue(&to.control, r)
	return false, nil
}

// launchTransfer gives a transfer to its endpoint.
func (e *Engine) launchTransfer(t *Transfer) (done bool, err error) {
	r := t.r
	r.op.Peer = transport.Addr(r.peer)
	r.op.HeaderLen = 0
	switch t.kind {
	case TransferRead:
		return false, t.rail.rma.Read(&r.op)
	case TransferWrite:
		return false, t.rail.rma.Write(&r.op)
	case TransferAtomic:
		return false, t.rail.atomic.Atomic(&r.op)
	case TransferMessage:
	}
	return e.message(r)
}

// railOf returns the rail of a request that is in flight.
func (e *Engine) railOf(r *request) *rail {
	if r.kind == kindTransfer { // one to this rank itself may use any rail
		return r.transfer.rail
	}
	return e.peers[r.peer].rail
}

// transferDone ends a transfer.
func (e *Engine) transferDone(r *request, err error) {
	t := r.transfer
	r.done = true
	e.moved(r)
	t.port.service.Done(t, err)
	if t.port.closed && r.done {
		t.forget()
	}
	e.tellAll(e.watchers)
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

// goneMax bounds the answers about windows that do not exist here that wait to leave
// for a peer; a correct peer has fewer requests open.
const goneMax = 4096

var errGone = errors.New("too many requests for windows that do not exist")

// gone answers a message for a window that was closed or revoked here before
// its sender knew.
func (e *Engine) gone(source int32, m *wire.Message, w wire.Window) error {
	if w.Kind.Answer() {
		return nil
	}
	n := 0
	for q := e.peers[source].control.head; q != nil; q = q.next {
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
			p.WakeAwait()
		}
	}
}

// portsLose tells every port whose group contains a peer that the peer has ended.
func (e *Engine) portsLose(peer int32) {
	for _, p := range e.ports {
		if p.err == nil && p.c.has(peer) {
			p.service.Down(p.c.rank(peer), e.peers[peer].err)
			p.WakeAwait()
		}
	}
}
