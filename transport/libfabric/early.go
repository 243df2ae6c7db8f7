//go:build libfabric

package libfabric

import (
	"fmt"
	"slices"
	"time"

	"github.com/weft-hpc/weft/transport"
)

// early holds copies of the messages of one peer that have arrived before a message with a lower
// number. The comment on [frameSize] explains the numbers.
type early struct {
	kept  map[uint32]earlyMsg // copies of the messages by their number
	since time.Time           // when the wait for the next message in order began
	polls uint64              // value of domain.polls at that time
}

type earlyMsg struct {
	kind kind
	msg  []byte
}

// Limits for early messages. If a message arrives out of order and one of the limits is exceeded,
// [domain.keep] treats the missing message as lost and the peer as failed.
const (
	// maxEarly is the largest distance of a number from that of the last message that was handled
	// in order.
	maxEarly = 4096
	// earlyTimeout is the longest wait for the next message in order, measured from early.since. If
	// the provider may refuse messages, it is refusedTimeout: a peer sends a refused message again
	// in its next call, and it may compute before that.
	earlyTimeout   = 20 * time.Second
	refusedTimeout = 5 * time.Minute
	// A wait longer than earlyTimeout counts only if this rank has called poll more than
	// earlyMinPolls times during the wait, because a process that does not poll receives nothing.
	earlyMinPolls = 1000
)

var errOrder = fmt.Errorf("%w: %w: a message was lost or came twice", transport.ErrPeerDown, transport.ErrProtocol)

func (d *domain) earlyTimeout() time.Duration {
	if d.mayRefuse {
		return refusedTimeout
	}
	return earlyTimeout
}

// keep stores a copy of a message that arrived out of order. If a limit is exceeded, or if a
// message with the same number has arrived before, keep drops all early messages of the peer and
// reports the peer as down. A peer that has sent a message again (kindRepeated) may send one twice:
// then keep drops the second one. If the peer has failed or left already, keep drops the message.
func (d *domain) keep(from transport.Addr, f frame, msg []byte) {
	p := &d.peers[from]
	if p.err != nil {
		return
	}
	ahead := (f.number - p.got) & numberMask
	twice := ahead == 0 || ahead > numberMask/2
	if p.early != nil {
		_, kept := p.early.kept[f.number]
		twice = twice || kept
	}
	if twice && p.repeats {
		return // the message was sent again although it had arrived
	}
	if p.early == nil {
		p.early = &early{kept: make(map[uint32]earlyMsg), since: time.Now(), polls: d.polls}
	}
	late := time.Since(p.early.since) > d.earlyTimeout() && d.polls-p.early.polls > earlyMinPolls
	if twice || ahead > maxEarly || late {
		p.early = nil
		_ = d.peerDown(from, "receive", errOrder)
		return
	}
	p.early.kept[f.number] = earlyMsg{f.kind, slices.Clone(msg)}
}

// deliverKept handles those messages in peer.early whose numbers follow that of the last handled
// message without a gap. If no early message is left, it sets peer.early to nil.
func (d *domain) deliverKept(from transport.Addr) {
	p := &d.peers[from]
	for {
		n := (p.got + 1) & numberMask
		m, ok := p.early.kept[n]
		if !ok {
			p.early.since, p.early.polls = time.Now(), d.polls // the wait for message n begins
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
