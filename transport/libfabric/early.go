//go:build libfabric

package libfabric

import (
	"fmt"
	"slices"
	"time"

	"github.com/weft-hpc/weft/transport"
)

// early holds copies of messages of one peer that arrived before a message with a lower number.
type early struct {
	kept  map[uint32]earlyMsg // messages by their number
	since time.Time           // when the wait for the next missing message began
	polls uint64              // domain.polls at that time
}

type earlyMsg struct {
	kind kind
	msg  []byte
}

// Bounds on early messages. If one is exceeded, the missing message counts as lost and the peer as
// failed.
const (
	maxEarly      = 4096 // messages ahead of the last one in order
	earlyTimeout  = 20 * time.Second
	earlyMinPolls = 1000 // earlyTimeout counts only after this many polls, because a process that does not poll receives nothing
)

var errOrder = fmt.Errorf("%w: %w: a message was lost or came twice", transport.ErrPeerDown, transport.ErrProtocol)

// keep stores a copy of a message that arrived out of order.
func (d *domain) keep(from transport.Addr, f frame, msg []byte) {
	p := &d.peers[from]
	if p.err != nil {
		return
	}
	if p.early == nil {
		p.early = &early{kept: make(map[uint32]earlyMsg), since: time.Now(), polls: d.polls}
	}
	ahead := (f.number - p.got) & numberMask
	_, twice := p.early.kept[f.number]
	late := time.Since(p.early.since) > earlyTimeout && d.polls-p.early.polls > earlyMinPolls
	if twice || ahead == 0 || ahead > maxEarly || late {
		p.early = nil
		d.peerDown(from, "receive", errOrder)
		return
	}
	p.early.kept[f.number] = earlyMsg{f.kind, slices.Clone(msg)}
}

// deliverKept handles the kept messages that follow the last handled message without a gap.
func (d *domain) deliverKept(from transport.Addr) {
	p := &d.peers[from]
	for {
		n := (p.got + 1) & numberMask
		m, ok := p.early.kept[n]
		if !ok {
			p.early.since, p.early.polls = time.Now(), d.polls // the wait for the next missing message begins
			return
		}
		delete(p.early.kept, n)
		d.handle(from, m.kind, m.msg)
		if len(p.early.kept) == 0 {
			p.early = nil
			return
		}
	}
}
