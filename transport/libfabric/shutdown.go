//go:build libfabric

package libfabric

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// Shutdown exchanges close messages with each peer to which this rank has sent a message or from
// which it has received one:
//
//	this rank:  wait for operations in flight ► send close ► wait for an ack or the peer's close
//	the peer:   read up to this rank's close ► send ack ► report PeerLeft
//
// When Shutdown returns nil, each peer that has not failed has read everything that this rank sent,
// or is in Shutdown itself. So a connection that is then closed holds no data that a reset could
// destroy. Shutdown drops messages that arrive meanwhile; the next Read returns the other
// completions. Shutdown blocks. If ctx ends before that, or the completion queue fails, it returns
// an error.
func (e *endpoint) Shutdown(ctx context.Context) error {
	d := e.d
	if d.closed {
		return transport.ErrClosed
	}
	d.shutdown, d.dropMessages = true, true
	stop := context.AfterFunc(ctx, d.Signal)
	defer stop()
	for {
		d.progress()
		if d.broken != nil {
			return d.broken
		}
		done, again := d.sendCloses()
		if done {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("libfabric: shutdown: %w: %s", err, d.waitsFor())
		}
		if d.arm() {
			// Wake up and probe the peers, because not every provider reports the end of a peer.
			limit := probeAfter
			if again {
				limit = maxNap // wake up and send again, because the fabric does not report that it has room
			}
			if err := d.wait(limit); err != nil {
				return err
			}
		}
	}
}

// Flushed reports whether all messages have left; see [transport.FlushEndpoint]. A message that the
// fabric has refused has not.
func (e *endpoint) Flushed(failed func(transport.Addr) bool) bool {
	d := e.d
	if d.closed || d.broken != nil {
		return true
	}
	for i := range d.arena.slots {
		if s := &d.arena.slots[i]; s.what.isMessage() && !d.unwanted(s) && !failed(s.peer) {
			return false
		}
	}
	return true
}

// sendCloses sends a close message to each peer to which this rank has sent a message or from which
// it has received one, unless the peer has failed or left or sendCloses has sent it one before.
// done says that Shutdown need not wait any longer: no operation is in flight, and each of these
// peers has answered, left or failed. again says that there was no slot, or no room in the fabric,
// for a close message, so that sendCloses must be called again soon.
func (d *domain) sendCloses() (done, again bool) {
	done = !d.inFlight() && len(d.pendingAcks) == 0
	if !done && !d.anyCloseSent() {
		// The first close message is sent when no operation is in flight and pendingAcks is empty.
		return false, false
	}
	for r := range d.peers {
		p := &d.peers[r]
		if !p.contacted || p.err != nil || p.closeAcked {
			continue
		}
		done = false
		if p.closeSent {
			d.probeInShutdown(transport.Addr(r))
			continue
		}
		switch d.control(transport.Addr(r), kindClose) {
		case controlSent:
			p.closeSent = true
		case controlAgain:
			again = true
		case controlFailed: // [domain.control] has marked the peer as down
		}
	}
	return done, again
}

// waitsFor says what keeps Shutdown waiting.
func (d *domain) waitsFor() string {
	var list []string
	for i := range d.arena.slots {
		s := &d.arena.slots[i]
		if p := &d.peers[s.peer]; s.what != opNone && (p.err == nil || p.closeReceived) {
			list = append(list, fmt.Sprintf("an operation with rank %d is in flight (%s)", s.peer, s.what))
		}
	}
	for _, r := range d.pendingAcks {
		list = append(list, fmt.Sprintf("the close message of rank %d has not been answered", r))
	}
	for r := range d.peers {
		switch p := &d.peers[r]; {
		case !p.contacted || p.err != nil || p.closeAcked:
		case p.closeSent:
			list = append(list, fmt.Sprintf("rank %d has not answered the close message", r))
		default:
			list = append(list, fmt.Sprintf("no close message has been sent to rank %d", r))
		}
	}
	const most = 4
	if n := len(list); n > most {
		list = append(list[:most], fmt.Sprintf("and %d more", n-most))
	}
	return strings.Join(list, ", ")
}

// inFlight reports whether an operation is in flight whose peer has not failed. It calls
// probeInShutdown for the peer of one such operation.
func (d *domain) inFlight() bool {
	if d.arena.busy == 0 {
		return false
	}
	for i := range d.arena.slots {
		s := &d.arena.slots[i]
		if s.what == opNone {
			continue
		}
		if p := &d.peers[s.peer]; p.err == nil || p.closeReceived {
			d.probeInShutdown(s.peer)
			return true
		}
	}
	return false
}

// probeInShutdown checks whether the process of peer r, for which Shutdown waits, has ended, and
// marks the peer as failed in that case, unless it has left. Shutdown calls it often, but it checks
// only when probeInterval has passed since the first call, and then every shutdownProbeInterval.
// The peer may have ended without reading this rank's close message. A provider reports that if an
// operation with the peer fails, so probeInShutdown sends the close message again. A peer that has
// it drops the second one.
func (d *domain) probeInShutdown(r transport.Addr) {
	p := &d.peers[r]
	now := time.Now()
	switch {
	case p.nextShutdownProbe.IsZero():
		p.nextShutdownProbe = now.Add(probeInterval)
	case now.After(p.nextShutdownProbe):
		p.nextShutdownProbe = now.Add(shutdownProbeInterval)
		switch {
		case r == d.cfg.Self:
		case d.peerGone(r):
			_ = d.peerDown(r, "shutdown", errRefused)
		case p.closeSent:
			p.sent-- // the close message is the last one that was sent
			if d.control(r, kindClose|kindRepeated) != controlSent {
				p.sent++
			}
		}
	}
}

// anyCloseSent reports whether this rank has sent a close message to any peer.
func (d *domain) anyCloseSent() bool {
	for r := range d.peers {
		if d.peers[r].closeSent {
			return true
		}
	}
	return false
}

// shutdownProbeInterval is the least time between two checks of a peer by probeInShutdown.
const shutdownProbeInterval = 2 * time.Second

// ackTimeout limits how long [domain.sendAcks] tries to acknowledge a close message if the fabric
// has no room, because the sender of the close message may have ended.
const ackTimeout = time.Second

// sendAcks acknowledges the close messages of the peers in pendingAcks. It removes a peer from
// pendingAcks and queues a PeerLeft for it when the acknowledgment is sent, has failed or has timed
// out. A peer to which this rank has sent its own close message needs no acknowledgment, because
// the peer takes that message for one.
func (d *domain) sendAcks() {
	kept := d.pendingAcks[:0]
	for _, r := range d.pendingAcks {
		p := &d.peers[r]
		if !p.closeSent && d.control(r, kindCloseAck) == controlAgain {
			if p.noRoomSince.IsZero() {
				p.noRoomSince = time.Now()
			}
			if time.Since(p.noRoomSince) < ackTimeout {
				kept = append(kept, r)
				continue
			}
		}
		d.done.Later(transport.Completion{Kind: transport.PeerLeft, Peer: r})
	}
	d.pendingAcks = kept
}

type controlResult int

const (
	controlSent   controlResult = iota
	controlAgain                // no slot was free, or the fabric had no room
	controlFailed               // the peer has failed or left
)

// control sends peer r a message of kind k without data: a close message or an acknowledgment.
func (d *domain) control(r transport.Addr, k kind) controlResult {
	a := d.arena
	i := a.acquire(opControl, r, nil)
	if i < 0 {
		return controlAgain
	}
	b := a.slotBuf(i)
	p := d.tokens(r)
	d.frame(p, k).put(b)
	a.slots[i].size = frameSize
	rc := d.postMessage(i)
	if rc == 0 {
		p.posted()
		return controlSent
	}
	a.free(i)
	if rc == fi.ErrAgain && (k == kindCloseAck || d.noRoom(r) == transport.ErrAgain) { //nolint:errorlint // noRoom does not wrap it
		return controlAgain
	}
	if rc != fi.ErrAgain {
		_ = d.peerDown(r, "send", fmt.Errorf("%w: %w", transport.ErrPeerDown, rc)) // it cannot learn the end of this rank
	}
	return controlFailed
}
