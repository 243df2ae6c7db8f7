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
// Package internal/rma builds windows on a Port: the engine's lock, the rails with all their
// capabilities, and the messages of one context that carries no messages of the program.
//
//	        rma                                engine
//	 Post ─────────────────────────► launch ──► endpoint: Send, Read, Write, Atomic
//	                                   │ no room: the peer's control queue, retry
//	 Service.Done ◄────────────────────┴───────── completion
//	 Service.Deliver ◄───────────────────────── MsgWindow
//	 Service.Down, Service.End ◄─────────────── the end of a peer; revoked, closed
//
// While a port of several ranks is open, asynchronous progress counts it as a request under way:
// if no goroutine leads, the background goroutine sleeps on the transports, so this rank answers
// other ranks also while its program computes. After the end of a blocking call that may take a
// tick; see background.go.

// Service is the protocol that a port carries. Its methods run under the engine's lock, so they
// must be short, and must not call functions of the engine that take the lock.
type Service interface {
	// Deliver handles a message from a rank of the group. data is valid until Deliver returns. An
	// error means that no correct peer sends this message; the engine then marks the peer as
	// failed.
	Deliver(source int, w wire.Window, data []byte) error
	// Done handles the end of a transfer of Post, with its error. The service again owns the
	// memory that the transfer refers to. Done may also be called after Port.Close.
	Done(t *Transfer, err error)
	// Down handles the end of a rank of the group. Transfers with the rank that are in flight end
	// by themselves.
	Down(rank int, err error)
	// End reports that the port can no longer be used: the context is revoked, or the engine is
	// closed or has failed.
	End(err error)
}

// Port sends and receives the one-sided messages of a context. If a method's comment says that
// the caller holds the lock, the caller has called Lock.
type Port struct {
	e          *Engine
	c          *Context
	service    Service
	err        error     // the argument of Service.End; nil: End was not called
	counted    bool      // counted in Engine.active
	closed     bool      // Close was called
	longWait   bool      // the last call of QueryPeers has found a goroutine in Await
	pauseCalls uint      // number of calls of Pause
	waiters    []*waiter // the goroutines in Await
	all        []*Transfer
}

// OpenPort opens the context's port. A context has at most one port, and if it has one, no other
// messages. The caller closes the port before the engine, or leaves that to the end of the
// engine. OpenPort calls made under the lock. made returns the service, which gets no calls
// before that.
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
		e.ensureRequestProgress(true)
	}
	return p, nil
}

// Close closes the port. The port delivers no more messages, and the engine answers peers that
// the port is gone. Service.Done still reports the end of transfers in flight. The caller holds
// the lock.
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

// Lock takes the engine's lock. The caller must not hold it for longer than a copy or a post
// takes.
func (p *Port) Lock() { p.e.mu.Lock() }

// Unlock releases the lock.
func (p *Port) Unlock() { p.e.mu.Unlock() }

// YieldLock lets other goroutines that wait for the lock take it. The caller holds the lock
// before and after.
func (p *Port) YieldLock() { p.e.mu.yield() }

// Rank returns this rank's number in the group.
func (p *Port) Rank() int { return p.c.rank(int32(p.e.rank)) }

// Size returns the number of ranks of the group.
func (p *Port) Size() int { return p.c.size }

// Poll polls the transports once. The caller holds the lock, which Poll may release meanwhile.
func (p *Port) Poll() { p.e.poll() }

// Await blocks until WakeAwait is called. It returns the error of ctx, or ErrClosed if the engine
// closes. The caller holds the lock, which Await releases meanwhile, and checks afterwards
// whether its event has happened.
func (p *Port) Await(ctx context.Context) error {
	return p.e.awaitIn(ctx, &p.waiters, awaited{})
}

// WakeAwait ends every Await of the port. The caller holds the lock.
func (p *Port) WakeAwait() { p.e.wakeAll(p.waiters) }

// Begin returns a request that Complete ends. The caller holds the lock.
func (p *Port) Begin() Request {
	r := p.e.take(kindOp)
	return p.e.name(r)
}

// Complete ends a request of Begin. The caller holds the lock.
func (p *Port) Complete(q Request, err error) {
	if !q.doneLocked() {
		p.e.complete(q.r, err)
	}
}

// Abandon says that no goroutine will wait for a request of Begin: the engine frees the request
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

// Rails returns the number of rails.
func (p *Port) Rails() int { return len(p.e.rails) }

// Rail returns the index of the rail that leads to a rank of the group; -1 for this rank itself.
func (p *Port) Rail(rank int) int {
	if to := p.e.peers[p.c.world(rank)].rail; to != nil {
		return to.index
	}
	return -1
}

// Attr returns the attributes of a rail's transport.
func (p *Port) Attr(rail int) transport.Attr { return p.e.rails[rail].attr }

// Memory is memory that is registered with a rail.
type Memory struct {
	Region transport.MemoryRegion
	Key    uint64
	Base   uint64 // address that peers use for the first byte
	span   *Span
	served bool // counted in Engine.exposed
}

// Register registers memory with a rail. If the memory is from Alloc, Register returns its
// region, and Reap does not free the memory before Deregister. The caller holds the lock.
func (p *Port) Register(rail int, buf []byte, access transport.Access) (Memory, error) {
	e := p.e
	if err := e.closedErr(); err != nil {
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
		e.wakeSleeper()
	}
	return Memory{mr, mr.Key(), remoteAddr(mr, s, buf), s, served}, nil
}

// Deregister undoes Register; for the zero Memory it does nothing. If the engine is being closed,
// closing the transports deregisters the memory instead. The caller holds the lock.
func (p *Port) Deregister(m Memory) error {
	if m.served {
		p.e.exposed--
	}
	if m.span != nil {
		m.span.holds--
		return nil
	}
	if m.Region == nil || p.e.closed { // nothing else may use the transports during Shutdown
		return nil
	}
	return m.Region.Close()
}

// Hold prevents Reap from freeing the span that contains buf, until Drop. It returns the span, or
// nil if no span contains buf. The caller holds the lock.
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

// AtomicValid returns the result of the rail's AtomicValid; see transport.AtomicEndpoint. The
// caller holds the lock.
func (p *Port) AtomicValid(rail int, op *transport.Op) (int, bool) {
	if a := p.e.rails[rail].atomic; a != nil {
		return a.AtomicValid(op)
	}
	return 0, false
}

// TransferKind is the kind of a Transfer.
type TransferKind uint8

// The kinds.
const (
	TransferMessage TransferKind = iota // a message, see SetMessage
	TransferRead                        // uses Op.Data, Region, RemoteKey, RemoteAddr
	TransferWrite                       // the same
	TransferAtomic                      // the same, and Fetch, Compare, Atomic, Datatype
)

// Transfer is an operation of a rail. It can be posted several times. Between Post and its end,
// the engine owns it with all memory that Op refers to.
type Transfer struct {
	Op   *transport.Op // filled by the service, except Peer, Header and User, which the engine fills
	User any           // for use by the service

	kind TransferKind
	rail *rail
	port *Port
	r    *request
}

// NewTransfer returns a transfer, which exists as long as the port. The caller holds the lock.
func (p *Port) NewTransfer() *Transfer {
	t := &Transfer{port: p, r: p.e.take(kindTransfer)}
	t.Op = &t.r.op
	t.r.transfer = t
	t.r.done = true // not under way
	p.all = append(p.all, t)
	return t
}

// SetMessage sets the message that t sends as a TransferMessage.
func (t *Transfer) SetMessage(w wire.Window, data []byte) {
	t.r.header = w.Message(t.port.c.id, len(data))
	t.Op.Data = data
}

// Post starts a transfer with a rank. Either the transfer is done when Post returns, or
// Service.Done gets its outcome later. If Post returns an error, the transfer has not started.
// Messages to one rank leave in the order of their posts. Post uses rail only for transfers with
// this rank itself, which cannot be messages. The caller holds the lock.
//
// Hot path: no allocation, no system call except the endpoint's.
func (p *Port) Post(t *Transfer, kind TransferKind, rank, rail int) (done bool, err error) {
	e, r := p.e, t.r
	r.peer = p.c.world(rank)
	to := &e.peers[r.peer]
	if err = e.closedErr(); err == nil {
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
			e.markInflight(r)
			return false, nil
		case !errors.Is(err, transport.ErrAgain):
			return false, e.peerError(r.peer, err)
		}
		to.noteNoRoom(err)
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
	e.stopMoving(r)
	t.port.service.Done(t, err)
	if t.port.closed && r.done {
		t.forget()
	}
	e.wakeAll(e.completionWaiters)
}

// forget frees a transfer's slot.
func (t *Transfer) forget() {
	t.Op.Fetch, t.Op.Compare = nil, nil
	t.port.e.release(t.r)
}

// deliverWindow handles a MsgWindow.
//
// Hot path: no allocation, no system call.
func (e *Engine) deliverWindow(source int32, m *wire.Message, data []byte) error {
	var w wire.Window
	if err := w.Parse(m); err != nil {
		return err
	}
	p := e.ports[m.Context]
	if p == nil || p.err != nil {
		return e.answerGone(source, m, w)
	}
	if !p.c.has(source) {
		return errMember
	}
	return p.service.Deliver(p.c.rank(source), w, data)
}

// goneMax is the maximum number of queued messages to a peer at which the engine still answers
// the peer's messages for windows that do not exist here. A correct peer has fewer requests open.
const goneMax = 4096

var errGone = errors.New("too many requests for windows that do not exist")

// answerGone answers a message for a window that was closed or revoked here before the sender of
// the message knew that.
func (e *Engine) answerGone(source int32, m *wire.Message, w wire.Window) error {
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

// endPorts ends the ports for which which returns true.
func (e *Engine) endPorts(which func(*Port) bool, err error) {
	for _, p := range e.ports {
		if p.err == nil && which(p) {
			p.err = err
			p.service.End(err)
			p.WakeAwait()
		}
	}
}

// portsDown reports the end of a peer to every port whose group contains the peer.
func (e *Engine) portsDown(peer int32) {
	for _, p := range e.ports {
		if p.err == nil && p.c.has(peer) {
			p.service.Down(p.c.rank(peer), e.peers[peer].err)
			p.WakeAwait()
		}
	}
}
