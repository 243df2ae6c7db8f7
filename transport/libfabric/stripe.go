//go:build libfabric

package libfabric

import (
	"fmt"
	"slices"
	"time"

	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// Divided reads and writes
//
// A rank with several NICs divides a read or write of at least domain.stripeMin bytes among them:
//
//	op.Data    │ part 0 │ part 1 │ …
//	               │        │
//	             lane 0   lane 1  ──► lanes 0, 1, … of the peer
//	               │        │
//	               │        └── the lane has no room, or the part has failed ──┐
//	               └── complete ──► lane 0 takes the next of these parts ◄─────┘
//
// Lane k of this rank reaches lane k of the peer. If one of the two has fewer lanes, the others of the
// other one are not used. A part for which its lane has no room stays in division.todo, and both its lane
// and lane 0, the main lane, are tried until one of them takes it; after a failure of any lane only the main
// lane is tried. So a lane that takes no operations, for
// example because it makes a connection, only slows the rank down. If a part fails in a lane and then
// succeeds in the main lane, the endpoint reports that once, by a PeerNotice, and uses the main lane only for
// that peer: the NIC may have failed, or the peer may have registered its memory in the main lane only. A
// failure in the main lane is that of the operation. If a part stays in flight, so does the operation.

// partMin is the size in bytes to a multiple of which the parts are rounded up, except the last one.
const partMin = 64

// division is the state of a read or write that is divided. The zero value is that of one that is not.
type division struct {
	parts  int   // number of parts, which is also the number of lanes
	size   int   // size of each part in bytes, except the last one, which ends at total
	total  int   // number of bytes of the operation
	todo   uint8 // bit k: part k is not posted
	others uint8 // bit k: part k is in flight in lane k, which is not the main lane
	inMain bool  // a part is in flight in the main lane
	waits  bool  // the slot is in domain.waiting
	err    error // the failure of the operation; nil: there was none so far
	lost   error // the first failure of another lane than the main one
}

// divide divides an operation of total bytes, at least partMin, into at most n parts.
func divide(total, n int) division {
	size := ((total+n-1)/n + partMin - 1) / partMin * partMin
	return division{parts: (total + size - 1) / size, size: size, total: total}
}

// bounds returns where part k begins and ends in the data.
func (v *division) bounds(k int) (from, to int) {
	return k * v.size, min((k+1)*v.size, v.total)
}

// mainDone records that a part in the main lane has ended, with the result err.
func (d *domain) mainDone(i int, err error) {
	v := &d.arena.slots[i].div
	if !v.inMain {
		return // the provider reported the operation twice
	}
	v.inMain = false
	if v.err == nil {
		v.err = err
	}
	d.advance(i)
}

// otherDone records that the part in the lane with index k, not the main lane, has ended. i is the index of
// its [slot], or -1 if no slot has the completion's context. e is the failure; nil: there is none.
func (d *domain) otherDone(i, k int, e *fi.RawError) {
	if i < 0 || d.arena.slots[i].div.others&(1<<k) == 0 {
		return // the provider has reported the operation twice, or it reports an access by a peer
	}
	v := &d.arena.slots[i].div
	v.others &^= 1 << k
	if e != nil {
		v.todo |= 1 << k
		v.lose(d, k, e)
	}
	d.advance(i)
}

// lose records that a part has failed in the lane with index k because of cause.
func (v *division) lose(d *domain, k int, cause error) {
	if v.lost == nil {
		v.lost = fmt.Errorf("%s on %s: %w", d.attr.Provider, d.lanes[k].info.Domain.Name, cause)
	}
}

// advance posts the parts of the operation in the [slot] with index i for which there is room, or ends the
// operation if no part is left.
func (d *domain) advance(i int) {
	s := &d.arena.slots[i]
	v := &s.div
	if v.todo != 0 && v.err == nil {
		v.err = d.postTodo(i)
	}
	switch {
	case v.todo != 0 && v.err == nil:
		if !v.waits {
			v.waits = true
			d.waiting = append(d.waiting, i)
		}
		return
	case v.inMain || v.others != 0:
		return
	case v.waits:
		d.waiting = slices.DeleteFunc(d.waiting, func(j int) bool { return j == i })
	}
	if p := &d.peers[s.peer]; v.err == nil && v.lost != nil && !p.narrow {
		p.narrow = true
		d.done.Later(transport.Completion{Kind: transport.PeerNotice, Peer: -1, Err: d.peerError(s.what.String(), s.peer,
			fmt.Errorf("the rank uses only %s with this peer from now on, because of a failure: %w", d.info.Domain.Name, v.lost))})
	}
	d.slotDone(i, v.err)
}

// postTodo posts those parts of the operation in the [slot] with index i that are not posted, as far as
// there is room. Its error is that of the operation.
func (d *domain) postTodo(i int) error {
	s := &d.arena.slots[i]
	v := &s.div
	if err := d.peers[s.peer].err; err != nil {
		return err
	}
	for k := 1; k < v.parts; k++ {
		if v.todo&(1<<k) == 0 {
			continue
		}
		if v.lost == nil { // after a failure the main lane finds out whether the peer has failed
			rc := d.postPart(i, k, k)
			if rc == 0 {
				v.todo &^= 1 << k
				v.others |= 1 << k
				d.lanes[k].parts++
				continue
			}
			if rc != fi.ErrAgain {
				v.lose(d, k, rc)
			}
		}
		if v.inMain {
			continue
		}
		switch rc := d.postPart(i, k, 0); rc {
		case 0:
			v.todo &^= 1 << k
			v.inMain = true
			d.peers[s.peer].clearNoRoom()
		case fi.ErrAgain:
			if err := d.noRoom(s.peer); err != transport.ErrAgain { //nolint:errorlint // noRoom does not wrap it
				return err
			}
			return nil
		default:
			return d.postFailed(s.peer, s.what.String(), rc)
		}
	}
	return nil
}

// postWaiting posts parts for which there was no room.
func (d *domain) postWaiting() {
	n := len(d.waiting)
	for _, i := range d.waiting[:n] {
		d.arena.slots[i].div.waits = false
		d.advance(i) // may append i again
	}
	d.waiting = slices.Delete(d.waiting, 0, n)
}

// pauseWaiting makes the timer of [domain.openPoll] end a Wait when postWaiting is to be called again. If every
// operation in domain.waiting has a part in flight in the main lane, no timer is needed, because the
// completion of that part calls advance. Otherwise the provider need not report when it has room.
func (d *domain) pauseWaiting() {
	if !slices.ContainsFunc(d.waiting, func(i int) bool { return !d.arena.slots[i].div.inMain }) {
		d.waitPause, d.waitDue = 0, time.Time{}
		return
	}
	now := time.Now()
	if now.Before(d.waitDue) {
		return // the timer is set
	}
	d.waitPause = min(max(2*d.waitPause, firstPause), lastPause)
	d.waitDue = now.Add(d.waitPause)
	d.setTimer()
}

// pollOthers reads the queues of the lanes except the main one. If the provider makes progress only in
// calls, that also serves reads and writes of peers. It returns an error if a queue cannot be read any
// more: then nothing is known about the parts in flight, whose memory the NIC may still use.
func (d *domain) pollOthers() error {
	for k := 1; k < len(d.lanes); k++ {
		l := d.lanes[k]
		entries, rc := l.raw.Poll(0, fi.Desc{}, batch, 1)
		for j := range entries {
			d.otherDone(l.slot(entries[j].Context), k, nil)
		}
		switch rc {
		case 0, fi.ErrAgain, fi.ErrInterrupted:
			continue
		case fi.ErrAvail:
			for range maxFailures {
				e := l.raw.ReadErr()
				if e == nil {
					break
				}
				if e.Err == fi.ErrOverrun {
					return d.queueFailed(l, e)
				}
				d.otherDone(l.slot(e.Context), k, e)
			}
		default:
			return d.queueFailed(l, rc)
		}
	}
	return nil
}
