//go:build libfabric

package libfabric

import (
	"fmt"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

type endpoint struct{ d *domain }

var (
	_ transport.Endpoint       = (*endpoint)(nil)
	_ transport.RMAEndpoint    = rmaEndpoint{}
	_ transport.AtomicEndpoint = atomicEndpoint{}
	_ transport.BatchEndpoint  = (*endpoint)(nil)
)

func (e *endpoint) Address() transport.Address { return e.d.address }

// EnableBatch has no effect: Send holds back no message. A provider that may refuse messages has
// CapBatch for Unsent.
func (e *endpoint) EnableBatch() {}

// Unsent reports whether the fabric may still refuse a message (domain.mayRefuse). Only a Read of the
// queue sends a refused message again, so the caller must Read the queue although Send has returned
// true, and although the provider may make progress by itself.
func (e *endpoint) Unsent() bool {
	a := e.d.arena
	if !e.d.mayRefuse || a.messages == 0 {
		return false
	}
	for i := range a.slots {
		if s := &a.slots[i]; s.what.isMessage() && !e.d.unwanted(s) {
			return true
		}
	}
	return false // all are for peers that have failed, and may stay in flight
}

// check returns an error if op cannot be started: the domain is closed or shut down, the peer or
// the header length is invalid, or the peer has failed or left.
func (d *domain) check(op *transport.Op) error {
	switch {
	case d.closed, d.shutdown:
		return transport.ErrClosed
	case uint(op.Peer) >= uint(len(d.peers)), int(op.Peer) >= d.av.n && op.Peer != d.cfg.Self:
		return transport.ErrAddress
	case uint(op.HeaderLen) > transport.HeaderSize:
		return transport.ErrTooLarge
	}
	return d.peers[op.Peer].err
}

// Send sends the header and the data of op as one message. If it returns true, the caller may reuse
// op and its data at once. If it returns false without an error, an OpDone follows, and the caller
// must not use op and its data before that. Send returns ErrAgain if no slot is free, if the fabric
// has no room, or if the queue of messages of this rank to itself is full.
//
// Hot path: no allocation, one call to C.
func (e *endpoint) Send(op *transport.Op) (bool, error) {
	d := e.d
	if err := d.check(op); err != nil {
		return false, err
	}
	n := op.HeaderLen + len(op.Data)
	if n > d.attr.MaxMsgSize {
		return false, transport.ErrTooLarge
	}
	if op.Peer == d.cfg.Self {
		return d.loop.Send(op)
	}
	p := d.tokens(op.Peer)
	if p.resends > 0 {
		return false, transport.ErrAgain
	}
	f := d.frame(p, kindData)
	var rc fi.Errno
	done := true
	if frameSize+n <= d.inject {
		d.compose(d.arena.stage, f, op, op.Data)
		rc = d.raw.Inject(fi.AddressOf(d.arena.stage), frameSize+n, d.av.at(op.Peer))
	} else if i := d.arena.acquire(opSend, op.Peer, nil); i < 0 {
		return false, transport.ErrAgain
	} else {
		s, b := &d.arena.slots[i], d.arena.slotBuf(i)
		if done = n <= copyLimit; done {
			d.compose(b, f, op, op.Data)
			s.size = int32(frameSize + n)
		} else {
			d.compose(b, f, op, nil)
			s.size = int32(frameSize + op.HeaderLen)
			s.op = op
			s.pin.Pin(&op.Data[0])
		}
		if rc = d.postMessage(i); rc != 0 {
			d.arena.free(i)
		}
	}
	if rc != 0 {
		return false, d.postFailed(op.Peer, "send", rc)
	}
	p.posted()
	return done, nil
}

// compose writes the frame f, the header of op and data to b.
func (d *domain) compose(b []byte, f frame, op *transport.Op, data []byte) {
	f.put(b)
	copy(b[frameSize:], op.Header[:op.HeaderLen])
	copy(b[frameSize+op.HeaderLen:], data)
}

// postFailed converts rc, the errno of a libfabric call that posts an operation with peer r, to the
// error that the transport returns to its caller. what is the name of the operation. If rc means
// that the peer is gone, or if noRoom finds that out, postFailed also marks the peer as failed.
func (d *domain) postFailed(r transport.Addr, what string, rc fi.Errno) error {
	switch {
	case rc == fi.ErrAgain:
		return d.noRoom(r)
	case meansGone(rc):
		return d.peerDown(r, what, fmt.Errorf("%w: %w", transport.ErrPeerDown, rc))
	}
	return d.peerError(what, r, rc)
}
