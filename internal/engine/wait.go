package engine

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Who moves the transports on
//
// At any moment at most one goroutine of a rank reads the completion queues:
//
//	 a goroutine that waits ──► leader     polls, then yields, then sleeps in
//	                              │        CompletionQueue.Wait
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

// mutex is the engine's lock. Sections under it are short, and the leader takes
// and frees it at every poll; so who finds it taken tries again for a while
// before it sleeps, and the leader keeps away while somebody tries.
type mutex struct {
	sync.Mutex
	waiting atomic.Int32
}

func (m *mutex) lock() {
	if m.TryLock() {
		return
	}
	m.lockSlow()
}

func (m *mutex) lockSlow() {
	m.waiting.Add(1)
	for i := range 64 {
		if m.TryLock() {
			m.waiting.Add(-1)
			return
		}
		if i >= 16 {
			runtime.Gosched()
		}
	}
	m.Lock()
	m.waiting.Add(-1)
}

// breathe opens the lock between two polls of the leader.
func (m *mutex) breathe() {
	m.Unlock()
	for i := 0; i < 200 && m.waiting.Load() > 0; i++ {
		if i >= 100 {
			runtime.Gosched()
		}
	}
	m.lock()
}

func (m *mutex) unlock() { m.Unlock() }

// waiter is a goroutine that waits for something of the engine.
type waiter struct {
	ready   bool // what it waits for has happened
	passive bool // it must not lead: another goroutine moves what it waits for
	parked  bool // in followers, asleep on sema
	sema    chan struct{}
	key     matchKey       // of a probe
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
	e.succeed()
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
// been roused and will call a follower.
//
// Hot path: no allocation until it sleeps, no system call of its own until it
// yields.
func (e *Engine) lead(ctx context.Context, w *waiter) (handOver bool) {
	var p patience
	for busy := 0; ; {
		n := e.progress()
		if len(e.words) > 0 {
			e.lookAtWords()
		}
		if w.ready || e.closed {
			return false
		}
		if e.polls++; e.polls&255 == 0 {
			e.showUp()
		}
		if n > 0 {
			p = patience{}
			if busy++; busy&255 == 0 && ctx.Err() != nil {
				return false
			}
			e.mu.breathe()
			continue
		}
		step := p.next(e.pollTime)
		if step == stepSleep {
			step = e.insist(&p)
		}
		switch step {
		case stepPoll:
			e.mu.breathe()
		case stepYield:
			e.mu.unlock()
			if p.insisted == 0 { // else showUp does: each time wakes a thread to take over
				runtime.Gosched()
			}
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			e.mu.lock()
		case stepSleep:
			if !e.blind {
				p = patience{}
			}
			if !e.sleep(ctx) {
				return true
			}
		}
		if (step != stepPoll || p.polls&255 == 0) && ctx.Err() != nil {
			return false
		}
	}
}

// Where a transport cannot end a sleep, a sleep is a nap, and what comes
// meanwhile waits for its end. So before it naps a leader goes on polling and
// yielding, and while data moves, which may be by its polls alone
// (ProgressManual), for as long as a long message takes.
//
// What peers do to exposed memory may take our polls too, and shows nowhere. A
// leader does not sleep on it unless ranks outnumber cores.
const (
	blindPoll  = time.Millisecond
	blindMoves = time.Second
	blindNap   = 20 * time.Microsecond
)

// insist is what a leader whose patience is over does instead of sleeping, if it
// may not: polls, and between some of them a yield.
func (e *Engine) insist(p *patience) step {
	switch {
	case p.insisted&15 != 0:
		p.insisted++
		return stepPoll
	case e.mustPoll(p):
		p.insisted++
		return stepYield
	}
	return stepSleep
}

// mustPoll says that a leader whose patience is over may not sleep yet.
func (e *Engine) mustPoll(p *patience) bool {
	if e.exposed > 0 && e.pollTime > 0 {
		return true
	}
	limit := blindPoll
	switch {
	case e.blind && e.moving > 0:
		limit = blindMoves
	case e.pollTime == 0 || !e.blind && e.moving == 0:
		return false
	}
	if p.since.IsZero() {
		p.since = time.Now()
	}
	return time.Since(p.since) < limit
}

// showUpTime is well below the 10 ms after which the runtime takes a goroutine
// for one that hogs its processor.
const showUpTime = 4 * time.Millisecond

// showUp goes through the scheduler now and then. A goroutine that polls by
// short system calls or calls to C, and never does, is found in one of them by
// the runtime's monitor once its 10 ms are over, and has its processor taken
// away. It gets another whose time counts as over too, and so on: the monitor
// stays awake and costs a tenth of a core.
func (e *Engine) showUp() {
	now := time.Now()
	if now.Sub(e.shownUp) < showUpTime {
		return
	}
	e.shownUp = now
	e.mu.unlock()
	runtime.Gosched()
	e.mu.lock()
}

type step int

const (
	stepPoll step = iota
	stepYield
	stepSleep
)

// patience decides how a leader waits: it polls for a while, unless ranks
// outnumber cores, then offers its core to others a few times, then sleeps.
type patience struct {
	polls, yields int
	since         time.Time // when the transports fell silent, from the 16th poll on
	spent         bool      // polling has had its time
	insisted      uint      // polls after that
}

// yieldsBeforeSleep is how often a core is offered before its rank sleeps: a
// sleep and a wake-up cost about as much as ten switches.
const yieldsBeforeSleep = 10

func (p *patience) next(pollTime time.Duration) step {
	if !p.spent && pollTime > 0 {
		// Reading the clock may cost as much as a poll, so not at each.
		if p.polls++; p.polls&15 != 0 {
			return stepPoll
		}
		if p.since.IsZero() {
			p.since = time.Now()
		}
		if time.Since(p.since) < pollTime {
			return stepPoll
		}
	}
	p.spent = true
	if p.yields < yieldsBeforeSleep {
		p.yields++
		return stepYield
	}
	return stepSleep
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
func (e *Engine) arm() bool {
	for i := range e.rails {
		if !e.rails[i].CQ.Arm() {
			return false
		}
	}
	return true
}
