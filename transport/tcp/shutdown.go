package tcp

import (
	"context"
	"fmt"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Shutdown takes each connection through these steps. SHUT_WR is the argument of shutdown(2) that
// closes the sending side.
//
//	this rank:  write what is queued ► bye ► SHUT_WR ► read to the end ► close
//	the peer:   read up to the bye ► SHUT_WR ► read to the end ► close
//
// So when Shutdown returns without an error, the Reads of each peer that has not failed have
// processed all bytes, and no reset can destroy bytes in transit. Shutdown drops messages that
// arrive meanwhile; completions stay for the next Read. The end of the peer's bytes counts as the
// answer to the bye. That end is not authenticated: a process on the network path can forge it (ADR
// 19). Until the domain's Close, a peer that connects for the first time gets the verdict that this
// rank has left. After Close the kernel refuses the connection, as after the death of the process.
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
		if d.broken != nil {
			return fmt.Errorf("tcp: shutdown: %w", d.broken)
		}
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

// busy reports whether the connection has output, or reads or writes that have not ended, in
// either direction.
func (c *conn) busy() bool {
	if c.hasOutput() || c.rmaWait.head != nil || c.writes.head != nil {
		return true
	}
	return c.rma != nil && (c.rma.nfree < window || c.rma.serving > 0)
}

// finish does the next step of the connection's shutdown, if that is possible now. It returns true
// if all steps are done, or if there is no connection.
func (c *conn) finish() bool {
	if c.state == connUp && c.wrErr == nil {
		if !c.byeSent {
			if c.busy() {
				return false
			}
			c.byeSent = true
			f := wire.TCPFrame{Type: wire.TCPBye, Counts: c.sign.Counts()}
			f.Counts[wire.TCPControls]++ // the bye itself
			c.control(f)
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
