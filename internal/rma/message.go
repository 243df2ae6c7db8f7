package rma

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/weft-hpc/weft/internal/atomics"
	"github.com/weft-hpc/weft/internal/engine"
	"github.com/weft-hpc/weft/internal/wire"
)

// Windows by messages
//
//	origin                                             target
//	  Put ───────── WinPut: addr, data ─────────────────► copied into the part
//	  Accumulate ── WinAcc: op, addr, data ─────────────► combined with it
//	  Get ───────── WinGet: addr, bytes ────────────────► ┐
//	  FetchOp ───── WinFetch: op, addr, bytes, data ────► ├ copied out, then combined
//	  CompareSwap ─ WinSwap: addr, 2 elements ──────────► ┘
//	      ◄──────── WinReply: count, data ────────────────┘
//	  Flush ─────── WinSync, or a flag on the last ─────► all before is done:
//	      ◄──────── WinAck: count ──────────────────────── as messages come in order
//
//	  Lock ──────── WinLock: exclusive? ────────────────► queued, first come first
//	      ◄──────── WinGrant ───────────────────────────── when it is its turn
//	  Unlock ────── WinUnlock ──────────────────────────► after the flush
//	      ◄──────── WinGrant ───────────────────────────── by boards: from any rank that gave the lock back
//
//	      ◄──────── WinGone ────────────────────────────── the window is closed there
//
// The target applies a message where it lies, in progress under the engine's
// lock, and keeps nothing of it. Of what it sends itself, answers wait at most
// for as many bytes and messages as the origin may ask for at once; see the
// limits in window.go. A target never waits for an origin, so an origin that
// waits for one is never part of a circle.
//
// Messages from one rank to another arrive in order, so counts name them: count
// in an answer is how many of the origin's WinPut, WinGet, WinAcc, WinFetch and
// WinSwap the target has dealt with, and the origin's operations end in the
// order in which they began. For the same reason the accumulates of an origin
// happen in the order of its program.

// The ways in which a peer can break the protocol.
var (
	errAddr    = errors.New("an operation outside this rank's part of the window")
	errOp      = errors.New("an accumulate that is not defined for the window")
	errElem    = errors.New("an operation on parts of elements")
	errAnswer  = errors.New("an answer that nobody asked for")
	errFlood   = errors.New("more questions at once than a rank may have")
	errLocking = errors.New("a lock asked for or given back out of turn")
)

// pump sends what is queued for a target, as far as the limits permit.
//
// Hot path: no allocation in steady state.
func (t *target) pump() {
	for op := t.queued.head; op != nil && !op.posted; op = t.queued.head {
		n := op.piece(op.offset)
		answers := op.result != nil
		if t.sent-t.acked >= maxMessages || answers && t.expected > 0 && t.expected+n > maxReply {
			return
		}
		last := op.offset+n == op.length
		m := wire.Window{Kind: op.kind, Op: uint8(op.op), Addr: uint64(op.disp + op.offset)}
		var data []byte
		if op.src != nil {
			data = op.src[op.offset : op.offset+n]
		}
		if op.kind == wire.WinSwap {
			data = op.pair
		}
		if op.kind == wire.WinGet || op.kind == wire.WinFetch {
			m.Bytes = uint64(n)
		}
		t.sent++
		if answers {
			t.expected += n
			t.asked = t.sent // the reply says so too
		} else if t.sent%ackEvery == 0 || last && (op.asked || t.flushes[0].n > 0 && op.next == nil) {
			m.Flag = true
			t.asked = t.sent
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
			op.release()
		}
	}
}

// piece is how many bytes of an operation the message has that begins at
// offset.
func (op *operation) piece(offset int) int {
	n := min(op.to.chunk, maxChunk)
	if u := op.to.w.unit(op.kind); u > 1 {
		n = max(u, n/u*u)
	}
	return min(n, op.length-offset)
}

// ask makes sure that the target will say when it has done all that was sent.
func (t *target) ask() {
	if t.queued.head == nil && t.acked != t.sent && t.asked != t.sent {
		t.asked = t.sent
		t.say(wire.Window{Kind: wire.WinSync})
	}
}

// Deliver is engine.Service's: it takes a message.
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
		return w.enqueue(t, m.Flag)
	case wire.WinUnlock:
		if t.holds == lockNone {
			return errLocking
		}
		w.dequeue(t)
		return nil
	case wire.WinSync:
		t.acknowledge()
		return nil
	default:
	}
	part, err := w.at(&m, len(data))
	if err != nil {
		return err
	}
	t.applied++
	var former *note
	if m.Kind == wire.WinGet || m.Kind == wire.WinFetch || m.Kind == wire.WinSwap {
		if former, err = t.reply(part); err != nil {
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

// at returns the bytes that an operation of a peer is about, if it may be.
func (w *Window) at(m *wire.Window, data int) ([]byte, error) {
	n, elem := data, w.cfg.Elem
	switch m.Kind {
	case wire.WinSwap:
		if elem == 0 || data != 2*elem {
			return nil, errElem
		}
		n = elem
	case wire.WinGet:
		if m.Bytes > maxChunk {
			return nil, errFlood
		}
		n = int(m.Bytes)
	case wire.WinAcc, wire.WinFetch:
		if Op(m.Op) >= Ops || Op(m.Op) > NoOp && w.kernels[m.Op] == nil {
			return nil, errOp
		}
		if m.Kind == wire.WinFetch {
			if m.Bytes > uint64(max(maxChunk, elem)) {
				return nil, errFlood
			}
			n = int(m.Bytes)
			if want := n; Op(m.Op) == NoOp && data != 0 || Op(m.Op) != NoOp && data != want {
				return nil, errElem
			}
		}
		if elem == 0 || n%elem != 0 {
			return nil, errElem
		}
	default: // WinPut, whose data says it all
	}
	if size := uint64(len(w.local)); m.Addr > size || uint64(n) > size-m.Addr {
		return nil, errAddr
	}
	if m.Kind != wire.WinPut && m.Kind != wire.WinGet && w.cfg.Align > 1 && m.Addr%uint64(w.cfg.Align) != 0 {
		return nil, errElem
	}
	return w.local[m.Addr : m.Addr+uint64(n)], nil
}

// apply changes part of the window as a message says.
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

// serveSelf does an operation of n bytes on this rank's own part, piece by
// piece, so that the lock is never held for long.
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

// serve does what is asked for with a piece of a part, from byte at of the
// operation on. The caller sees to it that nobody else changes elements of that
// part meanwhile.
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

// answered takes what a target says to our questions.
func (t *target) answered(m wire.Window, data []byte) error {
	switch m.Kind {
	case wire.WinGrant:
		if t.w.locks { // a board says whose it is, and this one only that it has changed
			t.w.port.WakeAwait()
			return nil
		}
		if t.lock != lockAsked {
			if t.down != nil {
				return nil
			}
			return errLocking
		}
		t.granted()
		return nil
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
		return nil // to what was given up
	}
	if m.Count-t.acked > t.sent-t.acked {
		return errAnswer
	}
	if m.Kind == wire.WinReply {
		if m.Count == t.acked {
			return errAnswer
		}
		if err := t.settle(m.Count - 1); err != nil {
			return err
		}
		op := t.awaited.head
		if op == nil {
			op = t.queued.head
		}
		if op == nil || op.result == nil || op.got >= op.offset || len(data) != op.piece(op.got) {
			return errAnswer
		}
		op.got += copy(op.result[op.got:], data)
		t.expected -= len(data)
	}
	if err := t.settle(m.Count); err != nil {
		return err
	}
	t.pump()
	if t.flushes[0].n > 0 {
		t.ask()
	}
	return nil
}

// settle ends the operations whose messages are among the first count.
func (t *target) settle(count uint64) error {
	t.acked = count
	for op := t.awaited.head; op != nil && count-op.last < 1<<63; op = t.awaited.head {
		if op.result != nil && op.got < op.length {
			return errAnswer
		}
		t.awaited.pop()
		if op.acked = true; !op.posted {
			op.finish(nil)
		}
	}
	return nil
}

// note is a message of a window that is no operation. It is reused.
type note struct {
	*engine.Transfer
	t      *target
	kind   wire.WindowKind
	buf    []byte
	answer bool // counted in notes and noted of the target
	next   *note
}

// note returns a note for a target.
func (t *target) note() *note {
	w := t.w
	x := w.freeNotes
	if x == nil {
		x = &note{Transfer: w.port.NewTransfer()}
		x.User = x
	} else {
		w.freeNotes = x.next
	}
	x.t, x.next = t, nil
	return x
}

// reply makes the note that carries the data of a part to who asked for it.
func (t *target) reply(part []byte) (*note, error) {
	if len(part) > t.reach {
		return nil, errFlood
	}
	if t.notes >= maxAnswers || t.noted > maxBehind*max(maxReply, t.w.cfg.Elem) {
		return nil, errFlood
	}
	x := t.note()
	x.buf = append(x.buf[:0], part...)
	t.notes++
	t.noted += len(part)
	x.answer = true
	return x, nil
}

// acknowledge tells a rank how much of its is done, now or when the last
// acknowledgement has left.
func (t *target) acknowledge() {
	if t.ackBusy {
		t.ackAgain = true
		return
	}
	t.ackBusy = true
	t.note().send(wire.Window{Kind: wire.WinAck, Count: t.applied})
}

// say sends a message without data.
func (t *target) say(m wire.Window) { t.note().send(m) }

// send sends a note. That the other rank has ended is not for it to tell.
func (x *note) send(m wire.Window) {
	x.kind = m.Kind
	x.SetMessage(m, x.buf)
	done, err := x.t.w.port.Post(x.Transfer, engine.TransferMessage, x.t.rank, 0)
	if done || err != nil {
		x.done()
	}
}

// done takes a note back that has left.
func (x *note) done() {
	t := x.t
	if x.answer {
		t.notes--
		t.noted -= len(x.buf)
		x.answer = false
	}
	again := false
	if x.kind == wire.WinAck {
		t.ackBusy = false
		again, t.ackAgain = t.ackAgain, false
	}
	x.buf = x.buf[:0]
	x.t = nil
	x.next = t.w.freeNotes
	t.w.freeNotes = x
	if again && t.w.err == nil {
		t.acknowledge()
	}
}
