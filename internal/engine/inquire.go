package engine

import (
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// A rank that waits for a peer learns of the peer's end from their connection, and that
// the peer is in Finalize from the peer's message. If the two have never exchanged a
// message, there may be no connection, and no other way to learn of either. So if a wait
// lasts for a long time, the engine connects and sends an empty message:
//
//	receive, probe, Await, Port.Await
//	   └── waits at two calls of QueryPeers ──► Connect ──► refused: PeerDown
//	                                    └──────► accepted: will report the peer's end
//	                             └─► MsgCredit ► in Finalize: answers MsgLeave
//
// If the wait names the peer, the peer's message would make the same connection. For a
// wait for any source the engine connects with a few members of the group at each
// QueryPeers, so that a large job does not connect all with all because one rank is late.

// membersAtOnce is the number of members of a group that one call of QueryPeers connects with for
// a wait for any source.
const membersAtOnce = 8

// question is what a probe asks for.
type question struct {
	c   *Context // nil: nothing
	key matchKey
}

// inquiry is what QueryPeers remembers. The field waited of a receive, a waiter of a
// blocking probe or a port says that an QueryPeers has found it waiting.
type inquiry struct {
	asked question // of the last nonblocking probe since the last QueryPeers that found nothing
	again question // asked at the QueryPeers before
	turn  int      // which members are next for a wait for any source
}

// QueryPeers connects with the peers that receives, probes and ports have waited for
// since the last QueryPeers, so that these waits end if the peers do. The caller calls it
// at intervals; a wait that is shorter than an interval makes no connection.
func (e *Engine) QueryPeers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &e.inquiry
	if e.closed || e.fatal != nil {
		return
	}
	q.turn += membersAtOnce
	e.posted.each(func(r *request) {
		if r.waited {
			e.seek(r.ctx, r.peer)
		}
		r.waited = true
	})
	for _, waiters := range [...][]*waiter{e.probes, e.words} {
		for _, w := range waiters {
			if w.waited {
				e.seek(w.from, w.key.source)
			}
			w.waited = true
		}
	}
	if q.asked.c != nil && (q.asked == q.again || q.asked.key.source != wild) { // a program that probes for one rank after another never asks the same
		e.seek(q.asked.c, q.asked.key.source)
	}
	q.again, q.asked = q.asked, question{}
	for _, p := range e.ports {
		waits := len(p.waiters) > 0
		if waits && p.waited {
			e.seek(p.c, wild)
		}
		p.waited = waits
	}
}

// seek connects with a peer, or with some of a group's members.
func (e *Engine) seek(c *Context, peer int32) {
	if peer != wild {
		e.connect(peer)
		return
	}
	for i := range min(membersAtOnce, c.size) {
		e.connect(c.world((e.rank + e.inquiry.turn + i) % c.size)) // not all ranks with the same ones first
	}
}

func (e *Engine) connect(peer int32) {
	p := &e.peers[peer]
	if int(peer) == e.rank || p.err != nil {
		return
	}
	if p.rail.link != nil {
		_ = p.rail.link.Connect(transport.Addr(peer)) // if the peer has ended, the transport has reported that or will
	}
	if !p.asked { // from now on the peer knows that this rank exists, and will send MsgLeave when it finalizes
		p.asked = true
		e.sendControl(peer, wire.Message{Kind: wire.MsgCredit}, nil)
	}
}
