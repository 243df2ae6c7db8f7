package engine

import (
	"slices"

	"github.com/weft-hpc/weft/transport"
)

// Who waits for a peer hears of its end by the connection with it. From a peer
// that is yet to send its first message there may be none, and then nobody
// tells. So who has waited for long has the transport connect:
//
//	receive, probe, Port.Await
//	   └── waits at two Inquires ──► Connect ──► refused: PeerDown
//	                                    └──────► there: its end will be heard of
//
// A peer that is named would make the same connection with its message. Who waits
// for any connects with the members of the group, a few at each Inquire, so that
// a large job does not connect all with all because somebody was late.

// membersAtOnce is with how many members of a group who waits for any of them
// connects at one Inquire.
const membersAtOnce = 8

// question is what a probe asks for.
type question struct {
	c   *Context // nil: nothing
	key matchKey
}

// inquiry is what the last Inquire has found to wait.
type inquiry struct {
	on     bool       // a transport wants it
	posted []uint32   // by slot: the generation of a receive that no message had matched, plus 1
	probes []question // that block
	ports  []*Port    // with somebody in Await
	asked  question   // the last, since then, of a probe that does not block and found nothing
	again  question   // what asked was
	turn   int        // of the members: which are next for who waits for any
}

// Inquire connects with the peers that something has waited for since the last
// Inquire, so that it ends if they do. It is to be called now and then; the time
// between two calls is how long who waits is left alone.
func (e *Engine) Inquire() {
	e.mu.lock()
	defer e.mu.unlock()
	q := &e.inquiry
	if !q.on || e.closed || e.fatal != nil {
		return
	}
	q.turn += membersAtOnce
	for i, r := range e.slots {
		if i == len(q.posted) {
			q.posted = append(q.posted, 0)
		}
		waits := uint32(0)
		if r.kind == kindRecv && r.phase == phasePosted && !r.done {
			waits = r.gen + 1
		}
		if waits != 0 && waits == q.posted[i] {
			e.seek(r.ctx, r.peer)
		}
		q.posted[i] = waits
	}
	probes, ports := q.probes, q.ports
	q.probes, q.ports = nil, nil
	for _, w := range e.probes {
		now := question{w.from, w.key}
		if slices.Contains(probes, now) {
			e.seek(now.c, now.key.source)
		}
		q.probes = append(q.probes, now)
	}
	if q.asked.c != nil && (q.asked == q.again || q.asked.key.source != wild) { // who asks for one after the other never asks the same
		e.seek(q.asked.c, q.asked.key.source)
	}
	q.again, q.asked = q.asked, question{}
	for _, p := range e.ports {
		if len(p.waiters) == 0 {
			continue
		}
		if slices.Contains(ports, p) {
			e.seek(p.c, wild)
		}
		q.ports = append(q.ports, p)
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
	if int(peer) == e.rank || p.err != nil || p.rail.link == nil {
		return
	}
	_ = p.rail.link.Connect(transport.Addr(peer)) // if it has ended already, that has been or will be told
}
