//go:build libfabric

package libfabric

import (
	"context"
	"fmt"
	"time"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// Shutdown takes leave of each peer that messages have been exchanged with:
//
//	here:      wait for what is in flight ► bye ► wait for the ack, or a bye
//	the peer:  read up to bye ► ack ► PeerLeft
//
// so that everything has passed the peer's Read when it returns, and a
// connection that is closed then has nothing in it that a reset could destroy.
// Messages that come meanwhile are dropped; completions stay for the next Read.
func (e *endpoint) Shutdown(ctx context.Context) error {
	d := e.d
	if d.closed {
		return transport.ErrClosed
	}
	d.left, d.drop = true, true
	stop := context.AfterFunc(ctx, d.Signal)
	defer stop()
	for {
		d.progress()
		if d.broken != nil {
			return d.broken
		}
		done, again := d.takeLeave()
		if done {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("libfabric: shutdown: %w", err)
		}
		if d.arm() {
			limit := probeAfter // a peer that ends is not always told of
			if again {
				limit = lastNap // the fabric does not say when it has room
			}
			if err := d.wait(limit); err != nil {
				return err
			}
		}
	}
}

// takeLeave goes a step on with every peer; again: the fabric had no room.
func (d *domain) takeLeave() (done, again bool) {
	done = !d.inFlight() && len(d.owed) == 0
	if !done && !d.anyTold() {
		return false, false // what is in flight comes first
	}
	for r := range d.peers {
		p := &d.peers[r]
		if !p.met || p.err != nil || p.acked {
			continue
		}
		done = false
		if p.told {
			d.lookFor(transport.Addr(r))
			continue
		}
		switch d.control(transport.Addr(r), kindBye) {
		case controlSent:
			p.told = true
		case controlAgain:
			again = true
		case controlFailed: // and so has the peer
		}
	}
	return done, again
}

// inFlight says whether an operation has not ended, with a peer that is there.
func (d *domain) inFlight() bool {
	if d.arena.busy == 0 {
		return false
	}
	for i := range d.arena.slots {
		s := &d.arena.slots[i]
		if s.what == opNone {
			continue
		}
		if p := &d.peers[s.peer]; p.err == nil || p.left {
			d.lookFor(s.peer)
			return true
		}
	}
	return false
}

// lookFor gives a peer up that is waited for and is not there any more. It may
// have ended with our bye unread, of which not all providers tell.
func (d *domain) lookFor(r transport.Addr) {
	p := &d.peers[r]
	now := time.Now()
	switch {
	case p.look.IsZero():
		p.look = now.Add(probeEvery)
	case now.After(p.look):
		p.look = now.Add(lookEvery)
		if r != d.cfg.Self && d.refuses(r) {
			d.peerDown(r, "shutdown", errRefused)
		}
	}
}

// anyTold says whether leave-taking has begun.
func (d *domain) anyTold() bool {
	for r := range d.peers {
		if d.peers[r].told {
			return true
		}
	}
	return false
}

// lookEvery is how often a peer that is waited for is looked for.
const lookEvery = 2 * time.Second

// ackPatience is how long a bye is worth an answer: who sent it may be gone.
const ackPatience = time.Second

// answer acknowledges byes and then reports that the peers have left. Who has
// been told of our own leaving needs no answer.
func (d *domain) answer() {
	kept := d.owed[:0]
	for _, r := range d.owed {
		p := &d.peers[r]
		if !p.told && d.control(r, kindAck) == controlAgain {
			if p.stuck.IsZero() {
				p.stuck = time.Now()
			}
			if time.Since(p.stuck) < ackPatience {
				kept = append(kept, r)
				continue
			}
		}
		d.done.Later(transport.Completion{Kind: transport.PeerLeft, Peer: r})
	}
	d.owed = kept
}

type controlResult int

const (
	controlSent controlResult = iota
	controlAgain
	controlFailed
)

// control sends a message of our own.
func (d *domain) control(r transport.Addr, k kind) controlResult {
	a := d.arena
	i := a.take(opControl, r, nil)
	if i < 0 {
		return controlAgain
	}
	b := a.buf(i)
	p := d.tokens(r)
	d.frame(p, k).put(b)
	rc := d.raw.Send(a.address(b), frameSize, a.desc, d.av.at(r), a.context(i))
	if rc == 0 {
		p.posted()
		return controlSent
	}
	a.put(i)
	if rc == fi.ErrAgain && (k == kindAck || d.noRoom(r) == transport.ErrAgain) { //nolint:errorlint // returned bare
		return controlAgain
	}
	if rc != fi.ErrAgain {
		d.peerDown(r, "send", fmt.Errorf("%w: %w", transport.ErrPeerDown, rc))
	}
	return controlFailed
}
