//go:build linux && !portable

package shm

import (
	"iter"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// peer holds what this rank knows about one rank of its host, which may be this rank itself. A
// peer has these states (its [card] is the page on which it proves that it belongs to the job):
//
//	            card is authentic           it has left or died       its ring is empty
//	unknown ─────────────────► authenticated ─────────────────► ending ──────────────► err set
//	   │                            └──────────── it broke the protocol ────────────►
//	   └────────────────────────────────────────────────────────────────────────────►
type peer struct {
	sleep  *atomic.Uint32 // card.sleep of the peer: whether the peer sleeps
	polled *atomic.Uint64 // the word of card.polled of the peer that has this rank's bit
	out    outRing        // the ring to the peer; not mapped before this rank first sends to it
	// err is nil until PeerDown or PeerLeft was reported. Then it is the reason why no operation
	// with the peer is possible any more.
	err error

	rank  transport.Addr // the peer's rank in the world
	local int            // the peer's local rank
	// page is the peer's card. Its identity may be anything until [domain.authenticate] has
	// checked it.
	page   *card
	reach  reach          // whether this rank can copy from and to the peer's memory
	state  *rankState     // whether the peer has joined, left or died
	exited *atomic.Uint32 // not 0: the launcher has noted that the peer's process has ended
	card   *card          // page, once authenticate has checked it; nil before
	// The peer's process id in its own pid namespace, once authenticate has checked its card; 0 before.
	// If reach is reachDirect, it is also the id of the peer's process in the namespace of this rank.
	pid      int
	in       inRing // the ring from the peer; its zero value until this rank first polls the ring
	isWaiter bool   // this rank has set its bit in card.waiters of the peer
	// ending is the reason why the peer has ended, or nil if no end is known. This rank reads
	// what the peer has sent before it sets err.
	ending error
	// disconnected: Disconnect was called. The peer's process may still run, but this rank waits
	// for it only as long as for a peer that has ended.
	disconnected bool
	endSeen      time.Time // when mayRun has first found that the peer has ended; zero: it has not
}

// local returns the peer with a local rank. It makes the peer at its first use, because most
// ranks of a host never communicate with each other.
func (d *domain) local(i int) *peer {
	p := d.locals[i]
	if p == nil {
		c := d.seg.card(i)
		p = &peer{rank: d.ranks[i], local: i, page: c, state: d.seg.state(i), exited: d.seg.ended(i), sleep: &c.sleep, polled: &c.polled[d.self/64]}
		d.locals[i], d.peers[p.rank] = p, p
	}
	return p
}

// localOf returns the local rank of a world rank, or -1 if that rank is not on this host or
// the ranks of the host are not known yet.
func (d *domain) localOf(a transport.Addr) int {
	if a < 0 || int(a) >= d.size {
		return -1
	}
	if len(d.ranks) == d.size {
		return int(a) // the job has one host
	}
	i, ok := slices.BinarySearch(d.ranks, a)
	if !ok {
		return -1
	}
	return i
}

// peer returns the peer with a world rank, or nil if [domain.localOf] returns -1.
func (d *domain) peer(a transport.Addr) *peer {
	if i := d.localOf(a); i >= 0 {
		return d.local(i)
	}
	return nil
}

// ended reports whether the peer's process has ended, perhaps before it joined, or has
// closed its domain.
func (p *peer) ended() bool { return p.state.alive.Load()&ownerDied != 0 || p.exited.Load() != 0 }

// target returns the peer with world rank a, for an operation with it. If the peer has not joined
// yet, target returns ErrAbsent, and the peer will wake this rank when it joins. If the peer's card
// is not authentic, target closes the peer.
func (d *domain) target(a transport.Addr) (*peer, error) {
	if d.closed || d.left {
		return nil, transport.ErrClosed
	}
	p := d.peer(a)
	if p == nil {
		return nil, &transport.Error{Provider: name, Op: "find", Peer: a, Err: transport.ErrAddress}
	}
	if p.card != nil && p.err == nil {
		return p, nil
	}
	err := d.authenticate(p)
	if err == transport.ErrAgain && !p.isWaiter { //nolint:errorlint // the very value
		p.isWaiter = true
		// Check again after this: a peer that has joined before it does not see the bit.
		p.page.waiters[d.self/64].Or(1 << (d.self % 64))
		err = d.authenticate(p)
	}
	if err == transport.ErrAgain { //nolint:errorlint // the very value
		return nil, transport.ErrAbsent
	}
	return p, d.closeOnError(p, "connect", err)
}

// announce marks that this rank has joined, and signals the ranks that wait for that.
func (d *domain) announce() {
	own := d.seg.card(d.self)
	// Swap is a full barrier, even with -race, because [domain.target] sets the bit in waiters
	// before it loads the state again.
	d.seg.state(d.self).state.Swap(cardPresent)
	for i := range d.each(&own.waiters, false) {
		d.signalPeer(d.local(i), eventRing)
	}
}

// each yields the local ranks whose bits are set in a bitmap. If take is true, each
// clears the bits of a word before it yields their ranks.
func (d *domain) each(bitmap *[bitWords]atomic.Uint64, take bool) iter.Seq[int] {
	return func(yield func(int) bool) {
		for w := range (len(d.locals) + 63) / 64 {
			set := bitmap[w].Load()
			if take && set != 0 {
				set = bitmap[w].Swap(0)
			}
			for ; set != 0; set &= set - 1 {
				if i := w*64 + bits.TrailingZeros64(set); i < len(d.locals) && !yield(i) {
					return
				}
			}
		}
	}
}

// authenticate checks that a peer has joined and that its card is authentic, and sets p.card and
// p.pid. If the peer's end was reported before, it returns p.err. If the peer has not joined yet,
// it returns ErrAgain. After any other error, the caller must close the peer, or leave that to its
// next operation with the peer.
func (d *domain) authenticate(p *peer) error {
	if p.err != nil {
		return p.err
	}
	if p.card != nil {
		return nil
	}
	switch p.state.state.Load() {
	case cardAbsent, cardTaken:
		return transport.ErrAgain
	case cardPresent, cardLeft:
	default:
		return protocolError(errState)
	}
	var c wire.ShmCard
	b := p.page.identity // its owner does not change it any more
	if !c.Parse(b[:wire.ShmCardSize], &d.job) || c.Rank != uint32(p.rank) || c.Size != uint32(d.size) || c.PID == 0 || c.PID > 1<<31-1 {
		return protocolError(errCard)
	}
	p.pid, p.card = int(c.PID), p.page
	return nil
}

// connect maps the ring to a peer, unless it is mapped. If the peer has ended, connect returns the
// reason.
func (d *domain) connect(p *peer) error {
	if p.out.lines != nil {
		return p.err
	}
	if err := d.authenticate(p); err != nil {
		return d.closeOnError(p, "connect", err)
	}
	if d.checkPeer(p); p.err != nil {
		return p.err
	}
	mem, err := d.seg.mapFile(d.seg.ring(d.self, p.local), int(d.seg.ringSize()))
	if err != nil {
		return d.peerError("connect", p.rank, err)
	}
	p.out.init(mem, d.start, &d.wholeLeft)
	return nil
}

// alert makes a peer poll the ring from this rank, and wakes the peer if it sleeps. The caller
// has published a message in that ring, and has found that the peer does not poll the ring or
// sleeps.
func (d *domain) alert(p *peer) {
	if p.polled.Load()&d.bit == 0 {
		p.polled.Or(d.bit)
		p.page.events.Add(eventRing)
	}
	if p.sleep.Load() == asleep {
		d.wakePeer(p)
	}
}

// signalPeer adds what, which is eventRing or eventState, to card.events of a peer and wakes the
// peer if it sleeps. For eventState it first sets this rank's bit in card.changed of the peer.
func (d *domain) signalPeer(p *peer, what uint32) {
	if what == eventState {
		p.page.changed[d.self/64].Or(d.bit)
	}
	p.page.events.Add(what)
	if p.sleep.Load() == asleep {
		d.wakePeer(p)
	}
}

// closeOnError closes a peer if err is neither nil nor ErrAgain, and returns the error that the
// operation op must return.
func (d *domain) closeOnError(p *peer, op string, err error) error {
	if err == nil || err == transport.ErrAgain || p.err != nil { //nolint:errorlint // the very values
		return err
	}
	d.closePeer(p, d.peerError(op, p.rank, err))
	return p.err
}

// takeEvents handles a new value of this rank's card.events. From now on this rank polls the rings
// whose senders have set their bit in card.polled. If states have changed, takeEvents also checks
// the peers that have set their bit in card.changed.
func (d *domain) takeEvents(events uint32) {
	states := events/eventState != d.eventsSeen/eventState
	d.eventsSeen = events
	own := d.seg.card(d.self)
	for w := range (len(d.locals) + 63) / 64 {
		for set := own.polled[w].Load() &^ d.listed[w]; set != 0; set &= set - 1 {
			if i := w*64 + bits.TrailingZeros64(set); i < len(d.locals) {
				d.admit(d.local(i))
			}
		}
	}
	if !states {
		return
	}
	for i := range d.each(&own.changed, true) {
		d.checkPeer(d.local(i))
	}
}

// isListed reports whether the ring from a peer is polled.
func (d *domain) isListed(p *peer) bool { return d.listed[p.local/64]&(1<<(p.local%64)) != 0 }

// admit adds the ring from a peer to the rings that this rank polls. The peer has signalled that it
// has sent a message, or may have done so before it ended. If the peer's card is not authentic,
// admit closes the peer.
func (d *domain) admit(p *peer) {
	if d.isListed(p) || p.err != nil || p.local == d.self {
		return
	}
	if err := d.authenticate(p); err != nil {
		if err == transport.ErrAgain { //nolint:errorlint // the very value
			err = protocolError(errState) // the peer has sent before it joined
		}
		d.closePeer(p, d.peerError("receive", p.rank, err))
		return
	}
	if p.in.lines == nil {
		p.in.init(d.seg.ringFrom(p.local), d.start)
	}
	d.listed[p.local/64] |= 1 << (p.local % 64)
	d.active = append(d.active, p)
}

// unlist records that this rank does not poll the ring from a peer any more. The caller removes
// the peer from active.
func (d *domain) unlist(p *peer) { d.listed[p.local/64] &^= 1 << (p.local % 64) }

// retire stops the polling of rings from which no message was read since the previous call of
// retire. At least one ring stays in active. So a rank that communicates with one peer at a time
// does not have to add that peer's ring again and again.
func (d *domain) retire() {
	d.ringPolls = 0
	kept := d.active[:0]
	for i, p := range d.active {
		r := &p.in
		silent := r.pos == r.mark && p.ending == nil
		r.mark = r.pos
		if only := len(kept) == 0 && i == len(d.active)-1; silent && !only && d.tryUnlist(p) {
			continue
		}
		kept = append(kept, p)
	}
	clear(d.active[len(kept):])
	d.active = kept
}

// tryUnlist stops the polling of an empty ring and returns true. If a message arrives meanwhile, it
// returns false, and the ring is still polled. First it publishes all lines that were read as free,
// because the sender may wait for room; so the caller must not use messages of the ring any more.
// The comment on card.polled says why the order of the other steps matters. The caller removes the
// peer from active.
func (d *domain) tryUnlist(p *peer) bool {
	r := &p.in
	if r.free = r.pos; r.free != r.published {
		r.publishFree()
	}
	word, bit := &d.seg.card(d.self).polled[p.local/64], uint64(1)<<(p.local%64)
	word.And(^bit)
	if r.waiting() {
		word.Or(bit)
		return false
	}
	d.unlist(p)
	return true
}

// checkPeer checks whether a peer has left, has died or refuses this rank. A peer that refuses this
// rank is closed at once. A peer that has left or died is closed when this rank has read all
// messages from it.
func (d *domain) checkPeer(p *peer) {
	if p.err != nil || p.ending != nil || p.local == d.self {
		return
	}
	// In this order, because a rank that leaves does so before its process ends.
	ended := p.ended()
	state := p.state.state.Load()
	switch {
	case state == cardLeft:
		p.ending = transport.ErrPeerLeft
	case state > cardLeft:
		d.closePeer(p, d.peerError("receive", p.rank, protocolError(errState)))
		return
	case ended:
		p.ending = errDied
	case d.refusedBy(p.local):
		d.closePeer(p, d.peerError("receive", p.rank, errRefused))
		return
	default:
		return
	}
	d.markEnd(p)
	// The peer's last message may lie in a ring that is not polled, because the peer may have
	// ended before it set its bit. If this rank has never read from the ring and the bit is
	// clear, no Send into the ring has returned, so it need not be read.
	if p.in.lines != nil || d.seg.card(d.self).polled[p.local/64].Load()&(1<<(p.local%64)) != 0 {
		d.admit(p)
	}
	if !d.isListed(p) && p.err == nil {
		d.closePeer(p, d.peerError("receive", p.rank, p.ending))
	}
}

// refusedBy reports whether a local rank refuses this one, because it has called Disconnect for
// this rank or has found a protocol error of this rank.
func (d *domain) refusedBy(local int) bool {
	return d.seg.card(d.self).refused[local/64].Load()&(1<<(local%64)) != 0
}

// markEnd records that this rank knows that a peer has ended. Later Waits do not check that peer.
// A Wait under way ends, so that a Read reports the peer's end.
func (d *domain) markEnd(p *peer) {
	d.endKnown[p.local/64].Or(1 << (p.local % 64))
	d.wakeWaiter()
}

// knowsEnd reports whether markEnd has been called for a local rank. Any goroutine may call it.
func (d *domain) knowsEnd(local int) bool {
	return d.endKnown[local/64].Load()&(1<<(local%64)) != 0
}

// checkSomePeers checks whether peers have ended: up to 64 peers in each call, in turn.
func (d *domain) checkSomePeers() {
	for range min(len(d.locals), 64) {
		if d.nextCheck++; d.nextCheck >= len(d.locals) {
			d.nextCheck = 0
		}
		i := d.nextCheck
		if !d.knowsEnd(i) && (d.seg.endedOrLeft(i) || d.refusedBy(i)) {
			d.checkPeer(d.local(i))
		}
	}
}

// closePeer ends all communication with a peer for the reason err. It reports PeerLeft if the peer
// has called Shutdown, else PeerDown. It drops the messages of the peer that this rank has not
// read.
func (d *domain) closePeer(p *peer, err error) {
	if p.err != nil {
		return
	}
	p.err = err
	d.markEnd(p)
	kind := transport.PeerDown
	if p.ending == transport.ErrPeerLeft { //nolint:errorlint // checkPeer sets this very value
		kind = transport.PeerLeft
	}
	if d.isListed(p) {
		d.unlist(p)
		i := slices.Index(d.active, p)
		d.active = slices.Delete(d.active, i, i+1)
	}
	if p.ending == nil { // the peer may still run
		p.page.refused[d.self/64].Or(d.bit)
		d.signalPeer(p, eventState)
	}
	d.dropTransfers(p, err)
	d.emit(transport.Completion{Kind: kind, Peer: p.rank, Err: err})
}

// Disconnect marks a peer as failed. If the peer still runs, it finds this rank's bit in refused of
// its own card, and reports this rank as down.
func (e *endpoint) Disconnect(a transport.Addr) error {
	d := e.d
	if d.closed || d.left {
		return transport.ErrClosed
	}
	p := d.peer(a)
	if p == nil || a == d.rank {
		return &transport.Error{Provider: name, Op: "disconnect", Peer: a, Err: transport.ErrAddress}
	}
	p.disconnected = true
	d.closePeer(p, d.peerError("disconnect", a, errDisconnected))
	return nil
}
