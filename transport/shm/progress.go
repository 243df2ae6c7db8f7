//go:build linux && !portable

package shm

import "github.com/weft-hpc/weft/transport"

// completionQueue is the domain's completion queue.
type completionQueue struct{ d *domain }

const (
	ringBatch  = 64   // most messages that a Read takes from one ring
	checkEvery = 1024 // Reads between two calls of checkSomePeers
)

// retirePolls is the number of polls of rings after which the rings that were silent all
// the time are not polled any more: about 50 us of polling, however many rings there
// are. To list a ring again costs less than 1 us.
const retirePolls = 4096

// Read returns messages as views of the rings that they came through. The next Read of
// the ring frees their lines.
//
// Hot path: no allocation, no lock, no system call except for transfers.
func (q *completionQueue) Read(c []transport.Completion) (int, error) {
	d := q.d
	if d.closed {
		return 0, transport.ErrClosed
	}
	d.done.Begin(c)
	d.progress()
	return d.done.End(), nil
}

// progress delivers messages and events and advances transfers. busy reports that transfers
// under way need further calls.
func (d *domain) progress() (busy bool) {
	if d.reads++; d.reads%checkEvery == 0 {
		d.checkSomePeers()
	}
	if d.loop.Waiting() {
		d.loop.Deliver(&d.done, d.rank, d.left)
	}
	if d.events == nil { // before join
		return false
	}
	if events := d.events.Load(); events != d.eventsSeen {
		d.takeEvents(events)
	}
	switch n := uint(len(d.active)); n {
	case 0:
	case 1:
		d.poll(d.active[0])
	default:
		if d.ringPolls += n; d.ringPolls >= retirePolls {
			d.retire()
			n = uint(len(d.active))
		}
		// Each Read begins at another ring. A poll may remove a peer that has ended from active.
		for i := range n {
			if uint(len(d.active)) != n {
				break
			}
			d.poll(d.active[(d.reads+i)%n])
		}
	}
	return d.advance()
}

// poll takes up to ringBatch messages from a peer's ring.
//
// Hot path: no allocation, no lock, no system call.
func (d *domain) poll(p *peer) {
	r := &p.in
	r.free = r.pos
	if r.free-r.published > r.batch {
		r.publishFree()
	}
	for range ringBatch {
		if d.done.Full() && !d.left {
			return
		}
		b, kind, err := r.next()
		switch {
		case kind == kindMessage:
			if !d.left {
				d.done.Out = append(d.done.Out, transport.Completion{Kind: transport.RecvDone, Peer: p.rank, Msg: b})
			}
			continue
		case err != nil:
			err = protocolError(err)
		case kind == 0:
			d.silent(p)
			return
		case kind >= firstControl:
			err = d.control(p, kind, b)
		case kind == kindSkip:
			if err = r.skip(b); err != nil {
				err = protocolError(err)
			}
		default:
			err = protocolError(errWord)
		}
		if err != nil {
			d.closePeer(p, d.peerError("receive", p.rank, err))
			return
		}
		if p.err != nil {
			return
		}
	}
}

// silent is called when a peer's ring is empty.
func (d *domain) silent(p *peer) {
	r := &p.in
	if r.free != r.published {
		if r.idle++; r.idle >= publishIdle {
			r.publishFree()
		}
	}
	if p.ending != nil {
		d.closePeer(p, d.peerError("receive", p.rank, p.ending))
	}
}
