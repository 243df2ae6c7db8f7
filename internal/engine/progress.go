package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// poll moves the transports on once, unless another goroutine is at it.
func (e *Engine) poll() {
	if e.leader == nil && !e.closed {
		e.progress()
		e.rearm()
	}
}

// rearm rouses the async goroutine if it sleeps and a poll of another has left
// something that no event tells of: more than a Read gives, or bytes that wait
// for room.
func (e *Engine) rearm() {
	if e.asyncAsleep && !e.arm() {
		e.signal()
	}
}

// progress reads the completion queues once, acts on what is there, and sends
// what was stalled. It returns how much there was. A queue that was found empty
// is left out for as many calls as its rail is slower than the fastest: a poll of
// a network may cost as much as a message through shared memory takes.
//
// Hot path: no allocation, no system call but the transports'.
func (e *Engine) progress() int {
	total := 0
	for i := range e.rails {
		r := &e.rails[i]
		if r.skip > 0 {
			r.skip--
			continue
		}
		n, err := r.CQ.Read(e.entries[:])
		if n == 0 {
			r.skip = r.pace
		}
		for j := range n {
			e.dispatch(&e.entries[j])
		}
		total += n
		if err != nil {
			e.fail(r, err)
		}
	}
	if len(e.stalled) > 0 {
		e.retry()
	}
	return total
}

// napTime bounds a sleep: an endpoint without room does not say when it has
// some again, and data that moves may need polls.
func (e *Engine) napTime() time.Duration {
	if e.blind && e.moving+e.exposed > 0 {
		return blindNap
	}
	nap := time.Duration(-1)
	for _, i := range e.stalled {
		if p := &e.peers[i]; p.again && !p.absent {
			if p.waits == 0 {
				p.waits = time.Since(e.born)
			}
			n := min(max((time.Since(e.born)-p.waits)/4, firstNap), lastNap)
			if nap < 0 || n < nap {
				nap = n
			}
		}
	}
	return nap
}

// How long a nap is while an endpoint has no room: a quarter of the time for which it
// has had none, within these. So nobody waits much longer than he would have to.
const (
	firstNap = 100 * time.Microsecond
	lastNap  = 10 * time.Millisecond
)

// fail ends everything: a transport is of no further use.
func (e *Engine) fail(broken *rail, err error) {
	if e.fatal == nil && !e.closed {
		e.endAll(broken, err)
	}
}

// endAll ends everything. A broken transport is closed; nil: none is, and what
// they have in flight ends as they say.
func (e *Engine) endAll(broken *rail, err error) {
	e.fatal = fmt.Errorf("%w: %w", ErrClosed, err)
	e.news.Add(1)
	// Who is in mapped memory leaves it before it goes.
	e.endPorts(func(*Port) bool { return true }, e.fatal)
	if broken != nil {
		_ = broken.Domain.Close() // so that it leaves the buffers alone; what failed is err
	}
	e.failAll(func(r *request) bool { return !r.inflight || broken != nil && e.railOf(r) == broken }, e.fatal)
	for i := range e.peers {
		if i != e.rank && e.peers[i].err == nil {
			e.peers[i].err, e.peers[i].eager = e.fatal, -1
		}
	}
	for _, w := range e.probes {
		e.tell(w)
	}
	e.tellWords()
}

func (e *Engine) dispatch(c *transport.Completion) {
	switch c.Kind {
	case transport.RecvDone:
		e.receive(int32(c.Peer), c.Msg)
	case transport.OpDone:
		r := c.Op.User.(*request)
		r.inflight = false
		e.opDone(r, c.Err)
	case transport.PeerDown:
		e.peerDown(int32(c.Peer), c.Err, false)
	case transport.PeerLeft:
		e.peerDown(int32(c.Peer), transport.ErrPeerLeft, true)
	case transport.PeerNotice:
		if e.notice != nil {
			go e.notice(c.Err) // a user's function must not run under our lock; it ends by itself
		}
	}
}

// opDone goes on when the endpoint has done with a request's op.
func (e *Engine) opDone(r *request, err error) {
	switch {
	case r.kind == kindRecv:
		e.readDone(r, err)
	case r.kind == kindTransfer:
		if err != nil {
			err = e.peerError(r.peer, err)
		}
		e.transferDone(r, err)
	case err != nil:
		e.finish(r, e.peerError(r.peer, err))
	case r.kind != kindControl && e.peers[r.peer].err != nil && r.awaitsReply():
		e.complete(r, e.peers[r.peer].err) // its answer will not come
	default:
		e.sent(r)
	}
}

// receive takes a message from a peer.
//
// Hot path: no allocation, no system call.
func (e *Engine) receive(source int32, b []byte) {
	p := &e.peers[source]
	sig, credit, context, tag, seq, data, ok := wire.ParseEager(b)
	if ok && tag >= 0 && p.err == nil && seq == p.recvSeq+1 && p.credit+int(credit) <= e.window {
		p.recvSeq = seq
		p.credit += int(credit)
		cost := messageCost + len(data)
		r := e.posted.match(matchKey{context, source, tag})
		if r != nil && r.peer == source && r.sig == sig && len(data) <= len(r.buf) {
			e.owe(source, cost)
			copy(r.buf, data)
			r.status.Tag, r.status.Bytes = int(tag), len(data)
			r.phase = phaseIdle
			e.complete(r, nil)
			return
		}
		m := wire.Message{Kind: wire.MsgEager, Sig: sig, Context: context, Tag: tag, Length: len(data)}
		e.place(r, source, &m, data, cost)
		return
	}
	var m wire.Message
	data, err := m.Parse(b)
	if err != nil {
		e.breach(source, err)
		return
	}
	if p.err != nil {
		return // it was given up; what it sends later counts no more
	}
	if p.recvSeq++; m.Seq != p.recvSeq {
		e.breach(source, errSequence)
		return
	}
	if p.credit += int(m.Credit); p.credit > e.window {
		e.breach(source, errCredit)
		return
	}
	switch m.Kind {
	case wire.MsgEager, wire.MsgEagerSync:
		e.arrive(source, &m, data, messageCost+len(data))
	case wire.MsgRTS:
		e.arrive(source, &m, nil, 0) // no credit; see send.go
	case wire.MsgCTS, wire.MsgFin, wire.MsgAck:
		err = e.reply(source, &m, data)
	case wire.MsgData:
		err = e.piece(source, &m, data)
	case wire.MsgRevoke:
		e.hear(m.Context/2, source, data)
	case wire.MsgWindow:
		err = e.deliver(source, &m, data)
	case wire.MsgCredit:
	}
	if err != nil {
		e.breach(source, err)
	}
}

// The ways in which a peer can break the protocol.
var (
	errSequence = errors.New("a message was lost or came twice")
	errCredit   = errors.New("more credit returned than was taken")
	errOverrun  = errors.New("sent beyond its credit")
	errMember   = errors.New("a message to a group of which it is no member")
	errTag      = errors.New("a message with a negative tag")
	errHandle   = errors.New("a message for a request that does not exist")
	errOffset   = errors.New("data outside the request's buffer")
)

// arrive matches a user's message.
func (e *Engine) arrive(source int32, m *wire.Message, data []byte, cost int) {
	if m.Tag < 0 {
		e.breach(source, errTag)
		return
	}
	e.place(e.posted.match(matchKey{m.Context, source, m.Tag}), source, m, data, cost)
}

// place gives a message to the receive that it matches, or keeps it where that
// is nil.
func (e *Engine) place(r *request, source int32, m *wire.Message, data []byte, cost int) {
	if r != nil {
		e.owe(source, cost)
		if m.Kind == wire.MsgRTS {
			e.pull(r, source, m)
		} else {
			e.fill(r, source, m, data)
		}
		return
	}
	if len(e.revoked) > 0 {
		if why := e.revoked[m.Context/2]; why != nil {
			e.owe(source, cost)
			e.refuse(source, m, Request{}, why)
			return
		}
	}
	p := &e.peers[source]
	if p.held += cost; p.held > e.window {
		e.breach(source, errOverrun)
		return
	}
	u := e.unexpected.get()
	u.header, u.source, u.cost = *m, source, cost
	u.data = e.buffers.get(len(data))
	copy(u.data, data)
	e.addUnexpected(u)
}

// reply takes the receiver's answer to one of our sends.
func (e *Engine) reply(source int32, m *wire.Message, data []byte) error {
	r, err := e.slot(m.Handle)
	if r == nil {
		return err
	}
	if r.kind != kindSend || r.peer != source || !r.awaitsReply() {
		return errHandle
	}
	switch {
	case m.Kind == wire.MsgFin:
		r.err = finError(source, data)
	case (m.Kind == wire.MsgAck) != (r.header.Kind == wire.MsgEagerSync):
		return errHandle
	case m.Kind == wire.MsgCTS:
		if m.Length > len(r.buf) {
			return errHandle
		}
		r.phase = phasePumping
		r.remote, r.total, r.offset = m.Key, m.Length, 0
		e.pump(r) // if the completion of the RTS is still to come, that one will
		return nil
	}
	r.replied = true
	if !r.inflight {
		e.complete(r, r.err)
	}
	return nil
}

// piece takes a part of a rendezvous without RMA.
func (e *Engine) piece(source int32, m *wire.Message, data []byte) error {
	r, err := e.slot(m.Handle)
	if r == nil {
		return err
	}
	if r.kind != kindRecv || r.phase != phaseFilling || r.peer != source {
		return errHandle
	}
	if m.Addr != uint64(r.offset) || len(data) > r.total-r.offset || len(data) == 0 {
		return errOffset
	}
	copy(r.buf[r.offset:], data)
	if r.offset += len(data); r.offset == r.total {
		e.complete(r, r.err)
	}
	return nil
}

// breach gives up a peer that broke the protocol.
func (e *Engine) breach(peer int32, err error) {
	e.peerDown(peer, fmt.Errorf("%w: %w", transport.ErrProtocol, err), false)
}

// peerError is the error of an operation with a peer that the transport failed.
func (e *Engine) peerError(peer int32, err error) error {
	if p := &e.peers[peer]; p.err != nil {
		return p.err
	}
	if errors.Is(err, transport.ErrPeerDown) || errors.Is(err, transport.ErrPeerLeft) {
		return fmt.Errorf("%w: rank %d: %w", ErrProcFailed, peer, err)
	}
	return fmt.Errorf("rank %d: %w", peer, err)
}

// peerDown ends everything that waits for a peer. Its messages that have come
// whole may still be received, each by the receive that is its own: an RTS stays
// in the unexpected queue, so that the receive that it matches fails, and does not
// get the message behind it.
func (e *Engine) peerDown(peer int32, err error, left bool) {
	if e.peers[peer].err == nil {
		e.end(peer, fmt.Errorf("%w: rank %d: %w", ErrProcFailed, peer, err), left)
	}
}

// end is peerDown with the error as it is. A peer that left can end once more, as
// one that failed.
func (e *Engine) end(peer int32, why error, left bool) {
	p := &e.peers[peer]
	again := p.err != nil
	p.err = why
	p.eager = -1
	p.left = left
	e.ends++
	if !left {
		e.failures++
		e.repeat(peer)
	}
	e.failAll(func(r *request) bool {
		if r.inflight {
			return false // the endpoint will say
		}
		if r.peer == wild { // a receive from any source
			return r.phase == phasePosted && !left && r.ctx.has(peer)
		}
		return r.peer == peer
	}, p.err)
	if !again {
		e.portsLose(peer)
	}
	for _, w := range e.probes {
		e.tell(w)
	}
	e.tellWords()
}

// has reports whether a world rank is a member.
func (c *Context) has(world int32) bool {
	if c.members == nil {
		return true
	}
	_, ok := c.rankOf[world]
	return ok
}
