package engine

import (
	"context"
	"slices"
)

// Who agrees with others on failures waits for whatever comes first: a message of
// any of them, or the end of one, which would end every other wait for any.

// Turn counts the ends of peers and the calls of Nudge.
func (e *Engine) Turn() uint32 {
	e.mu.lock()
	defer e.mu.unlock()
	return e.ends
}

// Nudge ends what is in Attend now.
func (e *Engine) Nudge() {
	e.mu.lock()
	defer e.mu.unlock()
	e.ends++
	for _, w := range e.probes {
		e.tell(w)
	}
}

// Attend blocks until there is a message of the context, which it takes out of
// matching as Mprobe does, or Turn is not seen any more: then the message is zero.
// Peers that fail do not end it otherwise, nor does a communicator that is revoked.
func (c *Context) Attend(ctx context.Context, seen uint32) (m Message, st Status, err error) {
	e := c.e
	e.mu.lock()
	defer e.mu.unlock()
	w := e.newWaiter()
	w.key, w.from = matchKey{c.id, wild, wild}, c
	defer func() {
		w.from = nil
		e.freeWaiter(w)
	}()
	for {
		if m, st = c.takeAny(); !m.IsZero() {
			return m, st, nil
		}
		switch {
		case e.closed:
			return Message{}, Status{}, ErrClosed
		case e.fatal != nil:
			return Message{}, Status{}, e.fatal
		case e.ends != seen:
			return Message{}, Status{}, nil
		}
		w.ready = false
		e.probes = append(e.probes, w)
		err := e.await(ctx, w)
		e.probes = slices.DeleteFunc(e.probes, func(x *waiter) bool { return x == w })
		if err != nil {
			return Message{}, Status{}, err
		}
	}
}

// Iattend is Attend for who does not wait: the message is zero where none has
// come. It reads every transport, the slow ones too, unless another goroutine is at
// it.
func (c *Context) Iattend() (Message, Status, error) {
	e := c.e
	e.mu.lock()
	defer e.mu.unlock()
	m, st := c.takeAny()
	if m.IsZero() && e.leader == nil && !e.closed {
		e.drain()
		e.rearm()
		m, st = c.takeAny()
	}
	switch {
	case !m.IsZero():
		return m, st, nil
	case e.closed:
		return m, st, ErrClosed
	}
	return m, st, e.fatal
}

// takeAny takes the next message of the context, which is of the whole world, out
// of matching. Where its data died with its sender, Recv says so.
func (c *Context) takeAny() (Message, Status) {
	e := c.e
	u := e.unexpected.find(matchKey{c.id, wild, wild})
	if u == nil {
		return Message{}, Status{}
	}
	e.unexpected.take(u)
	return c.message(u), Status{Source: c.rank(u.source), Bytes: u.header.Length}
}
