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
// The rule: a goroutine that waits polls. A goroutine that completes the request of another one
// lets the other one run. One goroutine sleeps on the transports. A goroutine is woken when its
// event has happened. The one exception is a follower on standby, in cases in which waking it
// costs nothing; see handOver.
//
// docs/adr/0018-one-rule-for-progress.md gives the cost of each step, and what was measured and
// rejected.
//
// Invariants, under Engine.mu:
//   - Engine.leader is the one goroutine inside lead, or nil.
//   - If Engine.asleep is set, one goroutine is in Wait: Engine.sleeper, or the background
//     goroutine if sleeper is nil. Another goroutine may lead at the same time.
//   - A parked waiter is in Engine.parked, and is not ready.
//   - Engine.waking counts goroutines that were woken and have not taken the lock yet. While it
//     is not 0, no goroutine begins to lead. So the last goroutine that runs leads, and none
//     polls while another one could run.
//   - If no goroutine leads or sleeps and progress is needed (progressNeeded), the background
//     goroutine ticks or leads; it is not parked.
//   - While a goroutine is in Wait and no goroutine leads, any event ends that Wait: the
//     transports are armed, and every waiter whose word was stored before is ready (see
//     ensureProgress).
//
// progress_model_test.go checks this rule in every state of a model.

// waiter represents a goroutine that waits for an event of the engine.
type waiter struct {
	ready    bool // its event has happened
	parked   bool // in Engine.parked, asleep on sema
	longWait bool // a call of QueryPeers has found it in Engine.probeWaiters or wordWaiters
	standby  bool // runnable although it is not ready; it leads if no other goroutine does
	waking   bool // runnable and ready; counted in Engine.waking
	bounded  bool // a context.Context may end the wait
	slept    bool // it was parked in this wait
	sema     chan struct{}
	awaited

	index int     // in Engine.parked
	uses  uint64  // number of waits that it was used for
	next  *waiter // free list
}

// awaited describes the event that a waiter waits for. Other goroutines read it.
type awaited struct {
	passive bool           // the waiter waits for tasks, whose goroutines poll, so it does not lead
	key     matchKey       // of a probe: the message; of an Await: only source
	from    *Context       // context of a probe or an Await
	word    *atomic.Uint64 // of an Await: word in shared memory; the waiter is then in Engine.wordWaiters
	least   uint64         // value that the word has to reach

	background bool // no call of the program waits, so the account does not count the wait
}

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
	w.ready, w.passive, w.longWait, w.slept = false, false, false, false
	w.next = e.freeWaiters
	e.freeWaiters = w
}

// wake marks a waiter as ready: its event has happened. If the waiter is parked, wake makes it
// runnable.
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

// unpark makes a parked waiter runnable.
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

// resumed updates the counters. A waiter that was made runnable calls it after it has taken the
// lock.
func (e *Engine) resumed(w *waiter) {
	e.resuming--
	if w.waking {
		w.waking = false
		e.waking--
	}
	w.standby = false
}

// wakeAll wakes all waiters of a list: Engine.completionWaiters, probeWaiters or wordWaiters, or
// Port.waiters.
func (e *Engine) wakeAll(waiters []*waiter) {
	for _, w := range waiters {
		e.wake(w)
	}
}

// awaitIn puts a waiter into a list and blocks until another goroutine wakes it, ctx ends or the
// engine closes. The caller holds the lock on entry and on return, and checks afterwards whether
// its event has happened.
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

// await blocks until w.ready, ctx ends, or the engine closes. The caller holds
// the lock on entry and on return.
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

// handOver runs when a goroutine returns to the program, and makes sure that another one
// continues the remaining work. On one processor of the Go scheduler, a follower goes on standby
// to lead, unless another waiter is runnable. The follower runs only when the processor is free,
// so it disturbs no other goroutine. On several processors, making the follower runnable would
// wake a thread each time. There the background goroutine checks at its next tick.
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

// oneProcessor reports whether the goroutines of this process share one processor of the Go
// scheduler.
func (e *Engine) oneProcessor() bool { return !e.policy.severalProcs || e.holdsProcessor }

// yieldToWoken lets the goroutines run whose requests the caller has completed. On one processor
// the caller goes on standby meanwhile, and leads again if none of them does. On several
// processors the caller parks: otherwise it would run at once on another processor, and lead in
// place of a goroutine that is about to wait again.
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

// sleep blocks in the transports' Wait until an event arrives, w is ready or ctx ends. It returns
// true if the caller should park because other goroutines have led meanwhile; those continue to
// lead.
func (e *Engine) sleep(ctx context.Context, w *waiter) (others bool) {
	if !e.arm() || e.checkWords() {
		return false
	}
	leads := e.leads.Load()
	e.sleepArmed(ctx, w)
	if e.leads.Load() == leads || w.ready || e.closed || ctx.Err() != nil {
		return false
	}
	e.poll() // the event that ended the sleep may be for w, and perhaps no goroutine leads now
	return !w.ready && !e.closed
}

// sleepArmed sleeps in the transports' Wait. The caller has armed the transports. w is the
// caller's waiter; nil: the caller is the background goroutine. sleepArmed releases the lock
// during the sleep.
func (e *Engine) sleepArmed(ctx context.Context, w *waiter) {
	e.asleep, e.sleeper, e.nap = true, w, e.napTime()
	nap, fds := e.nap, e.waitset.fds
	if e.account.since == 0 {
		e.noteTime(e.clock()) // followers may wait while the background goroutine sleeps
	}
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

// arm prepares every transport for a sleep. It returns false if one of them has something to
// read. In both cases the next call of progress reads all queues.
func (e *Engine) arm() bool {
	e.readAll()
	for i := range e.rails {
		if !e.rails[i].CQ.Arm() {
			return false
		}
	}
	return true
}

// park blocks the caller, as a follower, until it is woken or ctx ends.
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

// leadResult is the reason why a leader has stopped.
type leadResult uint8

const (
	leadDone       leadResult = iota // the event of the leader has happened, ctx has ended or the engine closes
	leadWokeOthers                   // the leader has woken other goroutines
	leadIdle                         // nothing has arrived for as long as the wait policy permits
)

// lead polls the transports for w. Between two polls it releases the lock if another goroutine
// waits for the lock.
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
			continue // enterScheduler released the lock, so w may be ready
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
