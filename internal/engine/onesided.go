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
// Package internal/rma builds windows on a [Port]: it uses the engine's lock, the rails with all
// their capabilities, and the messages of one context that carries no messages of the program.
//
//	        rma                                engine
//	 Post ─────────────────────────► launch ──► endpoint: Send, Read, Write, Atomic
//	                                   │ no room: the peer's control queue, retry
//	 Service.Done ◄────────────────────┴───────── completion
//	 Service.Deliver ◄───────────────────────── MsgWindow
//	 Service.Down, Service.End ◄─────────────── the end of a peer; revoked, closed
//
// While a port of several ranks is open, until StopProgress, asynchronous progress counts the port
// as a request under way: if no other goroutine polls, the background goroutine sleeps on the
// transports and handles what arrives. So this rank answers other ranks also while its program
// computes. After a blocking call returns, the background goroutine may need a tick until it polls;
// see background.go.

// Service is the protocol that a Port carries; package internal/rma implements it. The engine calls
// its methods under the engine's lock, so they must be short, and must not call functions of the
// engine that take the lock.
type Service interface {
	// Deliver handles a message from source, a rank of the group. w is the header, and data is valid
	// until Deliver returns. Deliver returns an error only for a message that no correct peer sends.
	// The engine then marks the peer as failed.
	Deliver(source int, w wire.Window, data []byte) error
	// Done handles the end of a transfer that Post has started; err is the transfer's error. From
	// then on the service owns the memory that the transfer refers to. The engine may also call
	// Done after Port.Close.
	Done(t *Transfer, err error)
	// Down handles the end of a rank of the group, with the error of later operations with the
	// rank. The engine itself ends the transfers with the rank that are queued or in flight, and
	// calls Done for each.
	Down(rank int, err error)
	// End handles the end of the port: the context is revoked, or the engine is closed or has
	// failed. The engine calls it at most once.
	End(err error)
}

// Port sends and receives the one-sided messages of a context. If the comment of a method says that
// the caller holds the lock, the caller has called Port.Lock.
type Port struct {
	e          *Engine
	c          *Context // context whose group the port serves
	service    Service
	err        error       // argument with which End was called; nil: End was not called
	counted    bool        // Engine.active counts the port, so asynchronous progress serves it
	closed     bool        // Close was called
	longWait   bool        // the last call of QueryPeers has found a goroutine in Await of this port
	pauseCalls uint        // number of calls of Pause that polled
	waiters    []*waiter   // waiters of the goroutines in Await
	all        []*Transfer // transfers that NewTransfer has returned
}

// OpenPort opens the port of the context. A context has at most one port, and a context with a port
// carries no other messages. The caller closes the port before it closes the engine. If it does
// not, the service gets End. OpenPort calls the function made under the lock. That function returns
// the service of the port, whose methods the engine does not call before the function has returned.
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

// Close closes the port. The service gets no more messages. If a peer sends a request for the port,
// the engine answers that the port does not exist. Service.Done still reports the end of transfers
// in flight. Goroutines in Await return. The caller holds the lock.
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

// Lock takes the engine's lock. The caller must not hold the lock for longer than it takes to copy
// data or to post an operation.
func (p *Port) Lock() { p.e.mu.Lock() }

// Unlock releases the engine's lock.
func (p *Port) Unlock() { p.e.mu.Unlock() }

// YieldLock lets other goroutines that wait for the lock take it. The caller holds the lock before
// and after the call.
func (p *Port) YieldLock() { p.e.mu.yield() }

// Rank returns the rank of this process in the group.
func (p *Port) Rank() int { return p.c.rank(int32(p.e.rank)) }

// Size returns the number of ranks of the group.
func (p *Port) Size() int { return p.c.size }

// Poll polls the transports once, unless another goroutine leads or the engine is closed. The
// caller holds the lock before and after the call; Poll may release the lock meanwhile.
func (p *Port) Poll() { p.e.poll() }

// Await blocks until WakeAwait is called, a rank of the group ends, or the port ends (Service.End
// or Close). It returns an error if ctx ends or the engine closes first. The caller holds the lock
// before and after the call; Await releases it while it blocks. After each return the caller checks
// whether the event that it waits for has happened.
func (p *Port) Await(ctx context.Context) error {
	return p.e.awaitIn(ctx, &p.waiters, awaited{})
}

// WakeAwait makes the calls of Await of this port that block now return. The caller holds the lock.
func (p *Port) WakeAwait() { p.e.wakeAll(p.waiters) }

// Begin returns a new request, which Complete ends. The caller holds the lock.
func (p *Port) Begin() Request {
	r := p.e.take(kindOp)
	return p.e.name(r)
}

// Complete ends a request of Begin with the error err, which may be nil. The caller holds the lock.
func (p *Port) Complete(q Request, err error) {
	if !q.doneLocked() {
		p.e.complete(q.r, err)
	}
}

// Abandon records that no goroutine will wait for the request, so the engine frees the request when
// it is complete. If the request is complete, Abandon frees it.
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

// Rails returns the number of rails: transports that the engine uses.
func (p *Port) Rails() int { return len(p.e.rails) }

// Rail returns the index of the rail that carries messages to a rank of the group. It returns -1
// for this rank itself.
func (p *Port) Rail(rank int) int {
	if to := p.e.peers[p.c.world(rank)].rail; to != nil {
		return to.index
	}
	return -1
}

// Attr returns the attributes of the transport of a rail.
func (p *Port) Attr(rail int) transport.Attr { return p.e.rails[rail].attr }

// Reaches reports whether this rank can read and write by RMA the memory that another rank of the
// group has registered under a key. The caller holds the lock.
func (p *Port) Reaches(rank int, key uint64) bool {
	to := p.c.world(rank)
	return p.e.peers[to].rail.reaches(to, key)
}

// Memory is the result of Register: memory that is registered with a rail.
type Memory struct {
	Region transport.MemoryRegion // region of the memory, or of the span that contains it
	Key    uint64                 // key by which peers access the memory
	Base   uint64                 // address by which peers access the first byte
	// Span that contains the memory, and that owns Region; nil: Deregister closes Region.
	span *Span
	// RMA writes of peers to the memory advance only while this rank polls; Engine.exposed counts such
	// memory.
	served bool
	closes regionCloser // what closes Region
}

// regionCloser says what closes a region; see registrar.go.
type regionCloser uint8

const (
	closesLocked    regionCloser = iota // Deregister, with the lock
	closesUnlocked                      // Deregister, without the lock
	closesRegistrar                     // the registrar
)

// Register registers buf with a rail, so that peers can access it. If buf is part of memory of
// Engine.Alloc, Register uses the region of that memory, and Reap does not free the memory before
// Deregister. The caller holds the lock. If the registration takes long (rail.pin), Register, and
// Deregister of its result, release the lock meanwhile.
func (p *Port) Register(rail int, buf []byte, access transport.Access) (Memory, error) {
	return p.register(rail, buf, access, p.e.span(buf))
}

// RegisterOwn is Register with a region that is only for buf, also if buf is part of memory of
// Engine.Alloc. So after Deregister peers cannot access buf by this region any more. The caller
// holds the lock.
func (p *Port) RegisterOwn(rail int, buf []byte, access transport.Access) (Memory, error) {
	return p.register(rail, buf, access, nil)
}

// register registers buf with a rail. It uses the region of the span s if s is not nil and has one.
func (p *Port) register(rail int, buf []byte, access transport.Access, s *Span) (Memory, error) {
	e := p.e
	if err := e.closedErr(); err != nil {
		return Memory{}, err
	}
	served := access&transport.RemoteWrite != 0 && e.rails[rail].attr.Progress == transport.ProgressManual
	mr, s, err := e.regionIn(s, &e.rails[rail], buf, access)
	if err != nil {
		return Memory{}, err
	}
	closes := closesLocked
	if e.rails[rail].pin != nil {
		closes = closesUnlocked
	}
	if served {
		e.exposed++
		e.wakeSleeper()
	}
	return e.memory(mr, s, buf, served, closes), nil
}

// memory returns the Memory of buf, which is in the region mr of the span s; nil: of no span.
func (e *Engine) memory(mr transport.MemoryRegion, s *Span, buf []byte, served bool, closes regionCloser) Memory {
	if s != nil {
		s.holds++
	}
	return Memory{mr, mr.Key(), remoteAddr(mr, s, buf), s, served, closes}
}

// RegisterLocal registers buf, the local buffer of a transfer with a rank of the group, with a rail. If
// that would take long, it returns false, and the caller calls RegisterLater. The caller holds the lock.
//
// Hot path: no allocation in steady state.
func (p *Port) RegisterLocal(rank, rail int, buf []byte) (m Memory, now bool, err error) {
	e, to := p.e, &p.e.rails[rail]
	s := e.span(buf)
	if to.pin == nil || s != nil && s.regions[rail] != nil {
		m, err = p.register(rail, buf, localAccess, s)
		return m, true, err
	}
	err = e.closedErr()
	if err == nil {
		err = e.peers[p.c.world(rank)].err
	}
	if err != nil {
		return Memory{}, true, err
	}
	if mr := to.pin.KeptMemory(buf, transport.DeviceMemory{}, localAccess); mr != nil {
		return e.memory(mr, nil, buf, false, closesLocked), true, nil
	}
	return Memory{}, false, nil
}

// localAccess is the access to the local buffers of transfers.
const localAccess = transport.Local | transport.MayKeep

// RegisterLater registers buf, the local buffer of the next Posts of t with a rank of the group, as
// RegisterLocal does, and then calls done with the result and with the lock. Meanwhile t counts as
// under way: if that rank fails or the engine is closed, Service.Done gets the error, and done is not
// called. The caller holds the lock.
func (p *Port) RegisterLater(t *Transfer, rank, rail int, buf []byte, done func(Memory, error)) {
	e := p.e
	t.registering, t.r.done, t.r.peer = true, false, p.c.world(rank)
	t.registration++
	e.registerLater(registration{
		owner: &transferRegistration{t, t.registration, buf, done}, rail: &e.rails[rail], buf: buf, access: localAccess,
	})
}

// Deregister ends the access of a Memory that Register, RegisterLocal or RegisterLater has returned. For
// the zero Memory it does nothing. If the engine is closed, Deregister leaves the region to Close, which
// closes the transports with all their regions. The caller holds the lock.
func (p *Port) Deregister(m Memory) error {
	e := p.e
	if m.served {
		e.exposed--
	}
	if m.span != nil {
		m.span.holds--
		return nil
	}
	if m.Region == nil || e.closed { // during Shutdown nothing else may use the transports
		return nil
	}
	switch m.closes {
	case closesRegistrar:
		e.closeLater(m.Region)
		return nil
	case closesUnlocked:
		e.mu.Unlock()
		defer e.mu.Lock()
	case closesLocked:
	}
	return m.Region.Close()
}

// Hold prevents Reap from freeing the span that contains buf, until Drop is called for the span. It
// returns the span; nil: no span contains buf. The caller holds the lock.
func (p *Port) Hold(buf []byte) *Span {
	s := p.e.span(buf)
	if s != nil {
		s.holds++
	}
	return s
}

// Drop ends a Hold, whose result s is; s may be nil. The caller holds the lock.
func (p *Port) Drop(s *Span) {
	if s != nil {
		s.holds--
	}
}

// AtomicValid returns what the endpoint of the rail returns for op; see transport.AtomicEndpoint.
// It returns 0 and false if the transport has no remote atomics. The caller holds the lock.
func (p *Port) AtomicValid(rail int, op *transport.Op) (int, bool) {
	if a := p.e.rails[rail].atomic; a != nil {
		return a.AtomicValid(op)
	}
	return 0, false
}

// TransferKind says which operation a Transfer is.
type TransferKind uint8

// The kinds of transfer.
const (
	TransferMessage TransferKind = iota // a message that SetMessage has set
	TransferRead                        // an RMA read; uses Data, Region, RemoteKey and RemoteAddr of Op
	TransferWrite                       // an RMA write; uses the same fields
	// A remote atomic; uses the same fields, and in addition Fetch, Compare, Atomic and Datatype.
	TransferAtomic
)

// Transfer is an operation on the rail to a peer: a message, an RMA operation or a remote atomic.
// It can be posted again after it has ended. From Post until its end, the engine owns the Transfer
// and all memory that Op refers to.
type Transfer struct {
	// The operation. The service fills it, except Peer, Header, HeaderLen and User, which the engine
	// fills.
	Op   *transport.Op
	User any // for use by the service; the engine does not read it

	kind TransferKind // argument of the last Post
	rail *rail        // rail of the last Post
	port *Port
	r    *request // slot of the transfer, in the engine's table of requests

	registering  bool   // RegisterLater was called, and its registration has not ended
	registration uint64 // number of calls of RegisterLater
}

// NewTransfer returns a transfer that is not under way. It exists until the port is closed and its
// last Post has ended. The caller holds the lock.
func (p *Port) NewTransfer() *Transfer {
	t := &Transfer{port: p, r: p.e.take(kindTransfer)}
	t.Op = &t.r.op
	t.r.transfer = t
	t.r.done = true // the transfer is not under way
	p.all = append(p.all, t)
	return t
}

// SetMessage sets the message that t sends when it is posted as a TransferMessage: the header w,
// and data.
func (t *Transfer) SetMessage(w wire.Window, data []byte) {
	t.r.header = w.Message(t.port.c.id, len(data))
	t.Op.Data = data
}

// Post starts the transfer t with a rank of the group. If done is true, the transfer has ended when
// Post returns, and Service.Done is not called. If done is false and err is nil, Service.Done gets
// its outcome later. If err is not nil, the transfer has not started. Messages to one rank leave in
// the order of their posts. rail is an index of a rail. Post uses rail only for transfers with this
// rank itself, which cannot be messages; other transfers use the rail to their peer. The caller
// holds the lock.
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

// launchTransfer gives the operation of a transfer to its endpoint. done is true if the endpoint
// needs the memory no longer.
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

// railOf returns the rail whose endpoint has the operation of r in flight.
func (e *Engine) railOf(r *request) *rail {
	// The peer of a transfer may be this rank itself, which has no rail, so the caller of Post has
	// chosen one.
	if r.kind == kindTransfer {
		return r.transfer.rail
	}
	return e.peers[r.peer].rail
}

// transferDone ends the transfer of r, and reports its end to the service, with the transfer's
// error.
func (e *Engine) transferDone(r *request, err error) {
	t := r.transfer
	r.done, t.registering = true, false
	e.stopMoving(r)
	t.port.service.Done(t, err)
	if t.port.closed && r.done {
		t.forget()
	}
	e.wakeAll(e.completionWaiters)
}

// forget frees the slot of a transfer that is not under way. The port is closed.
func (t *Transfer) forget() {
	t.Op.Fetch, t.Op.Compare = nil, nil
	t.port.e.release(t.r)
}

// deliverWindow handles a MsgWindow from source: it gives the message to the port of its context.
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

// goneMax limits the memory that a peer can make this rank use with requests for ports that do not
// exist here: if more than goneMax messages to the peer are queued, such a request is a protocol
// error. A correct peer has fewer requests open.
const goneMax = 4096

var errGone = errors.New("too many requests for windows that do not exist")

// answerGone answers a message for a port that was closed or revoked here before the sender of the
// message knew that. If the message is itself an answer, answerGone ignores it.
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

// endPorts calls Service.End, with err, for the open ports that fulfill the predicate which.
func (e *Engine) endPorts(which func(*Port) bool, err error) {
	for _, p := range e.ports {
		if p.err == nil && which(p) {
			p.err = err
			p.service.End(err)
			p.WakeAwait()
		}
	}
}

// portsDown reports the end of a peer to the service of every port whose group contains the peer.
func (e *Engine) portsDown(peer int32) {
	for _, p := range e.ports {
		if p.err == nil && p.c.has(peer) {
			p.service.Down(p.c.rank(peer), e.peers[peer].err)
			p.WakeAwait()
		}
	}
}
