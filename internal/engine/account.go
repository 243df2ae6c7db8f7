package engine

import (
	"time"

	"github.com/weft-hpc/weft/internal/wire"
)

// The account of a rank: what it has sent and received, and how long it has waited
//
// A message is counted when its request is complete.
//
// The rank waits while more goroutines are in await than functions of Engine.Go are under way,
// because then at least one of these goroutines is the program's. A leader that polls or yields
// does not read the clock for the account. The wait begins when a leader reads the clock for the
// first time to decide how to wait, and ends with the last such reading. So the first polls do
// not count:
//
//	await ── polls ──┬─ clock ── polls, yields, clock, ..., sleep, clock ─┬─ polls ── return
//	                 └────────────────── counted ─────────────────────────┘
//
// The engine reads the clock for the account only in cases in which a reading is cheap in
// comparison: before and after a sleep on the transports, before a wait for a function of
// Engine.Go, and when a goroutine that was parked is the last one to return.

// account holds the result of Account and the state of the wait under way.
type account struct {
	wire.Account
	waiting int           // number of goroutines in await that a call of the program waits for
	since   time.Duration // when the current wait began; 0: the rank does not wait
	now     time.Duration // last reading of the clock
}

// Account returns what this rank has sent and received since New, and how long it has
// waited. It counts the messages that were sent or received without an error, except those
// of contexts of KeepInFinalize.
func (e *Engine) Account() wire.Account {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.account.Account
}

// countSent counts a message of n bytes.
//
// Hot path: no allocation, no reading of a clock.
func (e *Engine) countSent(c *Context, n int) {
	if !c.kept {
		e.account.MessagesSent++
		e.account.BytesSent += int64(n)
	}
}

// count counts the message of a request that is complete without an error. It does not count
// a receive that was cut short, because another receive gets the message.
//
// Hot path: no allocation, no reading of a clock.
func (e *Engine) count(r *request) {
	switch {
	case r.kind == kindSend:
		e.countSent(r.ctx, len(r.buf))
	case r.kind == kindRecv && r.cut == nil && !r.status.Cancelled && !r.ctx.kept:
		e.account.MessagesReceived++
		e.account.BytesReceived += int64(r.status.Bytes)
	}
}

// noteTime records a reading of the clock, unless a later reading is recorded: the caller may
// have read the clock before it took the lock. If the rank waits and no wait is under way, the
// wait begins now.
func (e *Engine) noteTime(now time.Duration) {
	a := &e.account
	if a.now = max(a.now, now); a.since == 0 && a.waiting > e.tasks {
		a.since = a.now
	}
}

// beginWait records that a goroutine enters await.
func (e *Engine) beginWait(w *waiter) {
	if w.background {
		return
	}
	e.account.waiting++
	if w.passive || len(e.rails) == 0 { // w never leads, and the goroutine that w waits for may sleep
		e.noteTime(e.clock())
	}
}

// endWait records that a goroutine leaves await. If the rank then no longer waits, endWait
// adds the time of the wait to the account. A goroutine that was parked may have waited since
// the last reading of the clock.
func (e *Engine) endWait(w *waiter) {
	if w.background {
		return
	}
	a := &e.account
	if a.waiting--; a.since == 0 || a.waiting > e.tasks {
		return
	}
	if w.slept {
		a.now = max(a.now, e.clock())
	}
	a.Waited += a.now - a.since
	a.since = 0
}
