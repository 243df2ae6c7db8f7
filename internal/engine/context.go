package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// Context is a communication context: its messages match only its receives. The contexts 2k and
// 2k+1 belong to one communicator and are revoked together.
type Context struct {
	e       *Engine
	id      uint64
	members []int // world ranks, by rank in the group; nil: the group is the world, in order
	size    int
	rankOf  map[int32]int // the reverse of members; nil if members is nil

	kept         bool           // see KeepInFinalize
	hidden       bool           // see HideLeftovers; guarded by Engine.mu
	acknowledged map[int32]bool // world ranks of the members whose failure Acknowledge has acknowledged; guarded by Engine.mu

	buffered    int   // number of sends of SendBuffered under way; guarded by Engine.mu
	bufferedErr error // first error of a buffered send since FlushBuffered; guarded by Engine.mu
}

// Env is the envelope of a message: its address, or what a receive accepts.
type Env struct {
	Peer int    // rank in the context's group; AnySource for receives and probes
	Tag  int    // 0 to 2^31-1; AnyTag for receives and probes
	Sig  uint16 // signature of the message's elements; if a message and its receive have different ones, the error is ErrMismatch; 0 matches any
	Mode Mode   // of a send
	// Attended says that the caller waits for the request next, without computing in between, so
	// asynchronous progress need not serve the request.
	Attended bool
	// NoQuery marks a nonblocking probe whose message no goroutine waits for, so QueryPeers does
	// not connect for it.
	NoQuery bool
}

// OpenContext opens a context. Its id is the same on all members of the group, and differs from
// the id of every other context of any of them. Messages of the context may have arrived before.
// members gives the world rank of each rank of the group.
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

// Close frees the context and drops its unreceived messages. Its posted receives end with
// ErrClosed.
func (c *Context) Close() {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.posted.each(func(r *request) { // faster than a search of all slots
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

// rank returns the rank in the group of a member's world rank.
func (c *Context) rank(world int32) int {
	if c.members == nil {
		return int(world)
	}
	return c.rankOf[world]
}

// key returns the key of a receive or probe with this envelope.
func (c *Context) key(env *Env) matchKey {
	k := matchKey{c.id, wild, int32(env.Tag)}
	if env.Peer != AnySource {
		k.source = c.world(env.Peer)
	}
	return k
}

// StateVersion returns a number that changes when a communicator is revoked and when the engine
// closes or fails. As long as it stays the same, Usable returns the same as before. Code that
// works in shared memory without the engine polls StateVersion.
//
// Hot path: one load.
func (e *Engine) StateVersion() uint32 { return e.stateVersion.Load() }

// Usable returns an error if the context can no longer be used.
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

// closedErr returns an error if the engine can no longer be used, because it is closed or has
// failed. The caller holds the lock.
func (e *Engine) closedErr() error {
	if e.closed {
		return errFinalize
	}
	return e.fatal
}

// OnClose registers a function that Close and Kill call before they close the transports. All
// waits in the engine have ended by then. So f may wait for the return of calls that were blocked
// in the engine, and for nothing else. OnClose must precede any use of the engine.
func (e *Engine) OnClose(f func()) { e.onClose = append(e.onClose, f) }

// Err returns the error with which the context's communicator was revoked, or nil.
func (c *Context) Err() error {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.e.revoked[c.id/2]
}

// Revoke ends all communication on the context's communicator, on this rank and on all members:
// calls under way and later calls fail with ErrRevoked (as after MPIX_Comm_revoke of ULFM). The
// members get the text of cause. Revoke does not block.
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

// sendRevoke sends the revocation to the other members.
func (c *Context) sendRevoke(cause error) {
	e := c.e
	text := []byte(cause.Error())
	if r := (*RevokedError)(nil); errors.As(cause, &r) { // of another rank, which has failed
		text = []byte(r.Cause)
	}
	text = text[:min(len(text), maxCause)]
	for i := range c.size {
		if w := c.world(i); int(w) != e.rank && e.peers[w].err == nil {
			e.sendControl(w, wire.Message{Kind: wire.MsgRevoke, Context: c.id}, text)
		}
	}
}

// receiveRevoke handles a peer's message that a communicator is revoked.
func (e *Engine) receiveRevoke(comm uint64, source int32, cause []byte) {
	if e.revoked[comm] != nil {
		return
	}
	e.revokedBy[comm] = source
	e.revoke(comm, &RevokedError{int(source), string(cause[:min(len(cause), maxCause)]), []error{ErrRevoked}})
}

// RevokedError is the error of a communicator that a rank has revoked.
type RevokedError struct {
	By    int    // world rank
	Cause string // text of that rank's error
	is    []error
}

// Error returns which rank has revoked the communicator, and why.
func (r *RevokedError) Error() string {
	return fmt.Sprintf("%v by rank %d of the world: %s", ErrRevoked, r.By, r.Cause)
}

// Unwrap returns ErrRevoked and, on the rank that has revoked the communicator, the cause.
func (r *RevokedError) Unwrap() []error { return r.is }

// forwardRevokes sends the revocations that came from a failed peer to all members, because the
// peer may have failed before it had sent them to all. The other ranks do the same, so either all
// remaining members get a revocation or none does.
func (e *Engine) forwardRevokes(failed int32) {
	for comm, by := range e.revokedBy {
		if by != failed {
			continue
		}
		if c := e.contexts[comm]; c != nil { // otherwise OpenContext forwards it
			delete(e.revokedBy, comm)
			c.sendRevoke(e.revoked[comm])
		}
	}
}

// maxCause is the maximum length of the text of an error that a message carries.
const maxCause = 1024

// revoke marks a communicator as revoked and ends its requests and waits. Operations that the
// endpoint has in flight continue, because they use their buffers. A send that waits for its
// receiver ends at once, because the receiver may never receive the message. If the receiver
// reads at that moment, its Read fails, because the end of the send closes the buffer's memory
// region. (A buffer of Alloc keeps its region.)
func (e *Engine) revoke(comm uint64, err error) {
	if e.revoked[comm] != nil {
		return
	}
	e.revoked[comm] = err
	e.stateVersion.Add(1)
	e.failAll(func(r *request) bool {
		return r.ctx != nil && r.ctx.id/2 == comm && !r.inflight && r.mode != modeLeave &&
			(r.phase == phasePosted || r.phase == phaseReceiving || r.phase == phaseMatched ||
				r.kind == kindSend && (r.phase == phaseQueued || r.awaitsReply()))
	}, err)
	e.purge(func(id uint64) bool { return id/2 == comm }, err)
	e.endPorts(func(p *Port) bool { return p.c.id/2 == comm }, err)
	e.wakeAll(e.probeWaiters)
	e.wakeAll(e.wordWaiters)
}

// purge drops the unexpected messages of the contexts for which which returns true. Senders that
// wait for a receive get the error why.
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

// refuse reports to the sender of a message that the message will not be received, if the sender
// waits for the receive.
func (e *Engine) refuse(source int32, m *wire.Message, self Request, why error) {
	switch {
	case !self.doneLocked():
		e.complete(self.r, why)
	case m.Kind == wire.MsgRTS || m.Kind == wire.MsgEagerSync:
		e.sendFin(source, m.Handle, why)
	}
}

// Probe blocks until a message that env accepts has arrived. It returns the message's status and
// does not receive the message.
func (c *Context) Probe(ctx context.Context, env Env) (Status, error) {
	_, st, err := c.probe(ctx, env, true, false)
	return st, err
}

// Iprobe is Probe without blocking. ok reports whether there is a message.
func (c *Context) Iprobe(env Env) (st Status, ok bool, err error) {
	u, st, err := c.probe(context.Background(), env, false, false)
	return st, u != nil, err
}

// Mprobe blocks until a message that env accepts has arrived, and takes the message out of
// matching. The caller receives it by Message.Recv or Message.Irecv.
func (c *Context) Mprobe(ctx context.Context, env Env) (Message, Status, error) {
	u, st, err := c.probe(ctx, env, true, true)
	return c.message(u), st, err
}

// Improbe is Mprobe without blocking.
func (c *Context) Improbe(env Env) (m Message, st Status, ok bool, err error) {
	u, st, err := c.probe(context.Background(), env, false, true)
	return c.message(u), st, u != nil, err
}

func (c *Context) message(u *unexpected) Message {
	if u == nil {
		return Message{}
	}
	return Message{c, u, u.gen}
}

func (c *Context) probe(ctx context.Context, env Env, block, take bool) (*unexpected, Status, error) {
	e := c.e
	key := c.key(&env)
	e.mu.Lock()
	defer e.mu.Unlock()
	for polled := false; ; {
		if u := e.unexpected.find(key); u != nil {
			member := c.has(u.source)
			if err := e.peers[u.source].err; err != nil && member && u.header.Kind == wire.MsgRTS {
				return nil, Status{}, err // its data is lost with the sender
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

// Message is a message that Mprobe has taken out of matching. It is a value. The caller receives
// it once. The zero Message is no message.
type Message struct {
	c   *Context
	u   *unexpected
	gen uint32
}

// IsZero reports whether m is no message.
func (m Message) IsZero() bool { return m.u == nil }

// Recv receives the message into buf; see [Context.Recv]. If ctx ends first, another receive or
// probe can get the message.
func (m Message) Recv(ctx context.Context, buf []byte) (Status, error) {
	return m.Irecv(buf, 0).Finish(ctx)
}

// Irecv starts to receive the message into buf; see [Context.Irecv]. sig is as in Env.Sig. If the
// message was already received, the error is ErrClosed.
func (m Message) Irecv(buf []byte, sig uint16) Request {
	if m.u == nil {
		return Request{}
	}
	e := m.c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.take(kindRecv)
	r.ctx, r.buf, r.peer, r.sig, r.mode = m.c, buf, wild, sig, modeProbed
	if m.u.gen != m.gen {
		e.complete(r, fmt.Errorf("%w: the message has been received", ErrClosed))
	} else {
		e.accept(r, m.u)
	}
	return e.public(r, false)
}
