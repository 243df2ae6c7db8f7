//go:build linux && !portable

package shm

import "github.com/weft-hpc/weft/transport"

// completionQueue is the user's view of the domain's progress.
type completionQueue struct{ d *domain }

// What a Read takes from one ring at most, and after how many Reads some peers
// are looked at whether they have ended.
const (
	ringBatch  = 64
	checkEvery = 1024
)

// After so many looks at rings, those that were silent all the while leave the
// list: about 50 us of polling, however many there are. To come back costs a ring
// less than 1 us, once.
const retirePolls = 4096

// Read gives messages as views of the rings that they came through. Their lines
// are given back when the next Read comes to the ring.
//
// Hot path: no allocation, no lock, no system call but those of transfers.
func (q *completionQueue) Read(c []transport.Completion) (int, error) {
	d := q.d
	if d.closed {
		return 0, transport.ErrClosed
	}
	d.done.Begin(c)
	d.progress()
	return d.done.End(), nil
}

// progress moves everything on; busy says that transfers are under way that
// need further calls.
func (d *domain) progress() (busy bool) {
	if d.reads++; d.reads%checkEvery == 0 {
		d.checkSomePeers()
	}
	if d.loop.Waiting() {
		d.loop.Deliver(&d.done, d.rank, d.left)
	}
	if d.events == nil { // alone as yet
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
		// The ring that is looked at first changes. A peer that ends leaves the list.
		for i := range n {
			if uint(len(d.active)) != n {
				break
			}
			d.poll(d.active[(d.reads+i)%n])
		}
	}
	return d.advance()
}

// poll takes what has come from a peer.
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
			err = r.skip(b)
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

// silent is called when nothing more is there from a peer.
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
