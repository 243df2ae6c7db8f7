package rma

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/wire"
)

// Operations by messages
//
//	origin                                             target
//	  Put ───────── WinPut: addr, data ─────────────────► copied into the part
//	  Accumulate ── WinAcc: op, addr, data ─────────────► combined with it
//	  Get ───────── WinGet: addr, bytes ────────────────► ┐
//	  FetchOp ───── WinFetch: op, addr, bytes, data ────► ├ copied out, then combined
//	  CompareSwap ─ WinSwap: addr, 2 elements ──────────► ┘
//	      ◄──────── WinReply: count, data ────────────────┘
//	      ◄──────── WinRefused: count ──────────────────── instead, if a region is not attached there
//	  Flush ─────── WinSync, or a flag on the last ─────► all earlier messages are applied,
//	      ◄──────── WinAck: count ──────────────────────── because messages arrive in order
//
//	  Lock ──────── WinLock: exclusive? ────────────────► queued in the order of requests
//	      ◄──────── WinGrant ───────────────────────────── when the lock is granted
//	  TryLock ───── WinLock: exclusive?, try ───────────► granted at once, or
//	      ◄──────── WinBusy ────────────────────────────── the lock is not free
//	  Unlock ────── WinUnlock ──────────────────────────► after the flush
//	      ◄──────── WinGrant ───────────────────────────── with lock tables: from the rank that released the lock
//
//	      ◄──────── WinGone ────────────────────────────── the window is closed there
//
// The target applies a message from the receive buffer, during progress under the engine's lock,
// and keeps no copy. The memory of its pending answers is bounded, because an origin may request
// only so many bytes and messages at once; see the limits in window.go. A target never waits for an
// origin, so an origin that waits for a target cannot deadlock.
//
// Messages from one rank to another arrive in order, so a count identifies them. The count in an
// answer is the number of the origin's WinPut, WinGet, WinAcc, WinFetch and WinSwap messages that
// the target has applied. For the same reason an origin's operations by message with one target end
// in the order in which they began, and its accumulates happen in program order.

// The protocol errors of a peer: the engine marks a peer as failed if one of its messages causes
// such an error.
var (
	errAddr    = errors.New("operation outside this rank's part of the window")
	errOp      = errors.New("accumulate that is not defined for the window")
	errElem    = errors.New("operation on parts of elements")
	errAnswer  = errors.New("answer that matches no request")
	errFlood   = errors.New("too many requests at once")
	errLocking = errors.New("lock requested or released in the wrong state")
)

// sendQueued sends the messages of the operations queued for a target, as far as the limits permit.
//
// Hot path: no allocation in steady state.
func (t *target) sendQueued() {
	for op := t.queued.head; op != nil && !op.posted; op = t.queued.head {
		n := op.messageBytes(op.offset)
		answers := op.result != nil
		if t.sent-t.acked >= maxMessages || answers && t.expected > 0 && t.expected+n > maxReply {
			return
		}
		last := op.offset+n == op.length
		m := wire.Window{Kind: op.kind, Op: uint8(op.op), Addr: uint64(op.disp + op.offset), Count: op.region}
		var data []byte
		switch {
		case op.shape != nil:
			data = op.packMessage(&m, n)
		case op.kind == wire.WinSwap:
			data = op.pair
		case op.src != nil:
			data = op.src[op.offset : op.offset+n]
		}
		if op.kind == wire.WinGet || op.kind == wire.WinFetch {
			m.Bytes = uint64(n)
		}
		t.sent++
		if answers {
			t.expected += n
			t.ackRequested = t.sent // the reply to this message also acknowledges the earlier ones
		} else if t.sent%ackEvery == 0 || last && (op.hasTicket || op.group != nil || t.flushes[0].n > 0 && op.next == nil) {
			m.Flag = true
			t.ackRequested = t.sent
		}
		op.offset += n
		if last {
			t.queued.pop()
			op.last, op.sent = t.sent, true
			t.awaited.push(op)
		}
		op.SetMessage(m, data)
		done, err := t.w.port.Post(op.Transfer, engine.TransferMessage, t.rank, 0)
		if err != nil {
			t.fail(err)
			return
		}
		if op.posted = !done; done && last && !answers {
			op.releaseBuffer()
		}
	}
}

// messageBytes returns the number of data bytes of the operation's message that begins at offset.
func (op *operation) messageBytes(offset int) int {
	if op.shape != nil {
		return op.shapedBytes(offset)
	}
	n := min(op.to.chunk, maxChunk)
	if u := op.to.w.unit(op.kind); u > 1 {
		n = max(u, n/u*u)
	}
	return min(n, op.length-offset)
}

// requestAck ensures that the target acknowledges all messages sent so far. While operations are
// queued it does nothing: sendQueued and answered request the acknowledgement when the queue is
// empty.
func (t *target) requestAck() {
	if t.queued.head == nil && t.acked != t.sent && t.ackRequested != t.sent {
		t.ackRequested = t.sent
		t.sendControl(wire.Window{Kind: wire.WinSync})
	}
}

// Deliver implements engine.Service: it handles a message of the rank source.
//
// Hot path: no allocation in steady state.
func (s *service) Deliver(source int, m wire.Window, data []byte) error {
	w := (*Window)(s)
	t := &w.targets[source]
	if m.Kind.Answer() {
		return t.answered(m, data)
	}
	switch m.Kind {
	case wire.WinLock:
		if m.Flag && m.Passes {
			return errLocking
		}
		if m.Try && !w.grantable(m.Flag, m.Passes) {
			return t.refuse()
		}
		return w.enqueue(t, m.Flag, m.Passes)
	case wire.WinUnlock:
		if t.peerLock == lockNone {
			return errLocking
		}
		w.dequeue(t)
		return nil
	case wire.WinSync:
		t.acknowledge()
		return nil
	default:
	}
	if m.Runs || w.cfg.Dynamic {
		return w.deliverAt(t, &m, data)
	}
	part, err := w.checkedPart(&m, len(data))
	if err != nil {
		return err
	}
	t.applied++
	var former *controlMessage
	if m.Kind == wire.WinGet || m.Kind == wire.WinFetch || m.Kind == wire.WinSwap {
		if former, err = t.newReply(part); err != nil {
			return err
		}
	}
	w.apply(&m, part, data)
	if former != nil {
		former.send(wire.Window{Kind: wire.WinReply, Count: t.applied})
	} else if m.Flag {
		t.acknowledge()
	}
	return nil
}

// checkedPart checks a peer's operation, and returns the bytes of this rank's part that it
// accesses. data is the number of data bytes of the message.
func (w *Window) checkedPart(m *wire.Window, data int) ([]byte, error) {
	n, err := w.checkedSize(m, data)
	if err != nil {
		return nil, err
	}
	if size := uint64(len(w.local)); m.Addr > size || uint64(n) > size-m.Addr {
		return nil, errAddr
	}
	if m.Kind != wire.WinPut && m.Kind != wire.WinGet && w.cfg.Align > 1 && m.Addr%uint64(w.cfg.Align) != 0 {
		return nil, errElem
	}
	return w.local[m.Addr : m.Addr+uint64(n)], nil
}

// checkedSize checks a peer's operation, except where it works, and returns the number of bytes of
// this rank's memory that it accesses. data is the number of data bytes of the message, without its
// runs.
func (w *Window) checkedSize(m *wire.Window, data int) (int, error) {
	n, elem := data, w.cfg.Elem
	switch m.Kind {
	case wire.WinSwap:
		if elem == 0 || data != 2*elem {
			return 0, errElem
		}
		n = elem
	case wire.WinGet:
		if m.Bytes > maxChunk {
			return 0, errFlood
		}
		n = int(m.Bytes)
	case wire.WinAcc, wire.WinFetch:
		if Op(m.Op) >= Ops || Op(m.Op) > NoOp && w.kernels[m.Op] == nil {
			return 0, errOp
		}
		if m.Kind == wire.WinFetch {
			if m.Bytes > uint64(max(maxChunk, elem)) {
				return 0, errFlood
			}
			n = int(m.Bytes)
			if want := n; Op(m.Op) == NoOp && data != 0 || Op(m.Op) != NoOp && data != want {
				return 0, errElem
			}
		}
		if elem == 0 || n%elem != 0 {
			return 0, errElem
		}
	default: // WinPut: its length is that of its data
	}
	return n, nil
}

// apply applies a message to part, the bytes of the window that it accesses.
func (w *Window) apply(m *wire.Window, part, data []byte) {
	switch m.Kind {
	case wire.WinPut:
		copy(part, data)
	case wire.WinAcc, wire.WinFetch:
		w.combine(Op(m.Op), part, data)
	case wire.WinSwap:
		if n := len(part); bytes.Equal(part, data[n:]) {
			copy(part, data[:n])
		}
	default: // WinGet
	}
}

// combine applies an operation to elements of the window.
func (w *Window) combine(op Op, part, data []byte) {
	switch op {
	case NoOp:
	case Replace:
		copy(part, data)
	default:
		if !atomics.Aligned(data, w.cfg.Align) {
			if cap(w.scratch) < len(data) {
				w.scratch = alignedBytes(max(len(data), maxChunk))
			}
			data = w.scratch[:copy(w.scratch[:len(data)], data)]
		}
		w.kernels[op](part, data)
	}
}

// serveSelf executes an operation of n bytes on this rank's own part, in segments, so that it does
// not hold the engine's lock for long.
func (w *Window) serveSelf(c *call, n int) error {
	unit := max(1, w.unit(c.kind))
	step := max(unit, maxChunk/unit*unit)
	for at := 0; at < n; at += step {
		if at > 0 {
			w.port.YieldLock()
			if w.err != nil {
				return w.err
			}
		}
		w.serve(c, w.local[c.disp+at:c.disp+min(n, at+step)], at)
	}
	return nil
}

// serve executes a segment of an operation on part. The segment begins at byte at of the operation.
// The caller ensures that no other rank or goroutine changes elements of part meanwhile.
func (w *Window) serve(c *call, part []byte, at int) {
	end := at + len(part)
	if c.result != nil {
		copy(c.result[at:end], part)
	}
	switch c.kind {
	case wire.WinPut:
		copy(part, c.src[at:end])
	case wire.WinAcc, wire.WinFetch:
		if c.op != NoOp {
			w.combine(c.op, part, c.src[at:end])
		}
	case wire.WinSwap:
		if bytes.Equal(part, c.compare) {
			copy(part, c.src)
		}
	default: // WinGet
	}
}

// answered processes a target's answer to a message of this rank.
func (t *target) answered(m wire.Window, data []byte) error {
	switch m.Kind {
	case wire.WinGrant:
		if t.w.tableLocks { // the message only wakes this rank; the lock table has the lock's state
			t.w.port.WakeAwait()
			return nil
		}
		if t.lock != lockRequested {
			if t.down != nil {
				return nil
			}
			return errLocking
		}
		t.granted()
		return nil
	case wire.WinBusy:
		return t.refused()
	case wire.WinGone:
		why := engine.ErrClosed
		if m.Flag {
			why = engine.ErrRevoked
		}
		t.fail(fmt.Errorf("%w: the window of rank %d", why, t.rank))
		return nil
	default:
	}
	if t.down != nil {
		return nil // the answer to an operation that has already failed
	}
	if m.Count-t.acked > t.sent-t.acked {
		return errAnswer
	}
	if m.Kind == wire.WinReply || m.Kind == wire.WinRefused {
		if m.Count == t.acked {
			return errAnswer
		}
		if err := t.completeThrough(m.Count - 1); err != nil {
			return err
		}
		op := t.awaited.head
		if op == nil {
			op = t.queued.head
		}
		if op == nil || !op.take(m.Kind, data) {
			return errAnswer
		}
	}
	if err := t.completeThrough(m.Count); err != nil {
		return err
	}
	t.sendQueued()
	if t.flushes[0].n > 0 {
		t.requestAck()
	}
	return nil
}

// take processes the answer to the oldest message of an operation that is not answered: the data of
// a WinReply, or a WinRefused. It returns false if the operation expects no such answer.
func (op *operation) take(kind wire.WindowKind, data []byte) bool {
	if op.result == nil {
		if kind == wire.WinReply {
			return false
		}
		op.refused = errDetached
		return op.region != 0
	}
	if op.received >= op.offset {
		return false
	}
	n := op.messageBytes(op.received)
	switch {
	case kind == wire.WinRefused && op.region == 0, kind == wire.WinReply && len(data) != n:
		return false
	case kind == wire.WinRefused:
		op.refused = errDetached
	case op.shape != nil && op.shape.result != nil:
		op.shape.result.Unpack(op.result, data, 0, op.received)
	default:
		copy(op.result[op.received:], data)
	}
	op.received += n
	op.to.expected -= n
	return true
}

// completeThrough ends the operations all of whose messages are among the first count messages. It
// returns an error if one of these operations has not got all its data.
func (t *target) completeThrough(count uint64) error {
	t.acked = count
	for op := t.awaited.head; op != nil && count-op.last < 1<<63; op = t.awaited.head {
		if op.result != nil && op.received < op.length {
			return errAnswer
		}
		t.awaited.pop()
		if op.acked = true; !op.posted {
			op.finish(op.refused)
		}
	}
	return nil
}

// controlMessage is a message of a window that belongs to no pending operation of this rank: an
// answer, an acknowledgement or a lock message. Windows reuse them.
type controlMessage struct {
	*engine.Transfer
	t      *target
	kind   wire.WindowKind
	buf    []byte          // data of a WinReply; empty for other messages
	answer bool            // the message counts in t.answers, and its data in t.answerBytes
	next   *controlMessage // in the list Window.freeControls
}

// newControl returns a control message to a target.
func (t *target) newControl() *controlMessage {
	w := t.w
	x := w.freeControls
	if x == nil {
		x = &controlMessage{Transfer: w.port.NewTransfer()}
		x.User = x
	} else {
		w.freeControls = x.next
	}
	x.t, x.next = t, nil
	return x
}

// newReply returns a control message with a copy of part, the bytes of this rank's part that the
// rank t has requested.
func (t *target) newReply(part []byte) (*controlMessage, error) {
	x, err := t.newAnswer(len(part))
	if err == nil {
		x.buf = append(x.buf, part...)
	}
	return x, err
}

// newAnswer returns a control message to which the caller appends n bytes of data.
func (t *target) newAnswer(n int) (*controlMessage, error) {
	if n > t.answerLimit {
		return nil, errFlood
	}
	if t.answers >= maxAnswers || t.answerBytes > maxBehind*max(maxReply, t.w.cfg.Elem) {
		return nil, errFlood
	}
	x := t.newControl()
	x.buf = x.buf[:0]
	t.answers++
	t.answerBytes += n
	x.answer = true
	return x, nil
}

// acknowledge sends the rank t the number of its messages that this rank has applied. If the send
// of the previous acknowledgement has not completed, acknowledge leaves that to done.
func (t *target) acknowledge() {
	if t.ackBusy {
		t.ackAgain = true
		return
	}
	t.ackBusy = true
	t.newControl().send(wire.Window{Kind: wire.WinAck, Count: t.applied})
}

// sendControl sends a control message without data.
func (t *target) sendControl(m wire.Window) { t.newControl().send(m) }

// send sends a control message. It ignores errors: if the target has ended, the engine also calls
// Down.
func (x *controlMessage) send(m wire.Window) {
	x.kind = m.Kind
	x.SetMessage(m, x.buf)
	done, err := x.t.w.port.Post(x.Transfer, engine.TransferMessage, x.t.rank, 0)
	if done || err != nil {
		x.done()
	}
}

// done puts a control message into the free list after its send has completed or failed. It sends
// the next acknowledgement if one is due.
func (x *controlMessage) done() {
	t := x.t
	if x.answer {
		t.answers--
		t.answerBytes -= len(x.buf)
		x.answer = false
	}
	again := false
	if x.kind == wire.WinAck {
		t.ackBusy = false
		again, t.ackAgain = t.ackAgain, false
	}
	x.buf = x.buf[:0]
	x.t = nil
	x.next = t.w.freeControls
	t.w.freeControls = x
	if again && t.w.err == nil {
		t.acknowledge()
	}
}
