//go:build libfabric

package libfabric

import (
	"slices"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// Receive buffers
//
//	spare ──► posted ──► released: no more messages into it ──► complete ──► posted again
//	  ▲                                                │
//	  └── all other peers have sent a later message ◄──┴── lost: a message into it has failed, and
//	                                                       others may still arrive (packed providers)
//
// A buffer for one message is released by its completion. A multi-receive buffer is released by a
// completion, or by a failure, with FI_MULTI_RECV. In net and rxm that may be too early: the
// provider may still read one peer's message into the first half of the buffer when another peer's
// message in the second half is complete. So for providers that put messages into the buffer
// without gaps ([domain.packed]), recvBuffer also counts bytes.
//
// These providers do not report how long a failed message was, so a buffer with one counts as lost
// when it is released, and a spare one takes its place. The messages that may still be under way
// are those of other peers. A peer's messages come one after the other, so if a later one is
// complete in another buffer, none of that peer is under way in the lost one. When that is so for
// each peer that has not failed, the buffer becomes a spare.

// recvBuffer is a buffer for received messages.
type recvBuffer struct {
	mem  []byte
	used bool // the provider puts no more messages into the buffer
	done int  // in a multi-receive buffer, total size in bytes of the complete messages since it was posted
	// end is the offset in mem where the last message ends, in a multi-receive buffer that is used,
	// if domain.packed is set. Otherwise it is 0.
	end    int
	failed bool // domain.packed is set, and a message into the buffer has failed since it was posted
	// awaited are the peers of a lost buffer that may still have a message under way into it.
	awaited []transport.Addr
}

// received handles the completion e of a receive into buffer i.
func (d *domain) received(i int, e *fi.RawEntry) error {
	a := d.arena
	b := &a.bufs[i]
	n, at := int(e.Len), 0
	if !d.multiRecv {
		b.used = true
	} else {
		if n > 0 {
			at = int(e.Buf - fi.AddressOf(b.mem))
		}
		b.done += n
		if e.Flags&fi.FlagMultiRecv != 0 {
			b.used = true
			if d.packed {
				b.end = at + n
			}
		}
	}
	if at < 0 || n < 0 || n > len(b.mem) || at > len(b.mem)-n {
		return errBuffer
	}
	if n > 0 {
		d.message(b.mem[at : at+n : at+n])
		if len(a.lost) > 0 {
			d.recover(i, b.mem[at:at+n])
		}
	}
	return d.released(i)
}

// receiveFailed handles a failed receive into buffer i. The failure of a multi-receive buffer is
// that of one message. The buffer stays posted, unless the failure has FI_MULTI_RECV or is that of
// the buffer itself.
func (d *domain) receiveFailed(i int, e *fi.RawError) error {
	b := &d.arena.bufs[i]
	d.lastFailure = e
	if !d.multiRecv || e.Flags&fi.FlagMultiRecv != 0 || e.Err == fi.ErrCanceled && !d.packed {
		b.used = true
	}
	b.failed = d.packed
	return d.released(i)
}

// released posts buffer i again in the next [domain.poll] if the provider has released it and all
// messages in it are complete. If a message in it has failed, released takes the buffer out of use.
func (d *domain) released(i int) error {
	a := d.arena
	switch b := &a.bufs[i]; {
	case !b.used || slices.Contains(a.lost, i):
	case b.failed:
		return d.retire(i)
	case b.done >= b.end:
		a.toPost = append(a.toPost, i)
	}
	return nil
}

// retire takes receive buffer i out of use, because the provider may still write to it, and posts a
// spare one instead. If all buffers are out of use, retire returns errBuffers, because no message
// can be received any more.
func (d *domain) retire(i int) error {
	a := d.arena
	b := &a.bufs[i]
	b.awaited = b.awaited[:0]
	for r := range d.peers {
		// Also of a peer without contact the first message may be under way.
		if d.peers[r].err == nil && transport.Addr(r) != d.cfg.Self {
			b.awaited = append(b.awaited, transport.Addr(r))
		}
	}
	a.lost = append(a.lost, i)
	d.recover(-1, nil)
	if len(a.lost) == len(a.bufs) {
		return d.noBuffers(d.lastFailure)
	}
	return nil
}

// recover looks for lost buffers into which no message can be under way any more, and makes them spare
// buffers. msg is a message that has arrived whole in buffer i; nil: there is none.
func (d *domain) recover(i int, msg []byte) {
	a := d.arena
	from := transport.Addr(-1)
	if f, _, ok := parseFrame(msg); ok && uint64(f.source) < uint64(len(d.peers)) && f.token == d.peers[f.source].rx {
		from = transport.Addr(f.source)
	}
	a.lost = slices.DeleteFunc(a.lost, func(l int) bool {
		b := &a.bufs[l]
		b.awaited = slices.DeleteFunc(b.awaited, func(r transport.Addr) bool {
			return r == from && l != i || d.peers[r].err != nil && !d.peers[r].closeReceived
		})
		if len(b.awaited) > 0 {
			return false
		}
		a.spares = append(a.spares, l)
		return true
	})
	a.useSpares()
}

// useSpares makes the next [domain.poll] post spare buffers, until largeBuffers are in use.
func (a *arena) useSpares() {
	for n := len(a.spares); n > 0 && len(a.bufs)-n-len(a.lost) < largeBuffers; n-- {
		a.toPost = append(a.toPost, a.spares[n-1])
		a.spares = a.spares[:n-1]
	}
}
