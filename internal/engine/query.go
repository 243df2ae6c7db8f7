package engine

import (
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Queries of peers that a call waits for
//
// On some transports a rank detects the end of a peer only by its connection with the peer, and on
// others only by an operation with the peer (no CapPeerDown). And it learns that a peer is in Finalize
// from a message of the peer. If the two ranks have never exchanged a message, there may be no
// connection, and this rank detects neither. So if a call waits for a peer for a long time, the engine
// connects with the peer and sends it an empty message (MsgCredit):
//
//	receive, probe, Await, Port.Await, send whose receiver has to answer
//	   └── waits at two calls of QueryPeers ─► Connect ──► refused: PeerDown
//	                                         │    └──────► accepted: will report the peer's end
//	                                         └► MsgCredit ► a peer in Finalize answers MsgLeave
//
// Without CapPeerDown, each further call of QueryPeers sends another message, whose failure reports the
// peer's end.
//
// A wait may name its peer. If it is for any source, the engine connects with a few members of the
// group at each call of QueryPeers. So a large job in which one rank is late does not connect all
// ranks with all at once.

// membersAtOnce is the number of members of a group that one call of QueryPeers connects with, for
// each wait for any source.
const membersAtOnce = 8

// probeQuery describes a nonblocking probe: its context, and the key of the message that it looks
// for. The zero probeQuery stands for no probe.
type probeQuery struct {
	c   *Context // nil in the zero probeQuery
	key matchKey
}

// peerQuery is the state that QueryPeers keeps from one call to the next. In addition, the field
// longWait of requests, of ports, and of waiters in Probe and Context.Await says that a call of
// QueryPeers has found them waiting.
type peerQuery struct {
	// The last nonblocking probe that has found nothing since the last call of QueryPeers; zero: there
	// was none.
	probe     probeQuery
	lastProbe probeQuery // value of probe at the last call of QueryPeers
	calls     uint64     // number of calls of QueryPeers
	// For waits for any source: offset of the first member that connectGroup connects with at the next
	// call.
	nextMember int
}

// QueryPeers connects with the peers for which a receive, a probe, a Context.Await, a Port.Await or a
// send whose receiver has to answer has waited since the last call of QueryPeers. So these waits end if
// the peer ends, or is in Finalize. The caller calls QueryPeers at intervals. A wait that is shorter
// than an interval makes no connection.
func (e *Engine) QueryPeers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &e.query
	if e.closed || e.fatal != nil {
		return
	}
	q.nextMember += membersAtOnce
	q.calls++
	e.posted.each(func(r *request) {
		if r.longWait {
			e.connectGroup(r.ctx, r.peer)
		}
		r.longWait = true
	})
	for _, r := range e.slots {
		if r != nil && !r.done && (r.awaitsReply() || r.phase == phaseStreaming || r.phase == phaseReceiving || r.phase == phasePulling) {
			if r.longWait {
				e.connect(r.peer)
			}
			r.longWait = true
		}
	}
	for _, waiters := range [...][]*waiter{e.probeWaiters, e.wordWaiters} {
		for _, w := range waiters {
			if w.longWait {
				e.connectGroup(w.from, w.key.source)
			}
			w.longWait = true
		}
	}
	// A probe that names a rank need not be the same at both calls, because a program may probe for
	// one rank after the other.
	if q.probe.c != nil && (q.probe == q.lastProbe || q.probe.key.source != wild) {
		e.connectGroup(q.probe.c, q.probe.key.source)
	}
	q.lastProbe, q.probe = q.probe, probeQuery{}
	for _, p := range e.ports {
		waits := len(p.waiters) > 0
		if waits && p.longWait {
			e.connectGroup(p.c, wild)
		}
		p.longWait = waits
	}
}

// connectGroup connects with a peer. If peer is wild, it connects with membersAtOnce members of c's
// group.
func (e *Engine) connectGroup(c *Context, peer int32) {
	if peer != wild {
		e.connect(peer)
		return
	}
	for i := range min(membersAtOnce, c.size) {
		// Each rank begins with other members, so that not all ranks connect with the same ones.
		e.connect(c.world((e.rank + e.query.nextMember + i) % c.size))
	}
}

// connect makes a connection to a peer, if the transport has such an operation, and sends it an empty
// message: once per peer, or without CapPeerDown once per call of QueryPeers, unless the last one still
// waits for room.
func (e *Engine) connect(peer int32) {
	p := &e.peers[peer]
	if int(peer) == e.rank || p.err != nil {
		return
	}
	if p.rail.connect != nil {
		_ = p.rail.connect.Connect(transport.Addr(peer)) // if the peer has ended, a completion reports that
	}
	// A rank that calls Finalize sends MsgLeave to all ranks from which it has had a message. So
	// for that one message to the peer is enough.
	again := !p.rail.attr.Caps.Has(transport.CapPeerDown) && p.queried != e.query.calls && p.control.head == nil
	if p.queried == 0 || again {
		p.queried = e.query.calls
		e.sendControl(peer, wire.Message{Kind: wire.MsgCredit}, nil)
	}
}
