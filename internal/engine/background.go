package engine

import (
	"context"
	"runtime"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
)

// The background goroutine
//
//	     ensureProgress            for a tick no goroutine led or slept
//	parked ──────────────► ticking ─────────────────────────────► leading
//	   ▲                    │   ▲                                 │    ▲
//	   └─ no work is left, ─┘   └── a goroutine leads, sleeps ────┘    │ Wait
//	      or another one            or was woken, or no work           ▼
//	      sleeps, for               is left
//	      some ticks                                                asleep
//
// The background goroutine is a goroutine of the engine. It polls the transports (it leads) if no
// other goroutine does and work is left: for example, goroutines are parked, or requests are under
// way that no goroutine waits for. It checks this at each tick of a timer. A leader that returns to
// the program does not wake it, for two reasons: this would make a blocking call cost more than
// twice as much, and a program that starts transfers and then waits for them polls for them itself.
//
// While data is being transferred, the background goroutine polls and yields as a leader does.
// Otherwise it sleeps on the transports, in CompletionQueue.Wait. When it has completed the request
// of another goroutine, it ticks again: the goroutine that it has woken leads at its next wait.

const (
	// tick is the time between two checks of the background goroutine. If no goroutine has led in a
	// tick and work is left, the background goroutine leads.
	tick = time.Millisecond
	// shortTick replaces tick if a core is free and, at the last check, the engine was in one of these
	// states: a request was under way that is probably a rendezvous, because the messages of a
	// rendezvous take about as long; an endpoint had kept messages, to send several at once; or the
	// background goroutine had led, because no other goroutine did.
	shortTick = 100 * time.Microsecond
	// lazyTick replaces tick and shortTick if progressUrgent has returned false at the last two
	// checks: for example, only small requests are under way, and no goroutine is parked. They end
	// when the program waits for them, so checks may be rare. A check takes about 25 µs of the core of
	// a rank that computes.
	lazyTick = 10 * time.Millisecond
	// ticksToPark is the number of checks in a row without work after which the background goroutine
	// parks: it then blocks until another goroutine sends to Engine.kick. It has no work, for example,
	// if progressNeeded returns false, or if another goroutine sleeps on the transports.
	ticksToPark = 20
	// holdWakes is the number of wakes in a tick (Engine.wakes) from which the background goroutine
	// may hold a processor of the Go scheduler during the next tick; see holdProcessor.
	holdWakes = 20
)

// backgroundState says what the background goroutine does; see the picture above.
type backgroundState uint8

const (
	backgroundParked  backgroundState = iota // blocked until another goroutine sends to Engine.kick
	backgroundTicking                        // checks at each tick whether it has to lead
	backgroundLeading                        // polls the transports, or sleeps on them
)

// progressNeeded reports whether a goroutine has to poll the transports. This is so if a follower
// is parked, an endpoint keeps messages until the next Read although their sends are complete, or
// asynchronous progress is on and requests or ports need it (Engine.active).
func (e *Engine) progressNeeded() bool {
	return e.followers > 0 || e.unsent > 0 || e.active > 0 && e.async
}

// progressUrgent reports whether the background goroutine must check more often than at every
// lazyTick: a follower is parked, a long buffer is to be transferred, an endpoint keeps messages,
// requests wait for room, or a window is open.
func (e *Engine) progressUrgent() bool {
	return e.followers > 0 || e.large > 0 || e.unsent > 0 || len(e.stalled) > 0 || len(e.ports) > 0
}

// ensureProgress makes sure that, if progress is needed, a goroutine polls: one that leads, one
// that sleeps and that an event will wake, or the background goroutine after its next tick. A
// goroutine calls it before it parks or returns to the program. The caller holds the lock.
func (e *Engine) ensureProgress() {
	switch {
	case e.leader != nil:
	case e.asleep:
		// A poll of the caller may have left work that no event reports: more completions than one Read
		// returns, bytes that wait for room, or a request that waits for room. So arm the queues again,
		// and wake the sleeper if that fails or if the time limit of its sleep is too long now. Arm may
		// clear the event of a Notify that has arrived since the last call of checkWords, so check the
		// words afterwards.
		if !e.arm() || e.oversleeps() {
			e.signal()
		}
		e.checkWords()
	case e.background == backgroundParked && e.progressNeeded(), e.backgroundLazy && e.progressUrgent():
		e.wakeBackground()
	}
}

// ensureRequestProgress is ensureProgress for a new request that no goroutine waits for yet. If
// urgent is set, a core is free, asynchronous progress is on, and no goroutine leads or sleeps on
// the transports, the background goroutine leads at once instead of at its next tick.
func (e *Engine) ensureRequestProgress(urgent bool) {
	if urgent && e.policy.backgroundPoll > 0 && e.async && e.leader == nil && !e.asleep && e.background != backgroundLeading {
		e.backgroundNow = true
		e.wakeBackground()
	} else if e.background == backgroundParked || urgent && e.backgroundLazy {
		e.ensureProgress()
	}
}

// wakeBackground makes the background goroutine check at once whether it has to lead. If it is
// parked, it ticks again.
func (e *Engine) wakeBackground() {
	if e.kick == nil {
		return
	}
	e.background, e.backgroundLazy = backgroundTicking, false
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// backgroundLoop is the background goroutine. It ends when the engine closes, and Close waits for
// it.
func (e *Engine) backgroundLoop() {
	defer e.goroutines.Done()
	timer := time.NewTimer(tick)
	timer.Stop()
	// led is the value of Engine.leads at the last check, and woken the value of Engine.wakes at the
	// last tick.
	var led, woken uint64
	idle, wait := ticksToPark, tick
	wasUrgent := false // result of progressUrgent at the previous check that took the lock
	short := tick
	if e.policy.backgroundPoll > 0 {
		short = shortTick
	}
	for {
		kicked := false
		switch n := e.wakes.Load(); {
		case idle >= ticksToPark:
			<-e.kick
			idle, kicked = 0, true
		case n-woken >= holdWakes && e.policy.backgroundPoll == 0 && e.policy.severalProcs:
			woken = n
			e.holdProcessor()
		default:
			woken = n
			timer.Reset(wait)
			select {
			case <-e.kick:
				timer.Stop()
				kicked = true
			case <-timer.C:
			}
		}
		if n := e.leads.Load(); n != led && idle < ticksToPark-1 && !kicked {
			led = n
			idle++
			continue // a goroutine has led since the last check, so there is no need to take the lock
		}
		e.mu.Lock()
		wait = tick
		switch {
		case e.closed:
			e.quiet.Broadcast()
			e.mu.Unlock()
			return
		case !e.progressNeeded() || e.fatal != nil || e.asleep:
			// There is no work for this goroutine. If another one sleeps on the transports, it calls
			// ensureProgress after its sleep.
			idle++
		case e.leader != nil || e.waking > 0 || e.leads.Load() != led && !e.backgroundNow:
			idle = 0
		default:
			e.backgroundLead()
			idle, wait = 0, short
		}
		if e.large > 0 || e.unsent > 0 {
			wait = short
		}
		urgent := e.progressUrgent()
		if e.backgroundLazy = !wasUrgent && !urgent; e.backgroundLazy {
			wait = lazyTick
		}
		wasUrgent = urgent
		e.backgroundNow = false
		led = e.leads.Load()
		e.background = backgroundTicking
		if idle >= ticksToPark {
			e.background = backgroundParked
		}
		e.mu.Unlock()
	}
}

// holdProcessor keeps a processor of the Go scheduler busy for a tick, so that no processor is
// idle: it sleeps in a system call that the scheduler does not know of.
//
// The reason is this. Whenever a goroutine becomes runnable and a processor is idle, the scheduler
// wakes a thread for that processor. If goroutines of a rank wake each other and there is no free
// core, this thread comes too late, and takes the core of a rank for microseconds. A rank has a
// second processor because the background goroutine must run beside a goroutine that computes (see
// mpi.Init), so the processor is idle while the rank only communicates. If the runtime preempts the
// goroutine, the system call ends. A goroutine that needs the processor waits for at most a tick.
func (e *Engine) holdProcessor() {
	e.mu.Lock()
	e.holdsProcessor = true
	e.mu.Unlock()
	sys.Nap(tick)
	e.mu.Lock()
	e.holdsProcessor = false
	e.mu.Unlock()
	runtime.Gosched()
}

// backgroundLead polls, yields and sleeps as a leader does. It returns when another goroutine leads
// or was woken, when another goroutine sleeps on the transports, when no progress is needed any
// more, or when the engine closes or fails.
func (e *Engine) backgroundLead() {
	e.background = backgroundLeading
	wakes := e.wakes.Load()
	var p waitProgress
	p.reset(e)
	for !e.closed && e.fatal == nil && e.leader == nil && !e.asleep && e.progressNeeded() {
		n := e.progress()
		if e.checkWords() {
			n++
		}
		if e.wakes.Load() != wakes {
			return
		}
		if n > 0 {
			p.reset(e)
			e.mu.yield()
			continue
		}
		step := e.backgroundStep(&p)
		if step == stepSleep && !e.arm() {
			step = stepYield
		}
		switch step {
		case stepPoll:
			e.mu.yield()
		case stepYield:
			e.yield(&p)
		case stepSleep:
			// If a rank stored a word before the call of arm, it may not have called Notify, so no event
			// would end the sleep.
			if e.checkWords() {
				return
			}
			e.sleepArmed(context.Background(), nil)
			p.reset(e)
		}
	}
}
