package engine

import (
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// A rank that waits for a peer learns of the peer's end from their connection, and learns from a
// message of the peer that the peer is in Finalize. If the two have never exchanged a message,
// there may be no connection, and the rank learns of neither. So if a wait lasts for a long time,
// the engine connects and sends an empty message:
//
//	receive, probe, Await, Port.Await
//	   └── waits at two calls of QueryPeers ─► Connect ──► refused: PeerDown
//	                                         │    └──────► accepted: will report the peer's end
//	                                         └► MsgCredit ► a peer in Finalize answers MsgLeave
//
// If the wait names the peer, an ordinary message to the peer would make the same connection. For
// a wait for any source the engine connects with a few members of the group at each call of
// QueryPeers. So if one rank is late, a large job does not connect all ranks with all.

// membersAtOnce is the number of members of a group that one call of QueryPeers connects with for
// a wait for any source.
const membersAtOnce = 8

// probeQuery describes the message that a nonblocking probe looks for.
type probeQuery struct {
	c   *Context // nil: there was no probe
	key matchKey
}

// peerQuery is the state that QueryPeers keeps between two calls. In addition, the field longWait
// of a receive, of a waiter of a blocking probe or Await, and of a port says that a call of
// QueryPeers has found it waiting.
type peerQuery struct {
	probe      probeQuery // the last nonblocking probe that found nothing since the last call
	lastProbe  probeQuery // value of probe at the last call
	nextMember int        // first member to connect with for a wait for any source
}

// QueryPeers connects with the peers that receives, probes, Awaits and ports have waited for
// since the last call of QueryPeers, so that these waits end if the peers do. The caller calls
// QueryPeers at intervals; a wait that is shorter than an interval makes no connection.
func (e *Engine) QueryPeers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &e.query
	if e.closed || e.fatal != nil {
		return
	}
	q.nextMember += membersAtOnce
	e.posted.each(func(r *request) {
		if r.longWait {
			e.connectGroup(r.ctx, r.peer)
		}
		r.longWait = true
	})
	for _, waiters := range [...][]*waiter{e.probeWaiters, e.wordWaiters} {
		for _, w := range waiters {
			if w.longWait {
				e.connectGroup(w.from, w.key.source)
			}
			w.longWait = true
		}
	}
	if q.probe.c != nil && (q.probe == q.lastProbe || q.probe.key.source != wild) { // a program that probes for each rank in turn never repeats a probe
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

// connectGroup connects with a peer or, if peer is wild, with some members of c's group.
func (e *Engine) connectGroup(c *Context, peer int32) {
	if peer != wild {
		e.connect(peer)
		return
	}
	for i := range min(membersAtOnce, c.size) {
		e.connect(c.world((e.rank + e.query.nextMember + i) % c.size)) // each rank begins with other members
	}
}

func (e *Engine) connect(peer int32) {
	p := &e.peers[peer]
	if int(peer) == e.rank || p.err != nil {
		return
	}
	if p.rail.connect != nil {
		_ = p.rail.connect.Connect(transport.Addr(peer)) // if the peer has ended, the transport reports that
	}
	if !p.queried { // after this message the peer sends MsgLeave to this rank when it finalizes
		p.queried = true
		e.sendControl(peer, wire.Message{Kind: wire.MsgCredit}, nil)
	}
}
