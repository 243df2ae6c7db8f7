package engine

import (
	"context"
	"sync/atomic"
)

// Who moves the transports on
//
// At any moment at most one goroutine of a rank reads the completion queues:
//
//	 a goroutine that waits ──► leader     polls, then yields, then sleeps in
//	                              │        CompletionQueue.Wait; see patience.go
//	 others that wait ──────► followers    sleep on a channel of their own
//	                              │
//	 nobody waits ──────► async goroutine  sleeps in CompletionQueue.Wait while
//	                                       requests are under way; see async.go
//
// When a leader has what it waited for it wakes a follower, which leads on.
// The latency path has no hand-off: who waits polls, and finds its own message.
//
// Invariants, under Engine.mu:
//   - Engine.leader is the one goroutine inside lead, or nil.
//   - sleeping or asyncAsleep is true only while its goroutine is in Wait, and
//     never both.
//   - with no leader, a follower that is not passive has been woken, or there
//     is none.

// waiter is a goroutine that waits for something of the engine.
type waiter struct {
	ready   bool // what it waits for has happened
	passive bool // it must not lead: another goroutine moves what it waits for
	parked  bool // in followers, asleep on sema
	sema    chan struct{}
	key     matchKey       // of a probe
	from    *Context       // of a probe
	word    *atomic.Uint64 // in shared memory, of an Await; then it is in Engine.words
	least   uint64         // what the word has to reach
	next    *waiter        // free list
}

func (e *Engine) newWaiter() *waiter {
	w := e.freeWaiters
	if w == nil {
		return &waiter{sema: make(chan struct{}, 1)}
	}
	e.freeWaiters = w.next
	w.next = nil
	return w
}

func (e *Engine) freeWaiter(w *waiter) {
	w.ready, w.passive = false, false
	w.next = e.freeWaiters
	e.freeWaiters = w
}

// tell says to a waiter that what it waits for has happened.
func (e *Engine) tell(w *waiter) {
	w.ready = true
	if w == e.leader && e.sleeping {
		e.signal()
	}
	e.wake(w)
}

// wake rouses a waiter if it is parked.
func (e *Engine) wake(w *waiter) {
	if !w.parked {
		return
	}
	w.parked = false
	for i, f := range e.followers {
		if f == w {
			e.followers = append(e.followers[:i], e.followers[i+1:]...)
			break
		}
	}
	w.sema <- struct{}{}
}

// tellWatchers says to who watches every completion that there was one.
func (e *Engine) tellWatchers() {
	for _, w := range e.watchers {
		e.tell(w)
	}
}

func (e *Engine) unwatch(w *waiter) {
	kept := e.watchers[:0]
	for _, x := range e.watchers {
		if x != w {
			kept = append(kept, x)
		}
	}
	clear(e.watchers[len(kept):])
	e.watchers = kept
}

// await blocks until w.ready, ctx ends, or the engine closes. The lock is held
// on entry and on return.
func (e *Engine) await(ctx context.Context, w *waiter) error {
	var err error
	for !w.ready && err == nil {
		switch {
		case e.closed:
			err = ErrClosed
		case ctx.Err() != nil:
			err = ctx.Err()
		case e.leader != nil || w.passive || len(e.rails) == 0:
			e.park(ctx, w)
		default:
			e.leader = w
			e.leads++
			handOver := e.lead(ctx, w)
			e.leader = nil
			if handOver {
				e.park(ctx, w)
			}
		}
	}
	if len(e.followers) > 0 || e.active > 0 || e.asyncAsleep || e.closed {
		e.succeed()
	}
	return err
}

// park sleeps as a follower until woken or ctx ends.
func (e *Engine) park(ctx context.Context, w *waiter) {
	w.parked = true
	e.followers = append(e.followers, w)
	e.mu.unlock()
	select {
	case <-w.sema:
		e.mu.lock()
		return
	case <-ctx.Done():
	}
	e.mu.lock()
	if !w.parked { // woken meanwhile
		<-w.sema
		return
	}
	e.wake(w)
	<-w.sema
}

// succeed sees to it that somebody moves the transports on after a goroutine
// has left: a follower, or the async goroutine if requests are under way.
func (e *Engine) succeed() {
	if e.leader != nil {
		return
	}
	if f := e.heir(); f != nil {
		e.wake(f)
		return
	}
	if e.closed {
		e.quiet.Broadcast()
		return
	}
	e.rearm()
	if e.active > 0 {
		e.wantProgress(false)
	}
}

// heir is the follower that would lead next, or nil.
func (e *Engine) heir() *waiter {
	for _, f := range e.followers {
		if !f.passive {
			return f
		}
	}
	return nil
}

// lead polls until w is ready, ctx ends or the engine closes. It asks to park
// instead where the async goroutine is asleep on the transports; that one has
// been roused and will call a follower. The lock is open between two polls only
// where somebody waits for it.
//
// Hot path: no allocation until it sleeps, no system call of its own until it
// yields.
func (e *Engine) lead(ctx context.Context, w *waiter) (handOver bool) {
	var p patience
	p.renew(e)
	for {
		n := e.progress()
		if len(e.words) > 0 {
			e.lookAtWords()
		}
		if w.ready || e.closed {
			return false
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
			continue // the lock was open: w may be ready, and a sleep would not end
		}
		if ctx.Err() != nil {
			return false
		}
		step := e.next(&p, e.foreground())
		if step == stepSleep && e.mustPoll(&p) {
			step = stepYield
			p.look = p.polls + turnPolls
		}
		switch step {
		case stepPoll:
			e.mu.breathe()
		case stepYield:
			e.yield(&p)
		case stepSleep:
			if !e.blind {
				p.renew(e)
			}
			if !e.sleep(ctx) {
				return true
			}
		}
	}
}

// sleep blocks until the transports have something or ctx ends. It answers
// false, and rouses it, if the async goroutine is asleep on them already.
func (e *Engine) sleep(ctx context.Context) bool {
	if !e.arm() || e.lookAtWords() {
		return true
	}
	if e.asyncAsleep {
		e.signal()
		return false
	}
	nap := e.napTime()
	e.sleeping = true
	e.mu.unlock()
	if ctx.Done() == nil {
		e.waitset.wait(nap)
	} else {
		stop := context.AfterFunc(ctx, e.signal)
		e.waitset.wait(nap)
		stop()
	}
	e.mu.lock()
	e.sleeping = false
	return true
}

// arm prepares every transport for a sleep; false: one of them has something.
// Either way the next call of progress reads all of them.
func (e *Engine) arm() bool {
	for i := range e.rails {
		e.rails[i].skip = 0
	}
	for i := range e.rails {
		if !e.rails[i].CQ.Arm() {
			return false
		}
	}
	return true
}
