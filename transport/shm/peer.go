package shm

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// peer is what a rank knows of one of its host, of itself too.
//
//	            card proves itself          it has left or died       its ring is empty
//	unknown ─────────────────────► met ───────────────────────► ending ──────────────► err set
//	   │                            └──────────── it broke the protocol ────────────►
//	   └────────────────────────────────────────────────────────────────────────────►
type peer struct {
	sleep *atomic.Uint32 // its card's
	out   outRing        // not mapped before the first message to it
	err   error          // why nothing can be done with it any more; reported

	rank    transport.Addr // in the world
	local   int            // among the ranks of the host
	page    *card
	gone    *atomic.Uint32 // not 0: the launcher has seen its process end
	card    *card          // the same, once it is found authentic
	pid     int            // its process, from then on
	in      inRing
	active  bool  // it has sent something: in is polled
	awaited bool  // it is to tell when it has come
	ending  error // it has ended for this reason; what it sent is still being read
	cut     bool  // given up by Disconnect: it may run, and is waited for no longer than one that is ending

	noticed atomic.Bool // ending or err is set: no Wait need end for it
}

// ended says whether the peer's process has ended, be it before it came, or its
// domain been closed.
func (p *peer) ended() bool { return p.page.alive.Load()&ownerDied != 0 || p.gone.Load() != 0 }

// target gives the peer that an operation is for, if it is there; else ErrAbsent.
func (d *domain) target(a transport.Addr) (*peer, error) {
	switch {
	case d.closed || d.left:
		return nil, transport.ErrClosed
	case uint64(a) >= uint64(len(d.peers)) || d.peers[a] == nil:
		return nil, &transport.Error{Provider: name, Op: "find", Peer: a, Err: transport.ErrAddress}
	}
	p := d.peers[a]
	if p.card != nil && p.err == nil {
		return p, nil
	}
	err := d.meet(p)
	if err == transport.ErrAgain && !p.awaited { //nolint:errorlint // the very value
		p.awaited = true
		p.page.awaited[d.self/64].Or(1 << (d.self % 64)) // and if it has come meanwhile, before it looked there:
		err = d.meet(p)
	}
	if err == transport.ErrAgain { //nolint:errorlint // the very value
		return nil, transport.ErrAbsent
	}
	return p, d.endOn(p, "connect", err)
}

// come tells all who have waited for this rank that it is there.
func (d *domain) come() {
	own := d.seg.card(d.self)
	own.state.Store(cardPresent)
	for i, p := range d.locals {
		if own.awaited[i/64].Load()&(1<<(i%64)) != 0 {
			d.tell(p, newsJoined)
		}
	}
}

// meet finds out whether a peer is there and proves itself. ErrAgain: it has
// not come yet. Any other error is a reason to give it up.
func (d *domain) meet(p *peer) error {
	if p.err != nil {
		return p.err
	}
	if p.card != nil {
		return nil
	}
	switch p.page.state.Load() {
	case cardAbsent, cardTaken:
		return transport.ErrAgain
	case cardPresent, cardLeft:
	default:
		return breach(errState)
	}
	var c wire.ShmCard
	b := p.page.identity // its owner writes it no more
	if !c.Parse(b[:wire.ShmCardSize], &d.job) || c.Rank != uint32(p.rank) || c.Size != uint32(d.size) || c.PID == 0 || c.PID > 1<<31-1 {
		return breach(errCard)
	}
	p.pid, p.card = int(c.PID), p.page
	return nil
}

// connect makes sure that messages can be written for a peer.
func (d *domain) connect(p *peer) error {
	if p.out.lines != nil {
		return p.err
	}
	if err := d.meet(p); err != nil {
		return d.endOn(p, "connect", err)
	}
	if d.lookAt(p); p.err != nil {
		return p.err
	}
	mem, err := d.seg.mapFile(d.seg.ring(d.self, p.local), int(d.seg.ringSize()))
	if err != nil {
		return d.peerError("connect", p.rank, err)
	}
	p.out.init(mem, d.start)
	p.page.joined[d.self/64].Or(1 << (d.self % 64))
	d.tell(p, newsJoined)
	return nil
}

// tell has a peer look at what is new.
func (d *domain) tell(p *peer, what uint32) {
	p.page.news.Add(what)
	if p.sleep.Load() == asleep {
		d.wake(p)
	}
}

// endOn ends a peer for any error but ErrAgain, and gives the error to answer.
func (d *domain) endOn(p *peer, op string, err error) error {
	if err == nil || err == transport.ErrAgain || p.err != nil { //nolint:errorlint // the very values
		return err
	}
	d.over(p, d.peerError(op, p.rank, err))
	return p.err
}

// takeNews looks at all that news may stand for.
func (d *domain) takeNews(news uint32) {
	states := news/newsState != d.newsSeen/newsState
	d.newsSeen = news
	own := d.seg.card(d.self)
	for w := range (len(d.locals) + 63) / 64 {
		for set := own.joined[w].Load(); set != 0; set &= set - 1 {
			if i := w*64 + bits.TrailingZeros64(set); i < len(d.locals) {
				d.admit(d.locals[i])
			}
		}
	}
	if !states {
		return
	}
	for _, p := range d.locals {
		d.lookAt(p)
	}
}

// admit begins to poll the ring from a peer that has sent.
func (d *domain) admit(p *peer) {
	if p.active || p.err != nil || p.local == d.self {
		return
	}
	if err := d.meet(p); err != nil {
		if err == transport.ErrAgain { //nolint:errorlint // the very value
			err = breach(errState) // it sends before it is there
		}
		d.over(p, d.peerError("receive", p.rank, err))
		return
	}
	p.in.init(d.seg.ringFrom(p.local), d.start)
	p.active = true
	d.active = append(d.active, p)
}

// lookAt sees whether a peer has ended.
func (d *domain) lookAt(p *peer) {
	if p.err != nil || p.ending != nil || p.local == d.self {
		return
	}
	// In this order: it leaves before it ends.
	ended := p.ended()
	state := p.page.state.Load()
	switch {
	case state == cardLeft:
		p.ending = transport.ErrPeerLeft
	case state > cardLeft:
		d.over(p, d.peerError("receive", p.rank, breach(errState)))
		return
	case ended:
		p.ending = errDied
	case p.page.refused[d.self/64].Load()&(1<<(d.self%64)) != 0:
		d.over(p, d.peerError("receive", p.rank, errGivenUp))
		return
	default:
		return
	}
	d.notice(p)
	// What it sent first of all may not have been noticed.
	if d.seg.card(d.self).joined[p.local/64].Load()&(1<<(p.local%64)) != 0 {
		d.admit(p)
	}
	if !p.active && p.err == nil {
		d.over(p, d.peerError("receive", p.rank, p.ending))
	}
}

// notice is called when a peer's end has been noted. From now on a Wait does not
// look for it, and the one that is must end so that a Read reports it.
func (d *domain) notice(p *peer) {
	p.noticed.Store(true)
	d.stir()
}

// lookAtSome looks whether peers have ended, at some of them each time.
func (d *domain) lookAtSome() {
	for range min(len(d.locals), 64) {
		if d.lookNext++; d.lookNext >= len(d.locals) {
			d.lookNext = 0
		}
		d.lookAt(d.locals[d.lookNext])
	}
}

// over ends a peer for good and reports it. What it has sent and what has not
// been read by now is dropped.
func (d *domain) over(p *peer, err error) {
	if p.err != nil {
		return
	}
	p.err = err
	d.notice(p)
	kind := transport.PeerDown
	if p.ending == transport.ErrPeerLeft { //nolint:errorlint // we set it
		kind = transport.PeerLeft
	}
	if p.active {
		p.active = false
		for i, q := range d.active {
			if q == p {
				d.active = append(d.active[:i], d.active[i+1:]...)
				break
			}
		}
	}
	if p.ending == nil { // it may live
		d.seg.card(d.self).refused[p.local/64].Or(1 << (p.local % 64))
		d.tell(p, newsState)
	}
	d.dropTransfers(p, err)
	d.emit(transport.Completion{Kind: kind, Peer: p.rank, Err: err})
}

// Disconnect gives a peer up. If its process runs it finds that on its card.
func (e *endpoint) Disconnect(a transport.Addr) error {
	d := e.d
	switch {
	case d.closed || d.left:
		return transport.ErrClosed
	case uint64(a) >= uint64(len(d.peers)) || d.peers[a] == nil || a == d.rank:
		return &transport.Error{Provider: name, Op: "disconnect", Peer: a, Err: transport.ErrAddress}
	}
	p := d.peers[a]
	p.cut = true
	d.over(p, d.peerError("disconnect", a, errCut))
	return nil
}

// breached gives up a peer that has done what no correct peer does; how wraps
// ErrProtocol.
func (d *domain) breached(p *peer, how error) {
	d.over(p, d.peerError("receive", p.rank, fmt.Errorf("%w: %w", transport.ErrPeerDown, how)))
}
