package engine

import "context"

// Attend is the wait of the ranks that agree on failures (package internal/mpi/agree). Such a rank
// waits for a message of the context from any rank or for the end of any rank, whichever is first.
// A receive from any source would not do, because the failure of a rank makes it fail.

// anyMessage is the envelope of a receive or probe that accepts every message of a context.
var anyMessage = Env{Peer: AnySource, Tag: AnyTag}

// ChangeCount returns a number that changes when Attend has to return without a message: at the end
// of a peer, and at a call of WakeAttend.
func (e *Engine) ChangeCount() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changes
}

// WakeAttend makes the calls of Attend that block now return without a message.
func (e *Engine) WakeAttend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changes++
	e.wakeAll(e.probeWaiters)
}

// Attend blocks until a message of the context has arrived, and takes the message out of matching
// as Mprobe does. seen is a result of ChangeCount. If no message has arrived and ChangeCount
// differs from seen, at the call or during the wait, Attend returns the zero Message. Failed peers
// and revocations cause no error. Attend returns an error if ctx ends or the engine is closed or
// has failed. If background is set, no call of the program waits for the message, so the account
// does not count the wait.
func (c *Context) Attend(ctx context.Context, seen uint32, background bool) (m Message, st Status, err error) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		if m, st = c.takeAny(); !m.IsZero() {
			return m, st, nil
		}
		if err := e.closedErr(); err != nil || e.changes != seen {
			return Message{}, Status{}, err
		}
		if err := e.awaitIn(ctx, &e.probeWaiters, awaited{key: c.key(&anyMessage), from: c, background: background}); err != nil {
			return Message{}, Status{}, err
		}
	}
}

// AwaitChange blocks until ChangeCount differs from seen, ctx ends, or the engine is closed or has
// failed. Meanwhile this rank notices the end of members of the context's group, also of those with
// which it has not communicated yet. AwaitChange takes no message, and the account does not count
// the wait.
func (c *Context) AwaitChange(ctx context.Context, seen uint32) error {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		if err := e.closedErr(); err != nil || e.changes != seen {
			return err
		}
		if err := e.awaitIn(ctx, &e.probeWaiters, awaited{key: c.key(&anyMessage), from: c, background: true}); err != nil {
			return err
		}
	}
}

// Iattend is Attend without blocking, and regardless of ChangeCount. If no message has arrived and
// no other goroutine polls the transports, Iattend reads all their queues, also those that most
// polls leave out because their transport is slow. If there is still no message, Iattend returns
// the zero Message.
func (c *Context) Iattend() (Message, Status, error) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	m, st := c.takeAny()
	if m.IsZero() && e.leader == nil && !e.closed {
		e.drain()
		e.ensureProgress()
		m, st = c.takeAny()
	}
	if !m.IsZero() {
		return m, st, nil
	}
	return m, st, e.closedErr()
}

// takeAny takes the first message that has arrived for the context, from any rank and with any tag,
// out of matching. If there is none, it returns the zero Message. If the sender of the message has
// failed before its data was complete, takeAny returns the message, and Message.Recv returns the
// error.
func (c *Context) takeAny() (Message, Status) {
	e := c.e
	u := e.unexpected.find(c.key(&anyMessage))
	if u == nil {
		return Message{}, Status{}
	}
	e.unexpected.take(u)
	return c.message(u), Status{Source: c.rank(u.source), Bytes: u.header.Length}
}
