package engine

// Who works in shared memory without the engine hears of what goes wrong only
// when it waits. So that it may look before, and is out of the memory when that
// goes, the engine counts the news and says when it closes.

// News changes when a communicator is revoked, and when the engine ends: until
// then Usable answers what it last did.
//
// Hot path: one load.
func (e *Engine) News() uint32 { return e.news.Load() }

// Usable says why the context cannot be used any more; nil: it can.
func (c *Context) Usable() error {
	e := c.e
	e.mu.lock()
	defer e.mu.unlock()
	switch {
	case e.closed:
		return ErrClosed
	case e.fatal != nil:
		return e.fatal
	}
	return e.revoked[c.id/2]
}

// OnClose has f called when the engine closes or is killed, before the
// transports close: every wait ends by then, and what f waits for must too. It is
// called before the engine is used.
func (e *Engine) OnClose(f func()) { e.onClose = append(e.onClose, f) }
