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

// poll calls progress once, unless a goroutine leads. If that has completed the request of
// another goroutine, poll lets the other one run first. It releases the lock meanwhile.
func (e *Engine) poll() {
	if e.leader != nil || e.closed {
		return
	}
	wakes := e.wakes.Load()
	if e.progress() > 0 {
		e.failedTests = 0
	}
	if len(e.wordWaiters) > 0 {
		e.checkWords()
	}
	if e.asleep {
		e.ensureProgress()
	}
	if e.wakes.Load() != wakes {
		e.mu.Unlock()
		runtime.Gosched()
		e.mu.Lock()
	}
}

// progress reads the completion queues once, handles the completions, and sends what was stalled.
// It returns the number of completions. After an empty Read of a queue it leaves out this queue
// for a number of calls that grows with the rail's latency relative to the fastest rail: a poll
// of a network may cost as much as a message through shared memory.
//
// Hot path: no allocation, no system call except the transports'.
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

// napTime returns the limit of a sleep; negative: none. A sleep needs a limit because an endpoint
// without room does not report when it has room again, and because a transfer may need polls.
func (e *Engine) napTime() time.Duration {
	if e.napsOnly && e.moving+e.exposed > 0 {
		return napLength
	}
	nap := time.Duration(-1)
	for _, i := range e.stalled {
		if p := &e.peers[i]; p.noRoom && !p.absent {
			if p.noRoomSince == 0 {
				p.noRoomSince = time.Since(e.start)
			}
			n := min(max((time.Since(e.start)-p.noRoomSince)/4, firstRetry), lastRetry)
			if nap < 0 || n < nap {
				nap = n
			}
		}
	}
	return nap
}

// oversleeps reports whether the goroutine in Wait sleeps for longer than napTime permits now:
// its sleep has begun before a request stalled.
func (e *Engine) oversleeps() bool {
	nap := e.napTime()
	return nap >= 0 && (e.nap < 0 || e.nap > nap)
}

// The limits of a sleep while an endpoint has no room. The sleep is a quarter of the time for
// which the endpoint has had none, so a request waits little longer than necessary.
const (
	firstRetry = 100 * time.Microsecond
	lastRetry  = 10 * time.Millisecond
)

// fail ends all ports and requests and makes the engine unusable. It closes a broken transport.
// If broken is nil, this rank has failed: fail disconnects all peers, so they learn of the
// failure, and the transports end the operations in flight.
func (e *Engine) fail(broken *rail, err error) {
	if e.closedErr() != nil {
		return
	}
	e.fatal = reasonError("%w: %w", ErrClosed, err)
	e.endAll(broken, e.fatal)
	for i := range e.peers {
		if p := &e.peers[i]; i != e.rank && p.err == nil {
			p.err = e.fatal
		}
	}
	e.wakeAll(e.probeWaiters)
	e.wakeAll(e.wordWaiters)
	e.wakeAll(e.completionWaiters)
	if broken == nil {
		for i := range e.peers {
			e.disconnect(int32(i))
		}
		e.wakeSleeper()
	}
}

// endAll ends the ports and all requests, except those that transports have in flight. It closes
// a broken transport, which then no longer uses the buffers, and ends the requests that it has in
// flight too.
func (e *Engine) endAll(broken *rail, err error) {
	e.stateVersion.Add(1)
	e.endPorts(func(*Port) bool { return true }, err) // before the memory that goroutines use is unmapped
	if broken != nil {
		e.wakeSleeper() // it may wait for the queue of this rail
		e.waitset.drop(broken.index)
		_ = broken.Domain.Close() // err is the reason
	}
	e.failAll(func(r *request) bool { return !r.inflight || broken != nil && e.railOf(r) == broken }, err)
	for i := range e.peers {
		e.peers[i].eager = -1
	}
}

// dispatch handles a completion of a rail. If a rail that does not lead to a peer reports the end
// of the peer, dispatch ignores the report: the rail that leads to the peer may still hold unread
// messages from the peer, and reports the end after them.
func (e *Engine) dispatch(from *rail, c *transport.Completion) {
	switch c.Kind {
	case transport.RecvDone:
		if err := e.receive(int32(c.Peer), c.Msg); err != nil {
			e.protocolError(int32(c.Peer), err)
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
			go e.notice(c.Err) // the program's function must not run under the lock; it ends by itself
		}
	}
}

// opDone continues a request after its endpoint has completed the op.
func (e *Engine) opDone(r *request, err error) {
	switch {
	case r.kind == kindRecv:
		e.readDone(r, err)
	case err != nil:
		e.finish(r, e.peerError(r.peer, err))
	case r.kind == kindSend && e.peers[r.peer].err != nil && r.awaitsReply():
		e.complete(r, e.peers[r.peer].err) // the peer will not answer
	default:
		e.sent(r)
	}
}

// receive handles a message from a peer. It returns an error if the peer broke the protocol.
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
			e.returnCredit(source, cost)
			race.Acquire(r.buf) // after the Release in package comm
			copy(r.buf, data)
			r.status.Tag, r.status.Bytes = int(tag), len(data)
			r.phase = phaseIdle
			e.complete(r, nil)
			return nil
		}
		m := wire.Message{Kind: wire.MsgEager, Sig: sig, Context: context, Tag: tag, Length: len(data)}
		return e.deliverOrKeep(r, source, &m, data, cost)
	}
	var m wire.Message
	data, err := m.Parse(b)
	if err != nil {
		return err
	}
	if p.err != nil {
		return nil // the peer has failed or left; later messages from it are ignored
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
		return e.receiveReply(source, &m, data)
	case wire.MsgData:
		return e.receiveSegment(source, &m, data)
	case wire.MsgRevoke:
		e.receiveRevoke(m.Context/2, source, data)
	case wire.MsgWindow:
		return e.deliverWindow(source, &m, data)
	case wire.MsgLeave:
		e.receiveLeave(source)
	case wire.MsgCredit:
		if e.leaving != nil {
			e.sendLeave(source)
		}
	}
	return nil
}

// The protocol errors of a peer.
var (
	errSequence = errors.New("a message was lost or came twice")
	errCredit   = errors.New("more credit returned than was taken")
	errOverrun  = errors.New("sent beyond its credit")
	errMember   = errors.New("a message to a group that the sender is not a member of")
	errTag      = errors.New("a message with a negative tag")
	errHandle   = errors.New("a message for a request that does not exist")
	errOffset   = errors.New("data outside the request's buffer")
)

// arrive matches a message of the program.
func (e *Engine) arrive(source int32, m *wire.Message, data []byte, cost int) error {
	if m.Tag < 0 {
		return errTag
	}
	return e.deliverOrKeep(e.posted.match(matchKey{m.Context, source, m.Tag}), source, m, data, cost)
}

// deliverOrKeep gives a message to r, the receive that it matches. If r is nil, it keeps the
// message, or refuses it if no receive can match it any more.
func (e *Engine) deliverOrKeep(r *request, source int32, m *wire.Message, data []byte, cost int) error {
	if r != nil {
		e.returnCredit(source, cost)
		if m.Kind == wire.MsgRTS {
			e.fetch(r, source, m, e.unexpected.next())
		} else {
			_ = e.completeEager(r, source, m, data)
		}
		return nil
	}
	if len(e.revoked) > 0 {
		if why := e.revoked[m.Context/2]; why != nil {
			e.returnCredit(source, cost)
			e.refuse(source, m, Request{}, why)
			return nil
		}
	}
	if e.leaving != nil {
		e.sendLeave(source)
		if why := e.finalizeRefusal(m); why != nil {
			e.noteDropped(source, m)
			e.returnCredit(source, cost)
			e.refuse(source, m, Request{}, why)
			return nil
		}
	}
	p := &e.peers[source]
	if p.unexpectedBytes += cost; p.unexpectedBytes > e.window {
		return errOverrun
	}
	e.keepUnexpected(source, m, data, cost)
	return nil
}

// receiveReply handles the receiver's answer to a send of this rank.
func (e *Engine) receiveReply(source int32, m *wire.Message, data []byte) error {
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
		r.phase = phaseStreaming
		r.remote, r.total, r.offset = m.Key, m.Length, 0
		if !r.inflight { // otherwise opDone sends the first segment
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

// receiveSegment handles a segment of the data of a rendezvous without RMA.
func (e *Engine) receiveSegment(source int32, m *wire.Message, data []byte) error {
	r, err := e.slot(m.Handle, kindRecv, source)
	switch {
	case r == nil:
		return err
	case r.phase != phaseReceiving:
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

// protocolError marks a peer that broke the protocol as failed.
func (e *Engine) protocolError(peer int32, err error) {
	e.peerDown(peer, fmt.Errorf("%w: %w", transport.ErrProtocol, err), false)
}

// peerError returns the error of an operation with a peer after the transport has returned err
// for it.
func (e *Engine) peerError(peer int32, err error) error {
	if p := &e.peers[peer]; p.err != nil {
		return p.err
	}
	if errors.Is(err, transport.ErrPeerDown) || errors.Is(err, transport.ErrPeerLeft) {
		return reasonError("%w: rank %d of the world: %w", ErrProcFailed, peer, err)
	}
	return fmt.Errorf("rank %d of the world: %w", peer, err)
}

// peerDown ends the requests and waits that need a peer. The program can still receive the
// messages that have arrived complete from the peer. An RTS of the peer stays in the unexpected
// queue, so the receive that matches it fails instead of getting a later message.
func (e *Engine) peerDown(peer int32, err error, left bool) {
	if e.peers[peer].err == nil {
		e.markEnded(peer, reasonError("%w: rank %d of the world: %w", ErrProcFailed, peer, err), left)
	}
}

// markEnded is peerDown with the complete error why. It may be called again for a peer that has
// left, to mark the peer as failed.
func (e *Engine) markEnded(peer int32, why error, left bool) {
	p := &e.peers[peer]
	again := p.err != nil
	p.err = why
	p.eager = -1
	p.left = left
	e.changes++
	if !left {
		e.failures++
		e.forwardRevokes(peer)
	}
	e.failAll(func(r *request) bool {
		if r.inflight {
			return false // the endpoint will complete it
		}
		if r.peer == wild { // a receive from any source
			return r.phase == phasePosted && !left && r.ctx.has(peer)
		}
		return r.peer == peer
	}, p.err)
	if !again {
		e.portsDown(peer)
	}
	e.wakeAll(e.probeWaiters)
	e.wakeAll(e.wordWaiters)
	e.wakeAll(e.completionWaiters)
}

// has reports whether a world rank is a member.
func (c *Context) has(world int32) bool {
	if c.members == nil {
		return true
	}
	_, ok := c.rankOf[world]
	return ok
}
