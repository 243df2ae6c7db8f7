package engine

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
)

// Progress: which goroutine polls the transports
//
//	   a goroutine waits for a request, a message or a word
//	          │                                 │
//	 no goroutine leads               a goroutine leads, or one
//	          │                       that was woken has yet to run
//	          ▼                                 ▼
//	┌─► LEADER: polls, then yields ──┐     FOLLOWER: parked on its channel ◄─┐
//	│     │ its request is complete  │          │ its request is complete    │
//	│     ▼                          │          ▼                            │
//	│   returns                      │        returns                        │
//	│                                ├─ it completed a follower's request:   │
//	│                                │  lets the follower run, then ─────────┤
//	│                                │  checks again                         │
//	│                                └─ nothing arrived for a long time:     │
//	├──── SLEEPER: in CompletionQueue.Wait ◄── no goroutine is in Wait yet,  │
//	│                                          else ─────────────────────────┘
//	└──── BACKGROUND: one goroutine of the engine, see background.go
//
// The rule: a goroutine that waits polls the transports, unless another one does. The goroutine
// that polls is the leader, and it polls for all goroutines of its rank. The others are followers:
// parked, which means blocked. If the leader completes the request of a follower, it wakes this
// follower and lets it run. If nothing arrives for a long time, one goroutine sleeps on the
// transports: it is in CompletionQueue.Wait. A follower becomes runnable only when its event may
// have happened, its context.Context has ended, or the engine closes. There is one exception: a
// follower may be put on standby, where that costs nothing. It is then runnable, and leads if no
// other goroutine does; see handOver.
//
// docs/adr/0018-one-rule-for-progress.md gives the cost of each step, and what was measured and
// rejected.
//
// Invariants, under Engine.mu:
//   - Engine.leader is the waiter of the one goroutine inside lead, or nil.
//   - If Engine.asleep is set, one goroutine is in Wait: that of Engine.sleeper, or the background
//     goroutine if sleeper is nil. Another goroutine may lead at the same time.
//   - A parked waiter is in Engine.parked, and is not ready.
//   - Engine.waking counts the waiters that were woken, because their event has happened, and whose
//     goroutines have not taken the lock yet. While it is not 0, no goroutine begins to lead. So
//     the last of the woken goroutines leads, and none polls while another one has yet to run.
//   - If no goroutine leads or sleeps and progress is needed (progressNeeded), the background
//     goroutine ticks or leads; it is not parked.
//   - While a goroutine is in Wait and no goroutine leads, any event ends that Wait: the transports
//     are armed, and every waiter whose word was stored before is ready (see ensureProgress).
//
// progress_model_test.go checks this rule in every state of a model.

// waiter represents one wait of a goroutine for an event of the engine. It is used again for other
// waits.
type waiter struct {
	ready    bool // the event that the goroutine waits for has happened
	parked   bool // the goroutine is blocked on sema, and the waiter is in Engine.parked
	longWait bool // a call of QueryPeers has found the waiter in Engine.probeWaiters or wordWaiters
	// The goroutine is runnable although the event has not happened; it leads if no other goroutine
	// does.
	standby bool
	// The event has happened, and the goroutine is runnable and has not taken the lock yet;
	// Engine.waking counts it.
	waking  bool
	bounded bool          // the call has a context.Context that may end the wait
	slept   bool          // the goroutine was parked during this wait
	sema    chan struct{} // unpark sends to it, to end park; has room for one value
	request *request      // in Engine.awaitRequest: that for which the goroutine waits; otherwise nil
	awaited

	index int     // index in Engine.parked, if parked is set
	uses  uint64  // number of waits that the waiter was used for, this one included
	next  *waiter // next waiter in the list of unused ones
}

// awaited describes the event that a goroutine waits for. Other goroutines read it, under the lock.
type awaited struct {
	// The goroutine waits for functions of Engine.Go (tasks). It does not lead, because the
	// goroutines of these functions do.
	passive bool
	// For a probe: key of the messages that it accepts. For a Context.Await: only source is set,
	// the world rank that stores the word.
	key   matchKey
	from  *Context       // context of a probe or of a Context.Await; nil for other events
	word  *atomic.Uint64 // for a Context.Await: the word in shared memory; the waiter is in Engine.wordWaiters
	least uint64         // for a Context.Await: the value that the word has to reach

	background bool // no call of the program waits for the event, so the account does not count the wait
}

// newWaiter returns a waiter for one wait. freeWaiter ends its use.
func (e *Engine) newWaiter() *waiter {
	w := e.freeWaiters
	if w == nil {
		w = &waiter{sema: make(chan struct{}, 1)}
	}
	e.freeWaiters = w.next
	w.next = nil
	w.uses++
	return w
}

func (e *Engine) freeWaiter(w *waiter) {
	w.ready, w.passive, w.longWait, w.slept, w.request = false, false, false, false, nil
	w.next = e.freeWaiters
	e.freeWaiters = w
}

// wake records that the event of w has happened. If the goroutine of w is parked, wake makes it
// runnable; if it sleeps on the transports, wake ends the sleep.
func (e *Engine) wake(w *waiter) {
	w.ready = true
	if w == e.sleeper {
		e.signal()
	}
	if w.waking || !w.parked && !w.standby {
		return
	}
	w.waking = true
	e.waking++
	e.wakes.Add(1)
	if w.parked {
		e.unpark(w)
	}
}

// unpark makes the goroutine of a parked waiter runnable.
func (e *Engine) unpark(w *waiter) {
	n := len(e.parked) - 1
	last := e.parked[n]
	e.parked[w.index], last.index = last, w.index
	e.parked[n], e.parked = nil, e.parked[:n]
	w.parked = false
	if !w.passive {
		e.followers--
	}
	e.resuming++
	w.sema <- struct{}{}
}

// resumed updates the counters after the goroutine of w was runnable and has taken the lock.
func (e *Engine) resumed(w *waiter) {
	e.resuming--
	if w.waking {
		w.waking = false
		e.waking--
	}
	w.standby = false
}

// wakeAll calls wake for all waiters of a list: Engine.completionWaiters, probeWaiters or
// wordWaiters, or Port.waiters.
func (e *Engine) wakeAll(waiters []*waiter) {
	for _, w := range waiters {
		e.wake(w)
	}
}

// awaitIn blocks until another goroutine wakes the caller, ctx ends or the engine closes. Meanwhile
// list, such as Engine.completionWaiters, contains a waiter for the caller. what describes the
// event that the caller waits for. awaitIn may return before this event. So the caller checks
// afterwards, and calls awaitIn again if necessary. The caller holds the lock on entry and on
// return.
func (e *Engine) awaitIn(ctx context.Context, list *[]*waiter, what awaited) error {
	w := e.newWaiter()
	w.awaited = what
	*list = append(*list, w)
	err := e.await(ctx, w)
	*list = slices.DeleteFunc(*list, func(x *waiter) bool { return x == w })
	w.awaited = awaited{}
	e.freeWaiter(w)
	return err
}

// await blocks until w.ready is set, ctx ends or the engine closes. w is the waiter of the caller,
// which leads, parks or sleeps meanwhile. await returns nil if w is ready. The caller holds the
// lock on entry and on return.
func (e *Engine) await(ctx context.Context, w *waiter) error {
	w.bounded = ctx.Done() != nil
	e.beginWait(w)
	for !w.ready && !e.closed && ctx.Err() == nil {
		if e.leader != nil || e.waking > 0 || w.passive || len(e.rails) == 0 {
			e.park(ctx, w)
			continue
		}
		switch e.lead(ctx, w) {
		case leadIdle:
			if e.asleep || e.sleep(ctx, w) {
				e.park(ctx, w)
			}
		case leadWokeOthers:
			e.yieldToWoken(ctx, w)
		case leadDone:
		}
	}
	e.endWait(w)
	var err error
	switch {
	case e.closed:
		e.quiet.Broadcast()
		if !w.ready {
			err = errFinalize
		}
	case !w.ready:
		err = ctx.Err()
	}
	if e.asleep || e.progressNeeded() {
		e.handOver()
	}
	return err
}

// handOver runs when a goroutine returns to the program, and makes sure that another one continues
// to poll if necessary.
//
// If the process has one processor of the Go scheduler, handOver puts one follower on standby,
// unless another waiter is already runnable. A follower on standby is runnable, and leads when the
// processor becomes free. So it delays no other goroutine. With several processors the scheduler
// would wake a thread for the follower each time. So handOver leaves the followers parked, and the
// background goroutine polls for them after its next tick.
func (e *Engine) handOver() {
	if e.leader == nil && !e.asleep && e.oneProcessor() && e.resuming == 0 {
		for _, w := range slices.Backward(e.parked) {
			if !w.passive {
				w.standby = true
				e.unpark(w)
				break
			}
		}
	}
	e.ensureProgress()
}

// oneProcessor reports whether the goroutines of this process have one processor of the Go
// scheduler among them, because GOMAXPROCS is 1, or because the background goroutine holds the
// other one (holdProcessor).
func (e *Engine) oneProcessor() bool { return !e.policy.severalProcs || e.holdsProcessor }

// yieldToWoken lets the goroutines run that the caller has woken while it led. With one processor
// of the Go scheduler, the caller stays runnable on standby, and leads again if none of those
// goroutines does. With several processors the caller parks. Otherwise it would run again at once
// on another processor, and lead in place of a goroutine that is about to wait again.
func (e *Engine) yieldToWoken(ctx context.Context, w *waiter) {
	if !e.oneProcessor() {
		e.park(ctx, w)
		return
	}
	w.standby = true
	e.resuming++
	e.ensureProgress()
	e.mu.Unlock()
	runtime.Gosched()
	e.mu.Lock()
	e.resumed(w)
}

// sleep blocks in the Wait of the transports until an event arrives, w is ready, ctx ends or the
// engine closes. w is the caller's waiter. If others is true, other goroutines have led during the
// sleep, the event of w has not happened, and the caller should park. If an event has arrived
// already, sleep returns at once.
func (e *Engine) sleep(ctx context.Context, w *waiter) (others bool) {
	if !e.arm() || e.checkWords() {
		return false
	}
	leads := e.leads.Load()
	e.sleepArmed(ctx, w)
	if e.leads.Load() == leads || w.ready || e.closed || ctx.Err() != nil {
		return false
	}
	e.poll() // because the event that ended the sleep may be for w, and no goroutine may be leading now
	return !w.ready && !e.closed
}

// sleepArmed blocks in the Wait of the transports, which the caller has armed. w is the caller's
// waiter; nil: the caller is the background goroutine. The caller holds the lock before and after
// the call; sleepArmed releases it during the sleep.
func (e *Engine) sleepArmed(ctx context.Context, w *waiter) {
	if e.record != nil {
		e.record.Idle()
	}
	e.asleep, e.sleeper, e.nap = true, w, e.napTime()
	nap, fds := e.nap, e.waitset.fds
	if e.account.since == 0 {
		// This must happen before the sleep, because followers may wait while the background goroutine
		// sleeps.
		e.noteTime(e.clock())
	}
	e.recordWait(w)
	e.mu.Unlock()
	if ctx.Done() == nil {
		e.waitset.wait(fds, nap)
	} else {
		stop := context.AfterFunc(ctx, e.signal)
		e.waitset.wait(fds, nap)
		stop()
	}
	e.mu.Lock()
	e.asleep, e.sleeper = false, nil
	e.noteTime(e.clock())
}

// arm prepares all transports for a sleep, so that an event ends the sleep. It returns false if one
// of them has something to read, so the caller must not sleep. In both cases the next call of
// progress reads all queues.
func (e *Engine) arm() bool {
	e.readAll()
	for i := range e.rails {
		if !e.rails[i].CQ.Arm() {
			return false
		}
	}
	return true
}

// park blocks the caller, whose waiter is w, until another goroutine unparks it or ctx ends. The
// caller holds the lock before and after the call; park releases it meanwhile.
func (e *Engine) park(ctx context.Context, w *waiter) {
	w.parked, w.slept, w.index = true, true, len(e.parked)
	e.parked = append(e.parked, w)
	if !w.passive {
		e.followers++
	}
	e.ensureProgress()
	e.mu.Unlock()
	if ctx.Done() == nil {
		<-w.sema
		e.mu.Lock()
	} else {
		select {
		case <-w.sema:
			e.mu.Lock()
		case <-ctx.Done():
			e.mu.Lock()
			if w.parked {
				e.unpark(w)
			}
			<-w.sema
		}
	}
	e.resumed(w)
}

// leadResult is the reason why lead has returned.
type leadResult uint8

const (
	// The event that the leader waits for has happened, ctx has ended, or the engine closes.
	leadDone       leadResult = iota
	leadWokeOthers            // the leader has woken other goroutines, whose events have happened
	leadIdle                  // nothing has arrived for as long as the wait policy polls and yields
)

// lead polls the transports, until the event of the caller's waiter w has happened or another
// leadResult occurs. Between two polls it releases the lock if another goroutine waits for the
// lock. The caller holds the lock on entry and on return.
//
// Hot path: no allocation; no system call except the transports' and yields.
func (e *Engine) lead(ctx context.Context, w *waiter) (end leadResult) {
	e.leader = w
	e.leads.Add(1)
	wakes := e.wakes.Load()
	var p waitProgress
	p.reset(e)
	for {
		n := e.progress()
		if len(e.wordWaiters) > 0 {
			e.checkWords()
		}
		if w.ready || e.closed {
			break
		}
		if e.wakes.Load() != wakes {
			end = leadWokeOthers
			break
		}
		if n > 0 {
			p.reset(e)
		} else {
			p.polls++
		}
		if e.polls++; p.polls < p.decideAt && e.polls&255 != 0 {
			e.mu.yield()
			continue
		}
		if e.polls&255 == 0 && e.enterScheduler() {
			continue // enterScheduler has released the lock, so the event of w may have happened
		}
		if ctx.Err() != nil {
			break
		}
		step := e.nextStep(&p, e.leaderPoll())
		if step == stepSleep && e.mustPoll(&p) {
			step = stepYield
			p.decideAt = p.polls + pollsPerYield
		}
		if step == stepSleep {
			end = leadIdle
			break
		}
		if step == stepYield {
			e.yield(&p)
		} else {
			e.mu.yield()
		}
	}
	e.leader = nil
	return end
}
