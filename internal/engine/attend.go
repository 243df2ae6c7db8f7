package engine

import "context"

// A rank that agrees with others on failures waits for what comes first: a message
// from any of them, or the end of one. That end would fail any other receive.

var anything = Env{Peer: AnySource, Tag: AnyTag}

// ChangeCount counts the ends of peers and the calls of WakeAttend.
func (e *Engine) ChangeCount() uint32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ends
}

// WakeAttend makes the calls of Attend that block now return.
func (e *Engine) WakeAttend() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ends++
	e.tellAll(e.probes)
}

// Attend blocks until there is a message of the context, and takes it out of matching
// as Mprobe does. When ChangeCount differs from seen it returns the zero message. Neither a
// failed peer nor a revocation makes it fail. background: no call of the program waits for it.
func (c *Context) Attend(ctx context.Context, seen uint32, background bool) (m Message, st Status, err error) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	for {
		if m, st = c.takeAny(); !m.IsZero() {
			return m, st, nil
		}
		if err := e.over(); err != nil || e.ends != seen {
			return Message{}, Status{}, err
		}
		if err := e.awaitIn(ctx, &e.probes, awaited{key: c.key(&anything), from: c, background: background}); err != nil {
			return Message{}, Status{}, err
		}
	}
}

// Iattend is Attend without blocking: if no message has come, the message is zero. It
// reads every transport, the slow ones too, unless another goroutine leads.
func (c *Context) Iattend() (Message, Status, error) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	m, st := c.takeAny()
	if m.IsZero() && e.leader == nil && !e.closed {
		e.drain()
		e.attend()
		m, st = c.takeAny()
	}
	if !m.IsZero() {
		return m, st, nil
	}
	return m, st, e.over()
}

// takeAny takes the next message of the context, whose group is the whole world, out
// of matching. If the data is lost with its sender, Recv reports that.
func (c *Context) takeAny() (Message, Status) {
	e := c.e
	u := e.unexpected.find(c.key(&anything))
	if u == nil {
		return Message{}, Status{}
	}
	e.unexpected.take(u)
	return c.message(u), Status{Source: c.rank(u.source), Bytes: u.header.Length}
}
