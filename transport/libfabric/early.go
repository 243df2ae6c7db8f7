//go:build libfabric

package libfabric

import (
	"fmt"
	"slices"
	"time"

	"github.com/weft-hpc/weft/transport"
)

// early is a peer's messages that have come before their turn, copied.
type early struct {
	kept  map[uint32]earlyMsg // by number
	since time.Time           // when the first of them came
	polls uint64              // of the domain, then
}

type earlyMsg struct {
	kind kind
	msg  []byte
}

// Bounds of what is kept: beyond them a message is lost, and the peer given up.
const (
	maxEarly      = 4096
	earlyPatience = 20 * time.Second
	earlyPolls    = 1000 // at least: a process that looks away for long is not to blame others
)

var errOrder = fmt.Errorf("%w: %w: a message was lost or came twice", transport.ErrPeerDown, transport.ErrProtocol)

// keep puts a message away until its turn.
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
	late := time.Since(p.early.since) > earlyPatience && d.polls-p.early.polls > earlyPolls
	if twice || ahead == 0 || ahead > maxEarly || late {
		p.early = nil
		d.peerDown(from, "receive", errOrder)
		return
	}
	p.early.kept[f.number] = earlyMsg{f.kind, slices.Clone(msg)}
}

// catchUp takes the kept messages whose turn it is.
func (d *domain) catchUp(from transport.Addr) {
	p := &d.peers[from]
	for {
		n := (p.got + 1) & numberMask
		m, ok := p.early.kept[n]
		if !ok {
			p.early.since, p.early.polls = time.Now(), d.polls // the next one is waited for from now on
			return
		}
		delete(p.early.kept, n)
		d.next(from, m.kind, m.msg)
		if len(p.early.kept) == 0 {
			p.early = nil
			return
		}
	}
}
