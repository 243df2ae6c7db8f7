package engine

import (
	"context"
	"runtime"
	"slices"
	"sync/atomic"
)

// Progress: which goroutine moves the transports on
//
//	   a goroutine waits for a request, a message or a word
//	          │                                 │
//	    nobody leads                  a goroutine leads, or
//	          │                       one that was woken has yet to run
//	          ▼                                 ▼
//	┌─► LEADER: polls, then yields ──┐     FOLLOWER: parked on its channel ◄─┐
//	│     │ its request is complete  │          │ its request is complete    │
//	│     ▼                          │          ▼                            │
//	│   returns                      │        returns                        │
//	│                                ├─ it completed a follower's request:   │
//	│                                │  gives way, then looks again ─────────┤
//	│                                └─ nothing came for long:               │
//	├──── SLEEPER: in CompletionQueue.Wait ◄── nobody sleeps there yet,      │
//	│                                          else ─────────────────────────┘
//	└──── BACKGROUND: one goroutine of the engine, see background.go
//
// The rule: a waiting goroutine polls; a goroutine that completes the request
// of another gets out of its way; one goroutine sleeps on the transports. A
// goroutine is woken when what it waits for has happened. The one exception is
// a follower that stands by where that costs nothing; see leave.
//
// docs/adr/0018-one-rule-for-progress.md says what each step costs and what was
// measured and dropped.
//
// Invariants, under Engine.mu:
//   - Engine.leader is the one goroutine inside lead, or nil.
//   - Engine.asleep says that one goroutine is in Wait: Engine.sleeper, or the
//     background goroutine if that is nil. Another may lead meanwhile.
//   - A parked waiter is in Engine.parked, and is not ready.
//   - Engine.waking counts goroutines that were woken and have yet to take the
//     lock. While it is not 0 no goroutine begins to lead: the last one that
//     runs does, so that none polls while another could run.
//   - If no goroutine leads or sleeps and work is left (see needed), the
//     background goroutine ticks or stands in; it is not parked.
//   - While a goroutine is in Wait and no goroutine leads, any event ends that Wait:
//     the transports are armed, and every waiter of a word that was stored before is
//     ready (see attend).
//
// progress_model_test.go searches every state of this rule.

// waiter is a goroutine that waits for something of the engine.
type waiter struct {
	ready   bool // what it waits for has happened
	parked  bool // in Engine.parked, asleep on sema
	waited  bool // an QueryPeers has found it in Engine.probes
	standby bool // runnable although it is not ready, to lead if no other does
	waking  bool // runnable and ready; counted in Engine.waking
	bounded bool // a context may end the wait
	slept   bool // it was parked in this wait
	sema    chan struct{}
	awaited

	index int     // in Engine.parked
	uses  uint64  // how many waits it has been used for
	next  *waiter // free list
}

// awaited describes what a waiter waits for, in the fields that other goroutines read.
type awaited struct {
	passive bool           // another goroutine does the work: the waiter must not lead
	key     matchKey       // of a probe; of an Await: the source
	from    *Context       // of a probe or an Await
	word    *atomic.Uint64 // in shared memory, of an Await; then the waiter is in Engine.words
	least   uint64         // value that the word has to reach

	background bool // no call of the program waits: the account leaves the wait out
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
	w.ready, w.passive, w.waited, w.slept = false, false, false, false
	w.next = e.freeWaiters
	e.freeWaiters = w
}

// tell marks that what a waiter waits for has happened. If the waiter is parked
// it becomes runnable.
func (e *Engine) tell(w *waiter) {
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

// resumed is called by a waiter that has run again and taken the lock.
func (e *Engine) resumed(w *waiter) {
	e.resuming--
	if w.waking {
		w.waking = false
		e.waking--
	}
	w.standby = false
}

// tellAll tells the waiters of a list: Engine.watchers, probes or words, or
// Port.waiters.
func (e *Engine) tellAll(waiters []*waiter) {
	for _, w := range waiters {
		e.tell(w)
	}
}

// awaitIn puts a waiter into a list and blocks until another goroutine calls tell for
// it, ctx ends or the engine closes. The caller holds the lock on entry and on return,
// and checks afterwards whether what it waits for has happened.
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
		case leadTired:
			if e.asleep || e.sleep(ctx, w) {
				e.park(ctx, w)
			}
		case leadServedOthers:
			e.giveWay(ctx, w)
		case leadOver:
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
	if e.asleep || e.needed() {
		e.leave()
	}
	return err
}

// leave hands over the work that is left when a goroutine returns to the user's code.
// On one processor a follower stands by to lead, unless a waiter is runnable anyway. It
// runs only when the processor is free, so it disturbs no other goroutine. With several
// processors, to make it runnable would wake a thread each time; there the background
// goroutine looks at its next tick.
func (e *Engine) leave() {
	if e.leader == nil && !e.asleep && e.oneProcessor() && e.resuming == 0 {
		for _, w := range slices.Backward(e.parked) {
			if !w.passive {
				w.standby = true
				e.unpark(w)
				break
			}
		}
	}
	e.attend()
}

// oneProcessor reports whether the goroutines of this process take turns on one
// processor of the Go scheduler.
func (e *Engine) oneProcessor() bool { return !e.policy.alone || e.holding }

// giveWay lets those goroutines run first whose requests the caller has
// completed. On one processor the caller stands by meanwhile, and leads again if
// none of them does. Where there are several it would run at once on another one,
// and take the lead from a goroutine that is about to wait again.
func (e *Engine) giveWay(ctx context.Context, w *waiter) {
	if !e.oneProcessor() {
		e.park(ctx, w)
		return
	}
	w.standby = true
	e.resuming++
	e.attend()
	e.mu.Unlock()
	runtime.Gosched()
	e.mu.Lock()
	e.resumed(w)
}

// sleep blocks on the transports until they have something, w is ready or ctx
// ends. It reports whether the caller should park: if others have led meanwhile, they
// go on leading.
func (e *Engine) sleep(ctx context.Context, w *waiter) (others bool) {
	if !e.arm() || e.lookAtWords() {
		return false
	}
	leads := e.leads.Load()
	e.doze(ctx, w)
	if e.leads.Load() == leads || w.ready || e.closed || ctx.Err() != nil {
		return false
	}
	e.poll() // what ended the sleep may be for w, and perhaps no goroutine leads now
	return !w.ready && !e.closed
}

// doze sleeps on the transports, which the caller has armed. w is the caller's waiter;
// nil: the caller is the background goroutine. doze releases the lock meanwhile.
func (e *Engine) doze(ctx context.Context, w *waiter) {
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

// arm prepares every transport for a sleep; false: one of them has something to read.
// In both cases the next call of progress reads all of them.
func (e *Engine) arm() bool {
	e.readAll()
	for i := range e.rails {
		if !e.rails[i].CQ.Arm() {
			return false
		}
	}
	return true
}

// park blocks as a follower until woken or ctx ends.
func (e *Engine) park(ctx context.Context, w *waiter) {
	w.parked, w.slept, w.index = true, true, len(e.parked)
	e.parked = append(e.parked, w)
	if !w.passive {
		e.followers++
	}
	e.attend()
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

// leadEnd is why a leader stops leading.
type leadEnd uint8

const (
	leadOver         leadEnd = iota // what it waits for has happened, ctx has ended or the engine closes
	leadServedOthers                // it has completed what other goroutines wait for
	leadTired                       // nothing has come for long
)

// lead polls. The lock is open between two polls only where another goroutine
// waits for it.
//
// Hot path: no allocation, no system call of its own until it yields.
func (e *Engine) lead(ctx context.Context, w *waiter) (end leadEnd) {
	e.leader = w
	e.leads.Add(1)
	wakes := e.wakes.Load()
	var p patience
	p.renew(e)
	for {
		n := e.progress()
		if len(e.words) > 0 {
			e.lookAtWords()
		}
		if w.ready || e.closed {
			break
		}
		if e.wakes.Load() != wakes {
			end = leadServedOthers
			break
		}
		if n > 0 {
			p.renew(e)
		} else {
			p.polls++
		}
		if e.polls++; p.polls < p.look && e.polls&255 != 0 {
			e.mu.breathe()
			continue
		}
		if e.polls&255 == 0 && e.showUp() {
			continue // the lock was open: w may be ready
		}
		if ctx.Err() != nil {
			break
		}
		step := e.next(&p, e.foreground())
		if step == stepSleep && e.mustPoll(&p) {
			step = stepYield
			p.look = p.polls + turnPolls
		}
		if step == stepSleep {
			end = leadTired
			break
		}
		if step == stepYield {
			e.yield(&p)
		} else {
			e.mu.breathe()
		}
	}
	e.leader = nil
	return end
}
