package engine

import (
	"time"

	"github.com/weft-hpc/weft/internal/record"
	"github.com/weft-hpc/weft/internal/wire"
)

// The account of a rank: what it has sent and received, and how long it has waited
//
// The engine counts a message when its send or receive is complete.
//
// A goroutine waits while it is in Engine.await. Goroutines that run functions of Engine.Go (tasks)
// wait too, but not for the program. So the rank counts as waiting while more goroutines wait than
// tasks run: then at least one of these goroutines is the program's. A leader, which polls the
// transports for the rank, does not read the clock for the account while it only polls. The counted
// time begins when the leader first reads the clock to decide how to wait, and ends at its last
// such reading. So the time of the first polls does not count:
//
//	await ── polls ──┬─ clock ── polls, yields, clock, ..., sleep, clock ─┬─ polls ── return
//	                 └────────────────── counted ─────────────────────────┘
//
// In addition, the engine reads the clock for the account only where a reading costs little in
// comparison: before and after a sleep on the transports, when a goroutine begins a wait in which
// it cannot lead, and when the last goroutine that waits returns after it was parked.

// account holds what Engine.Account returns, and what the engine knows about the wait of the rank
// that is under way.
type account struct {
	wire.Account // what Account returns
	// Number of goroutines in Engine.await, except those that no call of the program waits for
	// (awaited.background).
	waiting int
	// Time on Engine.clock at which the current wait of the rank began; 0: the rank does not wait, or
	// the engine has recorded no reading of the clock since it began to wait.
	since time.Duration
	now   time.Duration // latest recorded reading of Engine.clock
	// The record says that the rank waits, and what the goroutine with this waiter waits for; nil: it does not.
	recorded *waiter
}

// Account returns the number of messages and bytes that this rank has sent and received since New,
// and the time for which at least one goroutine of the program has waited in a call. It leaves out
// the first polls of each wait (see above), and a wait that still lasts. It counts the messages of
// sends and receives that ended without an error, except in contexts that KeepInFinalize has
// marked: those of agreements, and of the end of Finalize.
func (e *Engine) Account() wire.Account {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.account.Account
}

// countSent counts a message of n bytes of data that was sent in the context c.
//
// Hot path: no allocation, no reading of a clock.
func (e *Engine) countSent(c *Context, n int) {
	if !c.kept {
		e.account.MessagesSent++
		e.account.BytesSent += int64(n)
	}
}

// count counts the message of a send or receive that is complete without an error. It does not
// count a receive whose ctx has ended before the data was complete (request.cut), because the
// message goes to a later receive.
//
// Hot path: no allocation, no reading of a clock.
func (e *Engine) count(r *request) {
	switch {
	case r.kind == kindSend:
		e.countSent(r.ctx, r.size())
	case r.kind == kindRecv && r.cut == nil && !r.status.Cancelled:
		if c := r.ctx; c.recorded {
			e.record.Received(c.record, r.peer, int32(r.status.Tag), r.status.Bytes, c.kind|r.protocol, r.arrived)
		}
		if !r.ctx.kept {
			e.account.MessagesReceived++
			e.account.BytesReceived += int64(r.status.Bytes)
		}
	}
}

// recordSent records the message of the send r, which is about to leave: the message itself with its
// data, or its RTS. seq is its number.
func (e *Engine) recordSent(r *request, seq uint32) {
	c, how := r.ctx, record.Eager
	if r.header.Kind == wire.MsgRTS {
		how = record.Rendezvous
	}
	e.record.Sent(c.record, r.peer, r.tag, r.size(), c.kind|how, seq)
}

// noteTime records now, a reading of the clock. The caller may have read the clock before it took
// the lock, so another goroutine may have recorded a later reading; then noteTime keeps that one.
// If goroutines of the program wait and no wait of the rank is under way, one begins at the
// recorded time.
func (e *Engine) noteTime(now time.Duration) {
	a := &e.account
	if a.now = max(a.now, now); a.since == 0 && a.waiting > e.tasks {
		a.since = a.now
	}
}

// beginWait records that the goroutine of w enters await.
func (e *Engine) beginWait(w *waiter) {
	if w.background {
		return
	}
	e.account.waiting++
	// This goroutine never leads, so it reads no clock later, and the goroutine that it waits for
	// may block elsewhere.
	if w.passive || len(e.rails) == 0 {
		e.noteNow()
	}
}

// noteNow records the current time; see noteTime.
func (e *Engine) noteNow() { e.noteTime(e.clock()) }

// endWait records that the goroutine of w leaves await.
func (e *Engine) endWait(w *waiter) {
	if w.background {
		return
	}
	if e.account.recorded == w { // another goroutine may go on waiting
		e.account.recorded = nil
		e.record.WaitEnds()
	}
	if e.account.waiting--; e.account.since != 0 {
		e.addWait(w)
	}
}

// addWait ends the wait of the rank if no goroutine of the program waits any more, and adds its
// time to the account. w is the waiter of the goroutine that leaves await. If this goroutine was
// parked, time has passed since the last reading of the clock, so addWait reads the clock.
func (e *Engine) addWait(w *waiter) {
	a := &e.account
	if a.waiting > e.tasks {
		return
	}
	if w.slept {
		a.now = max(a.now, e.clock())
	}
	a.Waited += a.now - a.since
	a.since = 0
}

// recordWait records what the program waits for, before the rank sleeps. w is the waiter of the goroutine
// that sleeps; nil: the background goroutine. If several goroutines wait, recordWait chooses one.
func (e *Engine) recordWait(w *waiter) {
	a := &e.account
	if e.record == nil || a.since == 0 || a.recorded != nil {
		return
	}
	for i := 0; (w == nil || w.background || w.passive) && i < len(e.parked); i++ {
		w = e.parked[i]
	}
	if w == nil || w.background { // no goroutine of the program is parked yet
		return
	}
	kind, c, peer, tag := record.WaitOther, (*Context)(nil), int32(wild), int32(wild)
	switch {
	case w.request != nil && w.request.kind == kindSend:
		kind, c, peer, tag = record.WaitSend, w.request.ctx, w.request.peer, w.request.tag
	case w.request != nil && w.request.kind == kindRecv:
		kind, c, peer, tag = record.WaitRecv, w.request.ctx, w.request.peer, w.request.tag
	case w.from != nil && w.word == nil:
		kind, c, peer, tag = record.WaitProbe, w.from, w.key.source, w.key.tag
	}
	comm, how := record.OtherComm, record.Protocol(0)
	if c != nil && c.recorded {
		comm, how = c.record, c.kind
	}
	e.record.Waits(kind, comm, peer, tag, how)
	a.recorded = w
}
