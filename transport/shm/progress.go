//go:build linux && !portable

package shm

import "github.com/weft-hpc/weft/transport"

// completionQueue is the domain's completion queue.
type completionQueue struct{ d *domain }

const (
	ringBatch  = 64   // the most messages that a Read takes from one ring
	checkEvery = 1024 // number of Reads from one call of [domain.checkSomePeers] to the next
)

// retirePolls is the number of polls of rings from one call of [domain.retire] to the next. It
// takes about 50 us to make these polls, regardless of the number of rings. To poll a ring again
// after retire has removed it costs less than 1 us.
const retirePolls = 4096

// Read returns messages as slices of the rings that they came through. The next Read frees the
// lines of the ring that hold them.
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

// progress delivers messages, handles events and continues reads and writes. busy reports that
// reads or writes of this rank, or of peers that this rank helps, need further calls.
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

// poll takes up to ringBatch messages from the ring from a peer. It frees the lines of the messages
// that it took at earlier calls.
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

// silent handles an empty ring: it publishes freed lines from time to time, and if the peer has
// ended, it closes the peer, because no message of the peer is left.
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
