package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
)

// Context is a communication context: messages of one match receives of the
// same only. The contexts 2k and 2k+1 belong to one communicator and are
// revoked together.
type Context struct {
	e       *Engine
	id      uint64
	members []int // world rank by rank; nil: the whole world in order
	size    int
	rankOf  map[int32]int // the reverse; nil where members is

	kept   bool           // see KeepInFinalize
	hidden bool           // see HideLeftovers; guarded by Engine.mu
	known  map[int32]bool // world ranks of members that Acknowledge was called for; guarded by Engine.mu

	buffered    int   // sends of SendBuffered under way; guarded by Engine.mu
	bufferedErr error // the first that failed since FlushBuffered; the same
}

// Env is what a message is addressed by, or a receive accepts.
type Env struct {
	Peer int    // rank in the context's group; AnySource for receives and probes
	Tag  int    // 0 to 2^31-1; AnyTag for receives and probes
	Sig  uint16 // signature of the message's elements: if a message and its receive have different ones, the error is ErrMismatch; 0 matches any
	Mode Mode   // of a send
	// Attended says that the caller waits for the request next, without
	// computing in between: asynchronous progress need not look after it.
	Attended bool
	// NoQuery marks a nonblocking probe whose message no goroutine waits for:
	// QueryPeers does not connect for it.
	NoQuery bool
}

// OpenContext opens a context with an id that is the same on all its members
// and different from that of every other context of any of them. Messages may
// have come for it already. members gives the world rank of each rank of the
// group.
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
	if by, ok := e.hearsay[id/2]; ok && e.peers[by].err != nil {
		e.repeat(by)
	}
	e.mu.Unlock()
	return c
}

// Close forgets the context and the messages in it that were never received.
// Receives still posted end with ErrClosed.
func (c *Context) Close() {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	e.posted.each(func(r *request) { // not all slots: there may have been many
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
	if _, ok := e.hearsay[c.id/2]; !ok {
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

// key is what a receive or probe with this env accepts.
func (c *Context) key(env *Env) matchKey {
	k := matchKey{c.id, wild, int32(env.Tag)}
	if env.Peer != AnySource {
		k.source = c.world(env.Peer)
	}
	return k
}

// StateVersion returns a count that changes when a communicator is revoked and when the engine
// closes or fails. Until then Usable returns the same as before. Code that works in
// shared memory without the engine polls StateVersion.
//
// Hot path: one load.
func (e *Engine) StateVersion() uint32 { return e.news.Load() }

// Usable returns why the context cannot be used any more; nil: it can.
func (c *Context) Usable() error {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	return c.unusable()
}

// unusable is Usable for a caller that holds the lock.
func (c *Context) unusable() error {
	if err := c.e.over(); err != nil || len(c.e.revoked) == 0 {
		return err
	}
	return c.e.revoked[c.id/2]
}

// over returns why the engine cannot be used any more: it is closed or has failed.
// nil: it can be used. The caller holds the lock.
func (e *Engine) over() error {
	if e.closed {
		return errFinalize
	}
	return e.fatal
}

// OnClose registers a function that Close and Kill call before they close the
// transports. All waits in the engine have ended by then, so f may wait for calls that
// were blocked in it, and for nothing else. OnClose must precede any use of the engine.
func (e *Engine) OnClose(f func()) { e.onClose = append(e.onClose, f) }

// Err says why the context's communicator is revoked; nil: it is not.
func (c *Context) Err() error {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.e.revoked[c.id/2]
}

// Revoke ends all communication on the context's communicator, here and on all
// members: calls under way and later ones fail with ErrRevoked (as
// MPIX_Comm_revoke of ULFM). The members get the text of cause. It does not block.
func (c *Context) Revoke(cause error) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed || e.revoked[c.id/2] != nil {
		return
	}
	c.tellRevoked(cause)
	e.revoke(c.id/2, &RevokedError{e.rank, cause.Error(), []error{ErrRevoked, cause}})
	e.poll()
}

// tellRevoked tells the other members.
func (c *Context) tellRevoked(cause error) {
	e := c.e
	text := []byte(cause.Error())
	if r := (*RevokedError)(nil); errors.As(cause, &r) { // of a rank that has failed since
		text = []byte(r.Cause)
	}
	text = text[:min(len(text), maxCause)]
	for i := range c.size {
		if w := c.world(i); int(w) != e.rank && e.peers[w].err == nil {
			e.sendControl(w, wire.Message{Kind: wire.MsgRevoke, Context: c.id}, text)
		}
	}
}

// hear handles a peer's message that a communicator is revoked.
func (e *Engine) hear(comm uint64, source int32, cause []byte) {
	if e.revoked[comm] != nil {
		return
	}
	e.hearsay[comm] = source
	e.revoke(comm, &RevokedError{int(source), string(cause[:min(len(cause), maxCause)]), []error{ErrRevoked}})
}

// RevokedError is the error of a communicator that a rank has revoked.
type RevokedError struct {
	By    int    // world rank
	Cause string // in that rank's words
	is    []error
}

// Error returns which rank has revoked the communicator, and why.
func (r *RevokedError) Error() string {
	return fmt.Sprintf("%v by rank %d of the world: %s", ErrRevoked, r.By, r.Cause)
}

// Unwrap returns ErrRevoked and, on the rank that has revoked the communicator, the cause.
func (r *RevokedError) Unwrap() []error { return r.is }

// repeat sends the revocations of a failed peer to all members, because the peer may
// have failed before it had sent them to all. The other ranks do the same, so either
// all remaining members get a revocation or none does.
func (e *Engine) repeat(failed int32) {
	for comm, by := range e.hearsay {
		if by != failed {
			continue
		}
		if c := e.contexts[comm]; c != nil { // else when it is opened
			delete(e.hearsay, comm)
			c.tellRevoked(e.revoked[comm])
		}
	}
}

// maxCause bounds the text of an error that goes to another rank.
const maxCause = 1024

// revoke marks a communicator and ends what waits on it. Operations that the endpoint
// has go on, because they use their buffers. A send that waits for its receiver ends
// at once, because the receiver may never look at it. If the receiver reads at that
// moment, its Read fails, since the buffer is the user's again.
func (e *Engine) revoke(comm uint64, err error) {
	if e.revoked[comm] != nil {
		return
	}
	e.revoked[comm] = err
	e.news.Add(1)
	e.failAll(func(r *request) bool {
		return r.ctx != nil && r.ctx.id/2 == comm && !r.inflight && r.mode != leave &&
			(r.phase == phasePosted || r.phase == phaseFilling || r.phase == phaseMatched ||
				r.kind == kindSend && (r.phase == phaseQueued || r.awaitsReply()))
	}, err)
	e.purge(func(id uint64) bool { return id/2 == comm }, err)
	e.endPorts(func(p *Port) bool { return p.c.id/2 == comm }, err)
	e.tellAll(e.probes)
	e.tellAll(e.words)
}

// purge drops the unexpected messages of contexts. Senders that wait for a receive
// get the reason why.
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

// refuse tells the sender of a message that it will not be received.
func (e *Engine) refuse(source int32, m *wire.Message, self Request, why error) {
	switch {
	case !self.doneLocked():
		e.complete(self.r, why)
	case m.Kind == wire.MsgRTS || m.Kind == wire.MsgEagerSync:
		e.sendFin(source, m.Handle, why)
	}
}

// Probe blocks until a message that env accepts is there, and describes it
// without receiving it.
func (c *Context) Probe(ctx context.Context, env Env) (Status, error) {
	_, st, err := c.probe(ctx, env, true, false)
	return st, err
}

// Iprobe does not block; ok says whether there is such a message.
func (c *Context) Iprobe(env Env) (st Status, ok bool, err error) {
	u, st, err := c.probe(context.Background(), env, false, false)
	return st, u != nil, err
}

// Mprobe blocks until a message that env accepts is there, and takes it out of
// matching, for Message.Recv to receive.
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
				e.breach(u.source, errMember)
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
				e.inquiry.asked = question{c, key}
			}
			e.foundNothing()
			return nil, Status{}, nil
		}
		if err := e.awaitIn(ctx, &e.probes, awaited{key: key, from: c}); err != nil {
			return nil, Status{}, err
		}
	}
}

// Message is a message that Mprobe took out of matching. It is a value, to be
// received once; the zero Message is none.
type Message struct {
	c   *Context
	u   *unexpected
	gen uint32
}

// IsZero reports whether m is no message.
func (m Message) IsZero() bool { return m.u == nil }

// Recv receives the message into buf; see [Context.Recv]. If ctx ends first, another
// receive or probe can get the message.
func (m Message) Recv(ctx context.Context, buf []byte) (Status, error) {
	return m.Irecv(buf, 0).Finish(ctx)
}

// Irecv starts to receive the message into buf; see [Context.Irecv]. sig is as in
// Env.Sig. If the message was already received, the error is ErrClosed.
func (m Message) Irecv(buf []byte, sig uint16) Request {
	if m.u == nil {
		return Request{}
	}
	e := m.c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.take(kindRecv)
	r.ctx, r.buf, r.peer, r.sig, r.mode = m.c, buf, wild, sig, probed
	if m.u.gen != m.gen {
		e.complete(r, fmt.Errorf("%w: the message has been received", ErrClosed))
	} else {
		e.accept(r, m.u)
	}
	return e.public(r, false)
}
