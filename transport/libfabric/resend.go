//go:build libfabric

package libfabric

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// Messages that are sent again
//
// An adapter may refuse a message because the target has no receive posted (FI_ENORX). A message may
// also fail for a reason that says nothing about the peer, such as FI_EIO. The [slot] of a message
// keeps what was sent until the completion, so the transport sends the message again from there. The
// message has the same number as before, so the receiver restores the order:
//
//	fi_send ─► completion ──────────────────────────────────────► the slot is free
//	   ▲           └── error ── the peer is gone ───────────────► the peer has failed
//	   │                 ├───── FI_ENORX ──────────────┐
//	   │                 └───── any other ─ resendTries ┼── again ─► the peer has failed: it would
//	   └──── after a pause, which doubles each time ◄──┘            miss a message
//
// Until the message is through, Send takes no further one to that peer. While a peer refuses
// messages, the transport sends the same message again without limit, until it knows that the peer
// has failed.
//
// Reads of the queue do all this. So while the fabric may refuse a message, the endpoint asks for Reads
// ([endpoint.Unsent]), also from a rank that computes without calls.
//
// An injected message has no slot. So the transport does not inject messages if the provider may refuse
// them ([domain.mayRefuse]).

const (
	firstPause = 50 * time.Microsecond
	lastPause  = 10 * time.Millisecond
	// resendTries is the number of times that a message is sent again after errors other than FI_ENORX.
	resendTries = 8
)

// kindRepeated is set in the kind of a message that was sent before. The receiver may have got it.
const kindRepeated kind = 0x80

// emulated reports whether a provider with this protocol works over sockets or shared memory. Such
// a provider keeps messages back until the target posts a receive. Others may fail a message with
// FI_ENORX.
func emulated(p fi.Protocol) bool {
	switch p {
	case fi.ProtoXNet, fi.ProtoRXM, fi.ProtoRXMTCP, fi.ProtoRXD, fi.ProtoSockTCP, fi.ProtoSHM, fi.ProtoSM2:
		return true
	default:
		return false
	}
}

// postMessage posts the message in the [slot] with index i: slot.size bytes in the arena's buffer, and
// the data of slot.op after these, if it is not nil.
func (d *domain) postMessage(i int) fi.Errno {
	a := d.arena
	s := &a.slots[i]
	b := fi.AddressOf(a.slotBuf(i))
	if s.op == nil {
		return d.raw.Send(b, int(s.size), a.desc, d.av.at(s.peer), a.context(i))
	}
	return d.raw.Send2(b, int(s.size), a.desc, fi.AddressOf(s.op.Data), len(s.op.Data), fi.Desc{}, d.av.at(s.peer), a.context(i))
}

// messageFailed handles the failure e of the message in the [slot] with index i: it sends the message
// again later, or marks the peer as failed.
func (d *domain) messageFailed(i int, e *fi.RawError) {
	s := &d.arena.slots[i]
	p := &d.peers[s.peer]
	refused := e.Err == fi.ErrNoReceive
	if !refused {
		s.failures++
	}
	if d.meansPeerGone(e) || s.failures > resendTries || d.unwanted(s) {
		// The peer lacks this message, and the contract does not allow that it gets later ones. So it
		// counts as failed.
		d.slotDone(i, d.peerDown(s.peer, s.what.String(), fmt.Errorf("%w: %w", transport.ErrPeerDown, e)))
		return
	}
	if !refused {
		d.arena.slotBuf(i)[frameKind] |= byte(kindRepeated)
	}
	s.pause = min(max(2*s.pause, firstPause), lastPause)
	s.due = time.Now().Add(s.pause)
	if s.cause == nil {
		p.resends++
	}
	s.cause = e
	d.resends = append(d.resends, i)
	d.setTimer()
}

// unwanted reports whether the message in s need not be delivered any more, because its peer has failed
// or left. A peer that has left still waits for the acknowledgment of its close message.
func (d *domain) unwanted(s *slot) bool {
	p := &d.peers[s.peer]
	return p.err != nil && (!p.closeReceived || s.what != opControl)
}

// resend sends those messages again whose pause is over.
func (d *domain) resend() {
	now := time.Now()
	kept := d.resends[:0]
	for _, i := range d.resends {
		s := &d.arena.slots[i]
		if d.unwanted(s) {
			d.slotDone(i, d.peers[s.peer].err)
			continue
		}
		if now.Before(s.due) {
			kept = append(kept, i)
			continue
		}
		err := d.postAgain(i)
		if err == transport.ErrAgain { //nolint:errorlint // postAgain does not wrap it
			s.due = now.Add(s.pause)
			kept = append(kept, i)
		} else if err != nil {
			d.slotDone(i, err)
		}
	}
	d.resends = kept
	d.setTimer()
}

// postAgain posts the message in the [slot] with index i again. If the result is neither nil nor
// ErrAgain, the peer has failed.
func (d *domain) postAgain(i int) error {
	s := &d.arena.slots[i]
	switch rc := d.postMessage(i); rc {
	case 0:
		return nil
	case fi.ErrAgain:
		return d.noRoom(s.peer)
	default:
		return d.peerDown(s.peer, s.what.String(), fmt.Errorf("%w: %w, after %w", transport.ErrPeerDown, rc, s.cause))
	}
}

// setTimer makes the timer of [domain.openPoll] end a Wait when the first of the resends is due, or parts of
// divided operations are to be tried again.
func (d *domain) setTimer() {
	first := d.waitDue
	for _, i := range d.resends {
		if due := d.arena.slots[i].due; first.IsZero() || due.Before(first) {
			first = due
		}
	}
	if first.IsZero() {
		return // if the timer is set, it ends one Wait too early
	}
	t := unix.ItimerSpec{Value: unix.NsecToTimespec(max(time.Until(first).Nanoseconds(), 1))}
	_ = unix.TimerfdSettime(d.timerfd, 0, &t, nil) // cannot fail: the arguments are valid
}
