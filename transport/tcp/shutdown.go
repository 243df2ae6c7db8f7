package tcp

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Shutdown takes each connection through
//
//	here:      flush what is queued ► bye ► SHUT_WR ► read to the end ► close
//	the peer:  read up to bye ► SHUT_WR ► read to the end ► close
//
// so that everything has passed the peer's Read when it returns, and no reset
// can destroy what is on its way. Messages that come meanwhile are dropped;
// completions stay for the next Read. Who connects for the first time is told
// too until the domain's Close; after it he finds nobody, as after a death.
func (e *endpoint) Shutdown(ctx context.Context) error {
	d := e.d
	if d.closed {
		return transport.ErrClosed
	}
	d.left, d.drop = true, true
	d.links.leaving.Store(true)
	stop := context.AfterFunc(ctx, d.Signal)
	defer stop()
	for {
		d.progress()
		done := d.links.idle()
		for _, c := range d.conns {
			if c != nil && !c.finish() {
				done = false
			}
		}
		if done {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("tcp: shutdown: %w", err)
		}
		if d.arm() {
			if err := d.wait(-1); err != nil {
				return err
			}
		}
	}
}

// busy says whether operations with the peer are under way.
func (c *conn) busy() bool {
	if c.hasOutput() || c.rmaWait.head != nil || c.writes.head != nil {
		return true
	}
	return c.rma != nil && (c.rma.nfree < window || c.rma.serving > 0)
}

// finish takes the connection's end a step on; true when it is over.
func (c *conn) finish() bool {
	if c.state == connUp && c.wrErr == nil {
		if !c.bye {
			if c.busy() {
				return false
			}
			c.bye = true
			c.control(wire.TCPFrame{Type: wire.TCPBye})
			c.push()
		}
		if c.hasOutput() {
			return false
		}
	}
	switch c.state {
	case connUp, connLeft:
		c.endOutput()
		return false
	case connWaiting:
		return false
	case connNew, connGone:
	}
	return true
}
