package engine

import "context"

// Waits of the agreement on failures (package comm). A rank that takes part waits for the first
// of two events: a message from any rank, or the end of a rank. A receive from any source would
// fail at such an end.

var anyMessage = Env{Peer: AnySource, Tag: AnyTag}

// ChangeCount returns the number of peers that have ended, plus the number of calls of
// WakeAttend.
func (e *Engine) ChangeCount() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changes
}

// WakeAttend makes calls of Attend that block now return.
func (e *Engine) WakeAttend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.changes++
	e.wakeAll(e.probeWaiters)
}

// Attend blocks until a message of the context has arrived, and takes it out of matching as
// Mprobe does. If ChangeCount differs from seen, Attend returns the zero message. Failed peers
// and revocations cause no error. background says that no call of the program waits for the
// message, so the account does not count the wait.
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

// Iattend is Attend without blocking: if no message has arrived, it returns the zero message. It
// reads the queues of all transports, also of the slow ones, unless another goroutine leads.
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

// takeAny takes the first message that has arrived for the context, from any rank and with any tag, out
// of matching. If there is none, it returns the zero message. If the message's data is lost because its sender has failed, Message.Recv returns the
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
