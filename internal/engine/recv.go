package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/elem"
	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/transport"
)

// Recv blocks until a message that env accepts is in buf. If the message is longer than buf, Recv
// returns ErrTruncate; buf then holds the part that fits, and Status.Bytes is the length of the
// message. If ctx ends first, Recv returns an error that wraps ctx's error, and another receive can
// get the message. If this error is an [Unfinished], the transport still uses buf; otherwise the
// caller owns buf again.
//
// Hot path: no allocation, no system call except the endpoint's.
func (c *Context) Recv(ctx context.Context, buf []byte, env Env) (Status, error) {
	e := c.e
	e.mu.Lock()
	st, err := e.blockOn(ctx, c.startRecv(buf, &env, false, nil))
	e.mu.Unlock()
	return st, err
}

// Irecv starts a receive of a message that env accepts. The engine uses buf until the request is
// complete. If env accepts any source, and a member of the group has failed that Acknowledge has
// not recorded, the receive stays posted, and Wait, Test and so on return ErrPending; see
// Request.pendingErr. With Env.Attended the receive fails instead, as Recv does.
func (c *Context) Irecv(buf []byte, env Env) Request {
	e := c.e
	e.mu.Lock()
	q := e.public(c.startRecv(buf, &env, !env.Attended, nil), env.Attended)
	e.mu.Unlock()
	return q
}

// startRecv starts a receive and returns its request, which may be complete. stays is the value of
// request.stays. parts is nil, except for a partitioned message.
func (c *Context) startRecv(buf []byte, env *Env, stays bool, parts *Partitions) *request {
	e := c.e
	r := e.take(kindRecv)
	r.ctx, r.buf, r.sig, r.stays = c, buf, env.Sig, stays
	if env.Form != nil {
		r.setData(buf, env.Form)
	}
	if parts != nil {
		r.parts, r.loaded = parts, true
		parts.r = r
	}
	key := c.key(env)
	r.peer, r.tag = key.source, key.tag
	r.node.key, r.status.Source = key, env.Peer
	if e.unexpected.n > 0 {
		if u := c.findUnexpected(key); u != nil {
			e.unexpected.take(u)
			e.accept(r, u)
			return r
		}
	}
	if err := c.cannotReceive(key.source); err != nil && (!stays || key.source != wild || c.unusable() != nil) {
		e.complete(r, err)
		return r
	}
	r.phase = phasePosted
	e.posted.post(r)
	return r
}

// findUnexpected returns the earliest unexpected message that a receive or probe with the key accepts;
// nil: there is none. If the key accepts any source, findUnexpected drops each RTS that it meets from a sender
// whose failure Acknowledge has recorded: the data of that message is lost, and the call ignores the sender.
//
// Hot path: no allocation.
func (c *Context) findUnexpected(key matchKey) *unexpected {
	e := c.e
	for {
		u := e.unexpected.find(key)
		if u == nil || key.source != wild || !c.acknowledged[u.source] || u.header.Kind != wire.MsgRTS {
			return u
		}
		e.unexpected.take(u)
		e.noteDropped(u.source, &u.header)
		e.discard(u)
	}
}

// cannotReceive returns an error if a wait for source, a world rank, cannot succeed any more:
// neither a message from source nor a store of source to shared memory can arrive. For any source
// (wild) it returns an error if a member of the group has failed that Acknowledge has not recorded,
// because this member may be the sender that the receive waits for (ULFM).
func (c *Context) cannotReceive(source int32) error {
	if err := c.unusable(); err != nil {
		return err
	}
	if source == wild {
		return c.unacknowledged()
	}
	if err := c.e.peers[source].err; err != nil {
		return err
	}
	return c.finalized(source)
}

// accept gives the unexpected message u to the receive r, which it matches. The caller has taken u
// out of the unexpected queue.
func (e *Engine) accept(r *request, u *unexpected) {
	switch s := u.self; {
	case e.closed:
		e.complete(r, errFinalize)
	case u.held != nil && u.held.lost != nil:
		if e.matched(r, u.source, &u.header) == nil {
			e.complete(r, u.held.lost)
		}
	case s.r != nil && s.doneLocked(): // Engine.fail or revoke has ended the send, whose buffer held the data
		e.complete(r, r.ctx.unusable())
	case s.r != nil:
		e.complete(s.r, e.completeOwn(r, s.r, &u.header))
	case u.held != nil:
		e.matchHeld(r, u)
		return
	case u.header.Kind == wire.MsgRTS:
		e.fetch(r, u.source, &u.header, u.nodes[0].seq)
	default:
		_ = e.completeEager(r, u.source, &u.header, u.data)
	}
	e.discard(u)
}

// discard frees the entry of an unexpected message that is in no queue, and returns its credit to
// the sender.
func (e *Engine) discard(u *unexpected) {
	if u.held != nil {
		u.held.msg = nil
	}
	if p := &e.peers[u.source]; int(u.source) != e.rank {
		p.unexpectedBytes -= u.cost
	}
	e.buffers.put(u.data)
	source, cost := u.source, u.cost
	e.unexpected.put(u)
	if cost > 0 {
		e.returnCredit(source, cost)
	}
}

// keepUnexpected puts a message that no posted receive matches into the unexpected queue, with a
// copy of data, and wakes the goroutines whose probes accept the message. cost is the credit that
// the message has taken.
func (e *Engine) keepUnexpected(source int32, m *wire.Message, data []byte, cost int) *unexpected {
	u := e.unexpected.get()
	u.header, u.source, u.cost = *m, source, cost
	u.data = e.buffers.get(len(data))
	copy(u.data, data)
	e.unexpected.add(u)
	e.wakeProbes(u)
	return u
}

// wakeProbes wakes the goroutines in Probe, Mprobe and Attend that wait for a message like u.
func (e *Engine) wakeProbes(u *unexpected) {
	for _, w := range e.probeWaiters {
		if w.key.accepts(u.nodes[0].key) {
			e.wake(w)
		}
	}
}

// matched records in the receive r which message it has matched: source is the sender, and m the
// header. In these cases matched completes the receive with an error, which it also returns: the
// message belongs to another collective call, it has elements of another type, or its sender is not
// in the group. If the message is too long, matched only stores ErrTruncate in r.err.
func (e *Engine) matched(r *request, source int32, m *wire.Message) error {
	if r.peer == wild {
		if !r.ctx.has(source) {
			e.protocolError(source, errMember)
			err := e.peers[source].err
			e.complete(r, err)
			return err
		}
		r.peer, r.status.Source = source, r.ctx.rank(source)
	}
	r.status.Tag, r.status.Bytes = int(m.Tag), m.Length
	r.arrived = m.Seq
	switch {
	case int(source) == e.rank:
		r.protocol = record.Own
	case m.Kind == wire.MsgRTS:
		r.protocol = record.Rendezvous
	default:
		r.protocol = record.Eager
	}
	r.phase = phaseIdle
	// For the race detector: the engine writes to the buffer after the accesses that package
	// internal/mpi has annotated for the receive.
	r.acquire()
	if r.sig != m.Sig && r.sig != 0 && m.Sig != 0 {
		err := e.mismatch(r.status.Source, r.ctx.rank(int32(e.rank)), m.Sig, r.sig)
		e.complete(r, err)
		return err
	}
	if n := r.size(); m.Length > n {
		r.err = fmt.Errorf("%w: %d bytes into %d", ErrTruncate, m.Length, n)
	}
	return nil
}

// MismatchError is the error of a message and a receive that match but have different values of
// Env.Sig: they belong to two different collective calls, or have two different element types.
type MismatchError struct {
	// Rank of the other side in the context's group: the sender's in an error of a receive, the
	// receiver's in an error of a send.
	Rank int
	text string
}

// Error returns a text with both ranks and the name of both signatures, such as element types. On a
// sender it contains the text that the receiver has sent.
func (m *MismatchError) Error() string { return fmt.Sprintf("%v: %s", ErrMismatch, m.text) }

// Unwrap returns ErrMismatch.
func (m *MismatchError) Unwrap() error { return ErrMismatch }

// mismatch returns the error of a receive on rank to with the signature received, which has matched
// a message from rank from with the signature sent. The ranks are those of the context's group.
func (e *Engine) mismatch(from, to int, sent, received uint16) error {
	name := e.typeName
	if name == nil {
		name = func(sig uint16) string { return fmt.Sprintf("type %#x", sig) }
	}
	return &MismatchError{from, fmt.Sprintf("rank %d sent elements of %s, and rank %d receives %s", from, name(sent), to, name(received))}
}

// completeEager completes the receive r with data, the data of an eager message. It returns an
// error if the message and the receive do not belong together (see matched), and nil if the message
// is too long. If the sender waits for the receive, completeEager answers the message.
//
// Hot path: no allocation, no system call.
func (e *Engine) completeEager(r *request, source int32, m *wire.Message, data []byte) error {
	err := e.matched(r, source, m)
	if err == nil {
		r.deliver(0, data)
	}
	switch {
	case m.Kind != wire.MsgEagerSync:
	case err != nil:
		e.sendFin(source, m.Handle, err)
	default:
		e.sendControl(source, wire.Message{Kind: wire.MsgAck, Handle: m.Handle}, nil)
	}
	if err == nil {
		e.complete(r, r.err)
	}
	return err
}

// fetch starts to transfer the data of a rendezvous message into the buffer of the receive r. m is
// the message's RTS, and arrival the arrival number of the RTS.
func (e *Engine) fetch(r *request, source int32, m *wire.Message, arrival uint64) {
	if err := e.matched(r, source, m); err != nil {
		e.sendFin(source, m.Handle, err)
		return
	}
	p := &e.peers[source]
	r.loaded = true
	r.total = min(m.Length, r.size())
	r.offset = 0
	r.remote, r.key = m.Addr, m.Key
	r.header, r.node.seq = *m, arrival // returnMessage needs them if the call is cut short
	buf, dev := r.whole(p.rail)
	canRead := p.err == nil && r.total > 0 && buf != nil && m.Addr != wire.NoRegion && p.rail.reaches(source, m.Key) &&
		(r.parts == nil || r.parts.size() == m.Length && m.Length == len(r.buf))
	if !canRead || dev == (transport.DeviceMemory{}) && p.rail.attr.MRMode&transport.MRLocal == 0 {
		e.fetchBy(r, canRead)
		return
	}
	switch err := e.registerFor(r, p.rail, buf[:r.total], transport.Local|transport.MayKeep); {
	case errors.Is(err, errRegistering):
		r.phase = phaseRegistering
	case err != nil:
		e.fetched(r, err)
	default:
		e.fetchBy(r, r.region != nil)
	}
}

// fetchBy continues fetch: canRead says whether this rank reads the data by RMA.
func (e *Engine) fetchBy(r *request, canRead bool) {
	source, m := r.peer, &r.header
	p := &e.peers[source]
	switch {
	case p.err != nil:
		e.complete(r, p.err)
	case r.parts != nil && r.parts.ended && !canRead:
		e.fetched(r, finalizedError{source})
	case r.total == 0:
		e.fetched(r, nil)
	case canRead && r.parts != nil:
		e.pull(r, m)
	case canRead:
		r.phase = phaseReading
		e.submit(r)
	default:
		r.phase = phaseReceiving
		if r.parts == nil {
			e.startMoving(r)
		}
		cts := wire.Message{Kind: wire.MsgCTS, Handle: m.Handle, Key: r.handle(), Length: r.total}
		if r.parts != nil {
			r.parts.idSent = true
			cts.Addr = r.parts.id
		}
		e.sendControl(source, cts, nil)
	}
}

// fetched ends a receive by rendezvous without MsgData: it sends MsgFin to the sender, and
// completes the receive. err is the error of the transfer.
func (e *Engine) fetched(r *request, err error) {
	e.sendFin(r.peer, r.header.Handle, err)
	if err == nil {
		err = r.err // ErrTruncate if the message was too long, else nil
	}
	e.complete(r, err)
}

// read posts the next RMA read of a rendezvous: as many bytes as one read may have.
func (e *Engine) read(r *request) error {
	p := &e.peers[r.peer]
	n := min(r.total-r.offset, p.rail.attr.MaxRMASize)
	r.op.Peer = transport.Addr(r.peer)
	buf, _ := r.whole(p.rail)
	r.op.Data = buf[r.offset : r.offset+n]
	r.op.Region = r.region
	r.op.RemoteKey = r.key
	r.op.RemoteAddr = r.remote + uint64(r.offset)
	return p.rail.rma.Read(&r.op)
}

// readDone continues a receive after one of its RMA reads has ended with err.
func (e *Engine) readDone(r *request, err error) {
	if r.cut != nil { // the call was cut short, and its message is unexpected again; see cut.go
		e.complete(r, err)
		return
	}
	if err != nil {
		e.fetched(r, e.readError(r, err))
		return
	}
	r.offset += len(r.op.Data)
	switch {
	case r.offset < r.total:
		e.submit(r)
	case r.parts != nil:
		e.partitionsRead(r)
	case len(e.revoked) > 0:
		e.fetched(r, e.revoked[r.ctx.id/2]) // the sender may have changed the data since the revocation
	default:
		e.fetched(r, nil)
	}
}

// readError returns the error of the receive r, one of whose RMA reads has failed with err. If the
// memory region of the sender no longer exists, the send has ended. The reason is then that the
// communicator was revoked, which this rank may not know yet.
func (e *Engine) readError(r *request, err error) error {
	if e.peers[r.peer].err != nil || !errors.Is(err, transport.ErrKey) {
		return e.peerError(r.peer, err)
	}
	if why := e.revoked[r.ctx.id/2]; why != nil {
		return why
	}
	return reasonError("%w: rank %d has withdrawn its message: %w", ErrRevoked, r.ctx.rank(r.peer), err)
}

// sendFin sends a MsgFin for the peer's request handle. The request is a rendezvous or synchronous send that has
// ended at this rank, or a receive whose data this rank cannot send. why is the error; nil: the message was
// received. The data of the MsgFin is empty, or a byte that finCode returns and then the text of the error.
func (e *Engine) sendFin(peer int32, handle uint64, why error) {
	var text []byte
	if why != nil {
		text = append(text, finCode(why))
		text = append(text, why.Error()...)
		text = text[:min(len(text), maxCause)]
	}
	e.sendControl(peer, wire.Message{Kind: wire.MsgFin, Handle: handle}, text)
}

// finErrors lists the sentinel errors that a MsgFin can report. The code of an error is its index.
var finErrors = []error{nil, ErrRevoked, ErrMismatch, ErrClosed, ErrProcFailed, ErrFinalized, elem.ErrDevice}

// finCode returns the code of the first of finErrors that err wraps; 0: err wraps none of them.
func finCode(err error) byte {
	for i, f := range finErrors[1:] {
		if errors.Is(err, f) {
			return byte(i + 1)
		}
	}
	return 0
}

// finError returns the error that the data of a peer's MsgFin reports; nil: there is none. rank is
// the peer's rank in the group, and what says what the peer did not do.
func finError(rank int, what string, text []byte) error {
	if len(text) == 0 {
		return nil
	}
	text = text[:min(len(text), maxCause)]
	code := int(text[0])
	if code == 0 || code >= len(finErrors) {
		return fmt.Errorf("rank %d did not %s: %q", rank, what, text[1:])
	}
	if why := finErrors[code]; errors.Is(why, ErrMismatch) {
		return &MismatchError{rank, fmt.Sprintf("rank %d did not %s: %s", rank, what, bytes.TrimPrefix(text[1:], []byte(ErrMismatch.Error()+": ")))}
	}
	return fmt.Errorf("%w: rank %d did not %s: %q", finErrors[code], rank, what, text[1:])
}
