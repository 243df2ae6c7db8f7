package engine

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/weft-hpc/weft/internal/race"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// poll moves the transports on once, unless a goroutine leads. If it has
// completed what another goroutine waits for, that goroutine runs first; the lock
// is open meanwhile.
func (e *Engine) poll() {
	if e.leader != nil || e.closed {
		return
	}
	wakes := e.wakes.Load()
	if e.progress() > 0 {
		e.unanswered = 0
	}
	if len(e.words) > 0 {
		e.lookAtWords()
	}
	if e.asleep {
		e.attend()
	}
	if e.wakes.Load() != wakes {
		e.mu.Unlock()
		runtime.Gosched()
		e.mu.Lock()
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
		if r.unsent && !r.batch.Unsent() {
			r.unsent = false
			e.unsent--
		}
		if n == 0 {
			r.skip = r.pace
		}
		for j := range n {
			e.dispatch(r, &e.entries[j])
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

// readAll makes the next call of progress read every queue.
func (e *Engine) readAll() {
	for i := range e.rails {
		e.rails[i].skip = 0
	}
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

// oversleeps reports whether the goroutine in Wait sleeps for longer than it
// should by now: it has begun before a request stalled.
func (e *Engine) oversleeps() bool {
	nap := e.napTime()
	return nap >= 0 && (e.nap < 0 || e.nap > nap)
}

// How long a nap is while an endpoint has no room: a quarter of the time for which it
// has had none, within these limits. So a request waits little longer than it must.
const (
	firstNap = 100 * time.Microsecond
	lastNap  = 10 * time.Millisecond
)

// fail ends everything: the engine cannot be used any more. It closes a broken
// transport. If broken is nil this rank has failed: fail disconnects all peers, which
// so learn of it, and the transports end what they have in flight.
func (e *Engine) fail(broken *rail, err error) {
	if e.over() != nil {
		return
	}
	e.fatal = reasonError("%w: %w", ErrClosed, err)
	e.endAll(broken, e.fatal)
	for i := range e.peers {
		if p := &e.peers[i]; i != e.rank && p.err == nil {
			p.err = e.fatal
		}
	}
	e.tellAll(e.probes)
	e.tellAll(e.words)
	e.tellAll(e.watchers)
	if broken == nil {
		for i := range e.peers {
			e.cut(int32(i))
		}
		e.rouse()
	}
}

// endAll ends the ports and all requests, except those that transports have in flight.
// It closes a broken transport, which then leaves the buffers alone, and ends its too.
func (e *Engine) endAll(broken *rail, err error) {
	e.news.Add(1)
	e.endPorts(func(*Port) bool { return true }, err) // goroutines in mapped memory leave it before it is unmapped
	if broken != nil {
		e.rouse() // a wait that includes its queue
		e.waitset.drop(broken.index)
		_ = broken.Domain.Close() // err says what failed
	}
	e.failAll(func(r *request) bool { return !r.inflight || broken != nil && e.railOf(r) == broken }, err)
	for i := range e.peers {
		e.peers[i].eager = -1
	}
}

// dispatch acts on a completion of a rail. If a rail that does not lead to a peer reports the
// end of the peer, dispatch ignores the report: the rail that leads to the peer may still
// hold unread messages from the peer, and reports the end after them.
func (e *Engine) dispatch(from *rail, c *transport.Completion) {
	switch c.Kind {
	case transport.RecvDone:
		if err := e.receive(int32(c.Peer), c.Msg); err != nil {
			e.breach(int32(c.Peer), err)
		}
	case transport.OpDone:
		r := c.Op.User.(*request)
		r.inflight = false
		e.opDone(r, c.Err)
	case transport.PeerDown:
		if e.peers[c.Peer].rail == from {
			e.peerDown(int32(c.Peer), c.Err, false)
		}
	case transport.PeerLeft:
		if e.peers[c.Peer].rail == from {
			e.peerDown(int32(c.Peer), transport.ErrPeerLeft, true)
		}
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
	case err != nil:
		e.finish(r, e.peerError(r.peer, err))
	case r.kind == kindSend && e.peers[r.peer].err != nil && r.awaitsReply():
		e.complete(r, e.peers[r.peer].err) // its answer will not come
	default:
		e.sent(r)
	}
}

// receive handles a message from a peer. An error says that the peer broke the protocol.
//
// Hot path: no allocation, no system call.
func (e *Engine) receive(source int32, b []byte) error {
	p := &e.peers[source]
	sig, credit, context, tag, seq, data, ok := wire.ParseEager(b)
	if ok && tag >= 0 && p.err == nil && seq == p.recvSeq+1 && p.credit+int(credit) <= e.window {
		p.recvSeq = seq
		p.credit += int(credit)
		cost := messageCost + len(data)
		r := e.posted.match(matchKey{context, source, tag})
		if r != nil && r.peer == source && r.sig == sig && len(data) <= len(r.buf) {
			e.owe(source, cost)
			race.Acquire(r.buf) // package comm has released it
			copy(r.buf, data)
			r.status.Tag, r.status.Bytes = int(tag), len(data)
			r.phase = phaseIdle
			e.complete(r, nil)
			return nil
		}
		m := wire.Message{Kind: wire.MsgEager, Sig: sig, Context: context, Tag: tag, Length: len(data)}
		return e.place(r, source, &m, data, cost)
	}
	var m wire.Message
	data, err := m.Parse(b)
	if err != nil {
		return err
	}
	if p.err != nil {
		return nil // it was given up; what it sends later is ignored
	}
	if p.recvSeq++; m.Seq != p.recvSeq {
		return errSequence
	}
	if p.credit += int(m.Credit); p.credit > e.window {
		return errCredit
	}
	switch m.Kind {
	case wire.MsgEager, wire.MsgEagerSync:
		return e.arrive(source, &m, data, messageCost+len(data))
	case wire.MsgRTS:
		return e.arrive(source, &m, nil, 0) // no credit; see send.go
	case wire.MsgCTS, wire.MsgFin, wire.MsgAck:
		return e.reply(source, &m, data)
	case wire.MsgData:
		return e.piece(source, &m, data)
	case wire.MsgRevoke:
		e.hear(m.Context/2, source, data)
	case wire.MsgWindow:
		return e.deliver(source, &m, data)
	case wire.MsgLeave:
		e.finalizes(source)
	case wire.MsgCredit:
		if e.leaving != nil {
			e.sayLeave(source)
		}
	}
	return nil
}

// The ways in which a peer can break the protocol.
var (
	errSequence = errors.New("a message was lost or came twice")
	errCredit   = errors.New("more credit returned than was taken")
	errOverrun  = errors.New("sent beyond its credit")
	errMember   = errors.New("a message to a group that the sender is not a member of")
	errTag      = errors.New("a message with a negative tag")
	errHandle   = errors.New("a message for a request that does not exist")
	errOffset   = errors.New("data outside the request's buffer")
)

// arrive matches a user's message.
func (e *Engine) arrive(source int32, m *wire.Message, data []byte, cost int) error {
	if m.Tag < 0 {
		return errTag
	}
	return e.place(e.posted.match(matchKey{m.Context, source, m.Tag}), source, m, data, cost)
}

// place gives a message to the receive r that it matches. If r is nil, it keeps the
// message.
func (e *Engine) place(r *request, source int32, m *wire.Message, data []byte, cost int) error {
	if r != nil {
		e.owe(source, cost)
		if m.Kind == wire.MsgRTS {
			e.pull(r, source, m, e.unexpected.next())
		} else {
			_ = e.fill(r, source, m, data)
		}
		return nil
	}
	if len(e.revoked) > 0 {
		if why := e.revoked[m.Context/2]; why != nil {
			e.owe(source, cost)
			e.refuse(source, m, Request{}, why)
			return nil
		}
	}
	if e.leaving != nil {
		e.sayLeave(source)
		if why := e.tooLate(m); why != nil {
			e.noteDropped(source, m)
			e.owe(source, cost)
			e.refuse(source, m, Request{}, why)
			return nil
		}
	}
	p := &e.peers[source]
	if p.held += cost; p.held > e.window {
		return errOverrun
	}
	e.keep(source, m, data, cost)
	return nil
}

// reply handles the receiver's answer to one of our sends.
func (e *Engine) reply(source int32, m *wire.Message, data []byte) error {
	r, err := e.slot(m.Handle, kindSend, source)
	switch {
	case r == nil:
		return err
	case !r.awaitsReply():
		return errHandle
	case m.Kind == wire.MsgFin:
		r.err = finError(r.ctx.rank(source), data)
	case (m.Kind == wire.MsgAck) != (r.header.Kind == wire.MsgEagerSync):
		return errHandle
	case m.Kind == wire.MsgCTS:
		if m.Length > len(r.buf) {
			return errHandle
		}
		r.phase = phasePumping
		r.remote, r.total, r.offset = m.Key, m.Length, 0
		if !r.inflight { // else opDone begins to send
			e.sent(r)
		}
		return nil
	}
	r.replied = true
	if !r.inflight {
		e.complete(r, r.err)
	}
	return nil
}

// piece handles a part of the data of a rendezvous without RMA.
func (e *Engine) piece(source int32, m *wire.Message, data []byte) error {
	r, err := e.slot(m.Handle, kindRecv, source)
	switch {
	case r == nil:
		return err
	case r.phase != phaseFilling:
		return errHandle
	case m.Addr != uint64(r.offset) || len(data) > r.total-r.offset || len(data) == 0:
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
		return reasonError("%w: rank %d of the world: %w", ErrProcFailed, peer, err)
	}
	return fmt.Errorf("rank %d of the world: %w", peer, err)
}

// peerDown ends everything that waits for a peer. The messages that have come from it
// complete can still be received. An RTS stays in the unexpected queue, so that the
// receive that it matches fails and does not get the message behind it.
func (e *Engine) peerDown(peer int32, err error, left bool) {
	if e.peers[peer].err == nil {
		e.end(peer, reasonError("%w: rank %d of the world: %w", ErrProcFailed, peer, err), left)
	}
}

// end is peerDown with the error as it is. It may be called again for a peer that has
// left, to mark it as failed.
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
			return false // the endpoint will report its end
		}
		if r.peer == wild { // a receive from any source
			return r.phase == phasePosted && !left && r.ctx.has(peer)
		}
		return r.peer == peer
	}, p.err)
	if !again {
		e.portsLose(peer)
	}
	e.tellAll(e.probes)
	e.tellAll(e.words)
	e.tellAll(e.watchers)
}

// has reports whether a world rank is a member.
func (c *Context) has(world int32) bool {
	if c.members == nil {
		return true
	}
	_, ok := c.rankOf[world]
	return ok
}
