package engine

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/race"
	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// poll calls progress once, unless another goroutine leads or the engine is closed. If that wakes a
// parked goroutine, poll releases the lock and lets the goroutine run before it returns. The caller
// holds the lock before and after the call.
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

// Poll polls the transports once, for a goroutine that has tested something other than a Request
// without success.
func (e *Engine) Poll() {
	e.mu.Lock()
	e.poll()
	e.testFailed()
	e.mu.Unlock()
}

// progress reads the completion queues of the rails, handles the completions, and starts queued
// operations for which there was no room. It returns the number of completions, plus the number of
// queued requests that it has continued, because a goroutine that waits must not sleep while a peer
// takes data. After a Read that found nothing, progress leaves out this queue in its next calls.
// Their number grows with the latency of the rail relative to that of the fastest one, because one
// poll of a network may cost as much as a whole message through shared memory.
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
	if len(e.stalled) > 0 && !e.draining {
		total += e.retry()
	}
	return total
}

// readAll makes the next call of progress read the queues of all rails, also those that it would
// leave out.
func (e *Engine) readAll() {
	for i := range e.rails {
		e.rails[i].skip = 0
	}
}

// napTime returns the time limit of a sleep on the transports; negative: there is none. A sleep
// needs a limit in two cases. If requests wait for room in an endpoint, no event reports that there
// is room again (except after ErrAbsent). (If they wait for a registration, the registrar calls retry.)
// And if sleeps are naps (Engine.napsOnly), a transfer or a write by a peer may need this rank's polls.
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

// oversleeps reports whether the goroutine that sleeps on the transports may sleep for longer than
// napTime permits now, for example because a request has stalled since the sleep began.
func (e *Engine) oversleeps() bool {
	nap := e.napTime()
	return nap >= 0 && (e.nap < 0 || e.nap > nap)
}

// Limits of the time of a sleep while an endpoint has no room. Between them the time is a quarter
// of the time for which the endpoint has had no room, so a request that waits for room waits at
// most about a quarter longer than necessary.
const (
	firstRetry = 100 * time.Microsecond
	lastRetry  = 10 * time.Millisecond
)

// fail makes the engine unusable, with the error err, and ends all ports and requests. broken is
// the rail whose transport is broken, which fail closes. If broken is nil, no transport is broken:
// for example, the launcher has reported this rank as failed. Then fail disconnects all peers, so
// that they detect the failure, and so that the transports end the operations in flight.
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

// endAll ends the ports and all requests with the error err, except the requests that transports
// have in flight. If broken is not nil, endAll closes its transport, which then no longer uses the
// requests' buffers, and also ends the requests that it has in flight.
func (e *Engine) endAll(broken *rail, err error) {
	e.stateVersion.Add(1)
	// First, because a service's End makes goroutines stop using mapped memory, which closing a
	// transport unmaps.
	e.endPorts(func(*Port) bool { return true }, err)
	if broken != nil {
		e.wakeSleeper() // a goroutine may sleep on the queue of this rail
		e.waitset.drop(broken.index)
		_ = broken.Domain.Close() // requests end with err, so an error of Close adds nothing
	}
	e.failAll(func(r *request) bool { return !r.inflight || broken != nil && e.railOf(r) == broken }, err)
	for i := range e.peers {
		e.peers[i].eager = -1
	}
}

// dispatch handles a completion that the rail from has reported. Every rail may report the end of a
// peer. dispatch acts only on the report of the rail that carries the peer's messages: this rail
// may still hold unread messages of the peer, and reports the end after them.
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
			go e.notice(c.Err) // not here, because the lock is held; the goroutine ends when the function does
		}
	}
}

// opDone continues a request whose operation the endpoint has completed with err, which is nil if
// the operation succeeded.
func (e *Engine) opDone(r *request, err error) {
	e.dropPacked(r)
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

// receive handles a message b from the peer source. It returns an error if the peer broke the
// protocol.
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
			// For the race detector: the copy happens after the accesses to the buffer that package
			// internal/mpi has annotated for the receive.
			race.Acquire(r.buf)
			copy(r.buf, data)
			r.status.Tag, r.status.Bytes = int(tag), len(data)
			r.phase = phaseIdle
			r.arrived, r.protocol = seq, record.Eager
			e.complete(r, nil)
			return nil
		}
		m := wire.Message{Kind: wire.MsgEager, Sig: sig, Context: context, Tag: tag, Seq: seq, Length: len(data)}
		return e.deliverOrKeep(r, source, &m, data, cost)
	}
	var m wire.Message
	data, err := m.Parse(b)
	if err != nil {
		return err
	}
	if p.err != nil {
		return nil // the peer has failed or left, so the engine ignores later messages from it
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
		return e.arrive(source, &m, nil, 0) // an RTS takes no credit; see send.go
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
	case wire.MsgPull:
		return e.receivePull(source, &m)
	case wire.MsgReady:
		return e.receiveReady(source, &m)
	case wire.MsgCredit:
		if e.leaving != nil {
			e.sendLeave(source)
		}
	}
	return nil
}

// Protocol errors: the errors of messages that no correct peer sends.
var (
	errSequence = errors.New("a message was lost or came twice")
	errCredit   = errors.New("more credit returned than was taken")
	errOverrun  = errors.New("sent beyond its credit")
	errMember   = errors.New("a message to a group that the sender is not a member of")
	errTag      = errors.New("a message with a negative tag")
	errHandle   = errors.New("a message for a request that does not exist")
	errOffset   = errors.New("data outside the request's buffer")
)

// arrive handles a message of the program that has arrived from source: it finds the posted receive
// that the message matches. cost is the credit that the message took from its sender.
func (e *Engine) arrive(source int32, m *wire.Message, data []byte, cost int) error {
	if m.Tag < 0 {
		return errTag
	}
	return e.deliverOrKeep(e.posted.match(matchKey{m.Context, source, m.Tag}), source, m, data, cost)
}

// deliverOrKeep gives a message to r, the posted receive that the message matches. If r is nil,
// deliverOrKeep puts the message into the unexpected queue. If instead the communicator is revoked,
// or this rank is in Finalize and the sender waits for the receive, deliverOrKeep drops the message
// (see refuse). It returns an error if the peer has sent beyond its credit.
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

// receiveReply handles a peer's answer to a send of this rank: a MsgCTS, MsgFin or MsgAck. It also
// handles the MsgFin of a peer whose send to this rank has failed.
func (e *Engine) receiveReply(source int32, m *wire.Message, data []byte) error {
	if m.Kind == wire.MsgFin {
		if r, _ := e.slot(m.Handle, kindRecv, source); r != nil {
			return e.sendFailed(r, data)
		}
	}
	r, err := e.slot(m.Handle, kindSend, source)
	switch {
	case r == nil:
		return err
	case !r.awaitsReply():
		return errHandle
	case m.Kind == wire.MsgFin:
		r.err = finError(r.ctx.rank(source), "receive", data)
		if p := r.parts; p != nil && r.err == nil && p.left > 0 && p.remote != 0 {
			return errHandle // the receiver has a buffer for the message, and cannot have all partitions
		} else if p != nil && r.err != nil {
			p.remote = 0 // the receiver begins again with other Partitions
		}
	case (m.Kind == wire.MsgAck) != (r.header.Kind == wire.MsgEagerSync):
		return errHandle
	case m.Kind == wire.MsgCTS:
		if m.Length > r.size() {
			return errHandle
		}
		if r.parts != nil {
			return e.receiveCTS(r, m)
		}
		e.stream(r, m.Key, m.Length)
		return nil
	}
	r.replied = true
	if !r.inflight {
		e.complete(r, r.err)
	}
	return nil
}

// sendFailed ends a receive whose sender could not copy all of its segments. data is the data of the sender's
// MsgFin.
func (e *Engine) sendFailed(r *request, data []byte) error {
	if r.phase != phaseReceiving || r.parts != nil || len(data) == 0 {
		return errHandle
	}
	e.complete(r, finError(r.ctx.rank(r.peer), "send all of the message", data))
	return nil
}

// stream starts to send the first n bytes of the data of r in segments, to the receiver's request
// remote.
func (e *Engine) stream(r *request, remote uint64, n int) {
	r.phase = phaseStreaming
	r.remote, r.total, r.offset = remote, n, 0
	// If the endpoint still has the RTS, opDone sends the first segment when the RTS has left.
	if !r.inflight {
		e.sent(r)
	}
}

// receiveSegment handles a MsgData: a segment of the data of a rendezvous without RMA.
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
	if r.parts != nil {
		e.startMoving(r)
	}
	r.deliver(r.offset, data)
	if r.offset += len(data); r.offset == r.total {
		if r.parts != nil {
			r.parts.finish()
		}
		e.complete(r, r.err)
	}
	return nil
}

// protocolError marks a peer as failed because it broke the protocol.
func (e *Engine) protocolError(peer int32, err error) {
	e.peerDown(peer, fmt.Errorf("%w: %w", transport.ErrProtocol, err), false)
}

// peerError returns the error of an operation with a peer. err is what the transport returned for
// the operation. If the engine knows that the peer has ended, peerError returns the error of that
// end instead.
func (e *Engine) peerError(peer int32, err error) error {
	if p := &e.peers[peer]; p.err != nil {
		return p.err
	}
	if errors.Is(err, elem.ErrDevice) {
		return err // of this rank, not of the peer
	}
	if errors.Is(err, transport.ErrPeerDown) || errors.Is(err, transport.ErrPeerLeft) {
		return failedError(peer, err)
	}
	return fmt.Errorf("rank %d of the world: %w", peer, err)
}

// failedError returns the error of operations with a peer that has ended; err is what the transport
// has reported.
func failedError(peer int32, err error) error {
	return &ReasonError{fmt.Errorf("%w: rank %d of the world: %w", ErrProcFailed, peer, err), int(peer)}
}

// peerDown ends the requests and waits that need a peer which has ended. left says that the peer
// has shut down in good order. The program can still receive the messages of the peer that have
// arrived whole. An RTS of the peer also stays in the unexpected queue, although its data is lost:
// the receive that matches it must fail, and must not get a later message. (Receives from any source
// drop the RTS after Acknowledge; see findUnexpected.)
func (e *Engine) peerDown(peer int32, err error, left bool) {
	if e.peers[peer].err == nil {
		e.markEnded(peer, failedError(peer, err), left)
	}
}

// markEnded does the work of peerDown; why is the error of operations with the peer. It may run a
// second time for a peer that has left in good order, to mark the peer as failed.
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
			return false // the endpoint uses the request's buffers, and will report its end
		}
		if r.peer == wild { // a receive from any source
			if r.stays && r.phase == phasePosted && !left && r.waiter != nil {
				e.wake(r.waiter) // it returns ErrPending
			}
			return r.phase == phasePosted && !left && !r.stays && r.ctx.has(peer)
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

// has reports whether the rank with the world rank world is a member of the group.
func (c *Context) has(world int32) bool {
	if c.members == nil {
		return true
	}
	_, ok := c.rankOf[world]
	return ok
}
