package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/layout"
	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/wire"
)

// Context is a communication context of MPI: a message that was sent in a context matches only
// receives of the same context. The contexts 2k and 2k+1 belong to the same communicator, and are
// revoked together.
type Context struct {
	e  *Engine
	id uint64 // number of the context, the same on all members of its group
	// By rank in the group: the world rank. Nil: the group is all ranks of the job, in their order.
	members []int
	size    int           // number of members
	rankOf  map[int32]int // by world rank: the rank in the group; nil if members is nil

	// Number of the communicator in the record of this rank, and the protocol bit of its messages;
	// recorded says that the rank records messages of this context.
	record   uint16
	kind     record.Protocol
	recorded bool

	kept   bool // KeepInFinalize was called
	hidden bool // HideLeftovers was called; guarded by Engine.mu
	// World ranks of the members whose end Acknowledge has recorded; guarded by Engine.mu.
	acknowledged map[int32]bool

	buffered int // number of sends of SendBuffered that are under way; guarded by Engine.mu
	// First error of a buffered send since the last FlushBuffered; nil: there was none; guarded by
	// Engine.mu.
	bufferedErr error
}

// Env is the envelope of a message: for a send, the address of the message; for a receive or probe,
// which messages it accepts.
type Env struct {
	Peer int // the peer's rank in the context's group; for receives and probes also AnySource
	Tag  int // 0 to 2^31-1; for receives and probes also AnyTag
	// Sig is the signature of the message's elements: their type, or the collective call that sends
	// them. If a message and its receive have different ones, the receive fails with ErrMismatch. 0
	// is compatible with all.
	Sig  uint16
	Mode Mode // of a send: when it is complete
	// Form says which bytes of the buffer the data is, and copies them; nil: the data is the whole buffer,
	// in host memory. See view.go.
	Form layout.Form
	// Attended says that the caller waits for the request next, and does not compute first. So the
	// background goroutine need not poll for the request.
	Attended bool
	// NoQuery says that no goroutine waits for the message of a nonblocking probe. So QueryPeers
	// makes no connection for the probe.
	NoQuery bool
}

// OpenContext opens a context on this rank. members gives the world rank of each rank of the group;
// the context keeps the slice. The id is the same on all members, and no other context of any
// member has it. Messages of the context may have arrived before OpenContext.
func (e *Engine) OpenContext(id uint64, members []int) *Context {
	c := &Context{e: e, id: id, size: len(members)}
	identity := len(members) == e.size
	for i, m := range members {
		identity = identity && i == m
	}
	if !identity {
		c.members = members
		c.rankOf = make(map[int32]int, len(members))
		for i, m := range members {
			c.rankOf[int32(m)] = i
		}
	}
	e.mu.Lock()
	e.contexts[id/2] = c
	if by, ok := e.revokedBy[id/2]; ok && e.peers[by].err != nil {
		e.forwardRevokes(by)
	}
	e.mu.Unlock()
	return c
}

// Record makes the engine record the messages of the context, as those of a communicator that has the
// number comm in the record of this rank. kind is [record.Collective] if collectives send them, and
// otherwise 0. No message of the context has been sent or received yet.
func (c *Context) Record(comm uint16, kind record.Protocol) {
	c.record, c.kind, c.recorded = comm, kind, c.e.record != nil
}

// Close frees the context, and drops the messages that have arrived and were not received. Posted
// receives, and sends that wait for the receive of a dropped message, end with ErrClosed.
func (c *Context) Close() {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, p := range e.partitions {
		if p.ctx == c {
			delete(e.partitions, id)
		}
	}
	e.posted.each(func(r *request) { // instead of failAll, which looks at all slots and is slower
		if r.ctx == c {
			e.cancel(r, errFree)
		}
	})
	e.unexpected.each(func(n *node) {
		if n.key.class() == 0 && n.key.context == c.id {
			e.noteDropped(n.msg.source, &n.msg.header)
		}
	})
	e.purge(func(id uint64) bool { return id == c.id }, errFree)
	if _, ok := e.revokedBy[c.id/2]; !ok {
		delete(e.contexts, c.id/2)
	}
}

// world returns the world rank of a rank of the group.
func (c *Context) world(rank int) int32 {
	if c.members == nil {
		return int32(rank)
	}
	return int32(c.members[rank])
}

// rank returns the rank in the group of the member with the world rank world.
func (c *Context) rank(world int32) int {
	if c.members == nil {
		return int(world)
	}
	return c.rankOf[world]
}

// key returns the matching key of a receive or probe with the envelope env.
func (c *Context) key(env *Env) matchKey {
	k := matchKey{c.id, wild, int32(env.Tag)}
	if env.Peer != AnySource {
		k.source = c.world(env.Peer)
	}
	return k
}

// StateVersion returns a number that changes when a communicator is revoked, and when the engine
// closes or fails. As long as the number stays the same, so does the result of Usable. Code that
// communicates in shared memory, without calls of the engine, checks the number from time to time.
//
// Hot path: one load.
func (e *Engine) StateVersion() uint32 { return e.stateVersion.Load() }

// Usable returns an error if the context can no longer be used: its communicator is revoked, or the
// engine is closed or has failed.
func (c *Context) Usable() error {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	return c.unusable()
}

// unusable is Usable for a caller that holds the lock.
func (c *Context) unusable() error {
	if err := c.e.closedErr(); err != nil || len(c.e.revoked) == 0 {
		return err
	}
	return c.e.revoked[c.id/2]
}

// closedErr returns an error if the engine is closed or has failed. The caller holds the lock.
func (e *Engine) closedErr() error {
	if e.closed {
		return errFinalize
	}
	return e.fatal
}

// OnClose registers a function that Close and Kill call after they have ended all waits in the
// engine, and before they shut down or close the transports. So f may wait until calls that were
// blocked in the engine have returned, and must wait for nothing else. The program calls OnClose
// before any other use of the engine.
func (e *Engine) OnClose(f func()) { e.onClose = append(e.onClose, f) }

// Err returns the error of the revocation of the context's communicator; nil: it is not revoked.
func (c *Context) Err() error {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.e.revoked[c.id/2]
}

// Revoke ends all communication on the context's communicator, on this rank and, by messages, on
// the other members: calls under way and later calls fail with ErrRevoked (as after
// MPIX_Comm_revoke of ULFM). The errors on the other members contain the text of cause. If the
// communicator is revoked already, Revoke has no effect. It does not block.
func (c *Context) Revoke(cause error) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.revoked[c.id/2] != nil {
		return
	}
	c.sendRevoke(cause)
	e.revoke(c.id/2, &RevokedError{e.rank, cause.Error(), []error{ErrRevoked, cause}})
	e.poll()
}

// sendRevoke sends the revocation of the context's communicator to the other members; see Revoke.
func (c *Context) sendRevoke(cause error) {
	e := c.e
	text := []byte(cause.Error())
	// The cause is a RevokedError, for example, if forwardRevokes forwards the revocation that a
	// failed rank has sent.
	if r := (*RevokedError)(nil); errors.As(cause, &r) {
		text = []byte(r.Cause)
	}
	text = text[:min(len(text), maxCause)]
	for i := range c.size {
		if w := c.world(i); int(w) != e.rank && e.peers[w].err == nil {
			e.sendControl(w, wire.Message{Kind: wire.MsgRevoke, Context: c.id}, text)
		}
	}
}

// receiveRevoke handles a MsgRevoke: the peer source, a world rank, has revoked the communicator
// with the number comm, or has forwarded its revocation. cause is the text of the reason.
func (e *Engine) receiveRevoke(comm uint64, source int32, cause []byte) {
	if e.revoked[comm] != nil {
		return
	}
	e.revokedBy[comm] = source
	e.revoke(comm, &RevokedError{int(source), string(cause[:min(len(cause), maxCause)]), []error{ErrRevoked}})
}

// RevokedError is the error of calls on a communicator that a rank has revoked.
type RevokedError struct {
	// World rank of the rank that has revoked the communicator, or that has forwarded the revocation.
	By    int
	Cause string  // text of the error that was the reason of the revocation
	is    []error // what Unwrap returns
}

// Error returns a text that says which rank has revoked the communicator, and why.
func (r *RevokedError) Error() string {
	return fmt.Sprintf("%v by rank %d of the world: %s", ErrRevoked, r.By, r.Cause)
}

// Unwrap returns ErrRevoked. On the rank that has called Revoke it also returns the argument cause.
func (r *RevokedError) Unwrap() []error { return r.is }

// forwardRevokes sends each revocation that has come from a peer to all members of its
// communicator. failed is the world rank of the peer, which may have failed before it had sent the
// revocation to all. The other ranks do the same. So either all remaining members get the
// revocation, or none does.
func (e *Engine) forwardRevokes(failed int32) {
	for comm, by := range e.revokedBy {
		if by != failed {
			continue
		}
		if c := e.contexts[comm]; c != nil { // if the communicator is not open yet, OpenContext will forward it
			delete(e.revokedBy, comm)
			c.sendRevoke(e.revoked[comm])
		}
	}
}

// maxCause is the maximum length in bytes of the text of an error that a message carries.
const maxCause = 1024

// revoke marks the communicator comm as revoked, with the error err, and ends its requests and
// waits.
//
// Operations that the endpoint has in flight continue, because they use their buffers. A send that
// waits for an answer of its receiver ends at once, because the receiver may never receive the
// message. If the receiver is reading the data by RMA at that moment, its read fails, because the
// end of the send closes the buffer's memory region. (If the region stays open, because the buffer is
// of Engine.Alloc or its registration is kept or ended later, the read may succeed. Then the receive
// fails if its rank knows of the revocation.) A send of this rank to itself also ends at once if the
// data is still in the program's buffer, even if Mprobe has taken the message.
func (e *Engine) revoke(comm uint64, err error) {
	if e.revoked[comm] != nil {
		return
	}
	e.revoked[comm] = err
	e.stateVersion.Add(1)
	e.failAll(func(r *request) bool {
		return r.ctx != nil && r.ctx.id/2 == comm && !r.inflight && r.mode != modeLeave &&
			(r.phase == phasePosted || r.phase == phaseReceiving || r.phase == phasePulling || r.phase == phaseMatched || r.phase == phaseRegistering ||
				r.kind == kindSend && (r.phase == phaseQueued || r.awaitsReply() || r.phase == phaseSent && int(r.peer) == e.rank))
	}, err)
	e.purge(func(id uint64) bool { return id/2 == comm }, err)
	e.endPorts(func(p *Port) bool { return p.c.id/2 == comm }, err)
	e.wakeAll(e.probeWaiters)
	e.wakeAll(e.wordWaiters)
}

// purge drops each unexpected message whose context id fulfills the predicate which. Senders that
// wait for the receive get the error why.
func (e *Engine) purge(which func(id uint64) bool, why error) {
	var gone []*unexpected
	e.unexpected.each(func(n *node) {
		if n.key.class() == 0 && which(n.key.context) {
			gone = append(gone, n.msg)
		}
	})
	for _, u := range gone {
		e.unexpected.take(u)
		e.refuse(u.source, &u.header, u.self, why)
		e.discard(u)
	}
}

// refuse reports to the sender of a message that the message will not be received, with the error
// why. It does nothing if the sender does not wait for the receive. self identifies the send, if
// this rank has sent the message to itself and the data is still in the send's buffer; otherwise it
// is zero.
func (e *Engine) refuse(source int32, m *wire.Message, self Request, why error) {
	switch {
	case !self.doneLocked():
		e.complete(self.r, why)
	case m.Kind == wire.MsgRTS || m.Kind == wire.MsgEagerSync:
		e.sendFin(source, m.Handle, why)
	}
}

// Probe blocks until a message that env accepts has arrived, and returns the status of the message.
// It does not receive the message. If ctx ends first, Probe returns ctx's error.
func (c *Context) Probe(ctx context.Context, env Env) (Status, error) {
	_, st, err := c.probe(ctx, env, true, false)
	return st, err
}

// Iprobe is Probe without blocking: it polls the transports once if necessary. ok reports whether
// there is a message.
func (c *Context) Iprobe(env Env) (st Status, ok bool, err error) {
	u, st, err := c.probe(context.Background(), env, false, false)
	return st, u != nil, err
}

// Mprobe blocks until a message that env accepts has arrived, and takes the message out of
// matching: no other receive or probe finds it. The caller receives it by Message.Recv or
// Message.Irecv. If ctx ends first, Mprobe returns ctx's error.
func (c *Context) Mprobe(ctx context.Context, env Env) (Message, Status, error) {
	u, st, err := c.probe(ctx, env, true, true)
	return c.message(u), st, err
}

// Improbe is Mprobe without blocking: it polls the transports once if necessary. ok reports whether
// there is a message.
func (c *Context) Improbe(env Env) (m Message, st Status, ok bool, err error) {
	u, st, err := c.probe(context.Background(), env, false, true)
	return c.message(u), st, u != nil, err
}

// message returns the Message that identifies u, or the zero Message if u is nil.
func (c *Context) message(u *unexpected) Message {
	if u == nil {
		return Message{}
	}
	return Message{c, u, u.gen}
}

// probe looks for a message that env accepts. If block is set, it blocks until there is one. If
// take is set, it takes the message out of matching. It returns nil and no error if there is no
// message and block is not set.
func (c *Context) probe(ctx context.Context, env Env, block, take bool) (*unexpected, Status, error) {
	e := c.e
	key := c.key(&env)
	e.mu.Lock()
	defer e.mu.Unlock()
	for polled := false; ; {
		if u := c.findUnexpected(key); u != nil {
			member := c.has(u.source)
			if err := e.peers[u.source].err; err != nil && member && u.header.Kind == wire.MsgRTS {
				return nil, Status{}, err // the message's data is lost, because its sender has failed
			}
			if take || !member {
				e.unexpected.take(u)
			}
			if !member {
				e.protocolError(u.source, errMember)
				e.discard(u)
				continue
			}
			return u, Status{Source: c.rank(u.source), Tag: int(u.header.Tag), Bytes: u.header.Length}, nil
		}
		if err := c.cannotReceive(key.source); err != nil && (block || !errors.Is(err, ErrFinalized)) {
			return nil, Status{}, err
		}
		if !polled {
			e.poll()
			polled = true
			continue
		}
		if !block {
			if !env.NoQuery {
				e.query.probe = probeQuery{c, key}
			}
			e.testFailed()
			return nil, Status{}, nil
		}
		if err := e.awaitIn(ctx, &e.probeWaiters, awaited{key: key, from: c}); err != nil {
			return nil, Status{}, err
		}
	}
}

// Message is a message that Mprobe, Attend or one of their nonblocking forms has taken out of
// matching. It is a value, which may be copied, and the caller receives it once. The zero Message
// stands for no message.
type Message struct {
	c   *Context
	u   *unexpected
	gen uint32 // generation of u; if u has another one, the message was received or dropped
}

// IsZero reports whether m is the zero Message.
func (m Message) IsZero() bool { return m.u == nil }

// Recv receives the message into buf, as [Context.Recv] does. If ctx ends first, another receive or
// probe can get the message.
func (m Message) Recv(ctx context.Context, buf []byte) (Status, error) {
	return m.Irecv(buf, nil, 0).Finish(ctx)
}

// Irecv starts to receive the message into buf, as [Context.Irecv] does. sig has the meaning of
// Env.Sig, and f that of Env.Form. If the message was received before, the request fails with
// ErrClosed. If the communicator is revoked, Irecv drops the message, and the request fails with
// ErrRevoked. For the zero Message, Irecv returns the zero Request.
func (m Message) Irecv(buf []byte, f layout.Form, sig uint16) Request {
	if m.u == nil {
		return Request{}
	}
	e := m.c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.take(kindRecv)
	r.ctx, r.peer, r.sig, r.mode = m.c, wild, sig, modeProbed
	r.setData(buf, f)
	switch why := e.revoked[m.c.id/2]; {
	case m.u.gen != m.gen:
		e.complete(r, fmt.Errorf("%w: the message has been received", ErrClosed))
	case why != nil: // a revocation drops the messages of the unexpected queue, but not those taken out of it
		e.complete(r, why)
		e.refuse(m.u.source, &m.u.header, m.u.self, why)
		e.discard(m.u)
	default:
		e.accept(r, m.u)
	}
	return e.public(r, false)
}
