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
//	   └─ no work is left, ─┘   └── a goroutine leads, or was ────┘    │ Wait
//	      or another one            woken, or no work is left          ▼
//	      is in Wait, for
//	      some ticks                                                asleep
//
// The background goroutine leads if no other goroutine leads and work is left: goroutines are
// parked, or requests are under way that no goroutine waits for. It checks this once per tick. If
// instead each leader that returns woke it, a blocking call would cost more than twice as much.
// And a program that starts transfers and then waits for them polls for them itself.
//
// While data is being transferred it polls and yields as a leader does, otherwise it sleeps in
// Wait. When it has completed the request of another goroutine, it returns to ticking: the
// goroutine that it has woken leads at its next wait.

const (
	// tick is how long no goroutine has led before the background goroutine leads.
	tick = time.Millisecond
	// shortTick replaces tick if a core is free and there was one of these at the last tick: a
	// rendezvous, because a large message takes about as long; messages that the endpoint kept;
	// goroutines without a leader.
	shortTick = 100 * time.Microsecond
	// lazyTick replaces tick if only small requests are under way and no goroutine waits for
	// them: they end when the program waits for them. A tick costs a rank that computes about 25
	// µs of its core.
	lazyTick = 10 * time.Millisecond
	// ticksToPark is the number of ticks after which the background goroutine parks if no work is
	// left or another goroutine is in Wait.
	ticksToPark = 20
	// holdWakes is the number of wake-ups of goroutines in a tick after which the background
	// goroutine holds a processor during the next tick; see holdProcessor.
	holdWakes = 20
)

type backgroundState uint8

const (
	backgroundParked backgroundState = iota
	backgroundTicking
	backgroundLeading
)

// progressNeeded reports whether a goroutine has to poll the transports: a follower is parked, or
// an endpoint keeps messages whose sends are complete, or requests are under way that no
// goroutine waits for.
func (e *Engine) progressNeeded() bool {
	return e.followers > 0 || e.unsent > 0 || e.active > 0 && e.async
}

// progressUrgent reports whether the needed progress cannot wait for a lazyTick: goroutines are
// parked, data must be transferred or sent, or a window is open.
func (e *Engine) progressUrgent() bool {
	return e.followers > 0 || e.large > 0 || e.unsent > 0 || len(e.stalled) > 0 || len(e.ports) > 0
}

// ensureProgress makes sure that the background goroutine will lead if no goroutine leads or
// sleeps and progress is needed. The caller holds the lock.
func (e *Engine) ensureProgress() {
	switch {
	case e.leader != nil:
	case e.asleep:
		// A poll may have left work that no event reports: more completions than one
		// Read returns, bytes that wait for room, or a stalled request. Arm may also clear the
		// event of a Notify that arrived since the last checkWords.
		if !e.arm() || e.oversleeps() {
			e.signal()
		}
		e.checkWords()
	case e.background == backgroundParked && e.progressNeeded(), e.backgroundLazy && e.progressUrgent():
		e.wakeBackground()
	}
}

// ensureRequestProgress is ensureProgress for a request that no goroutine waits for yet. If the
// request is urgent and a core is free, the background goroutine leads at once.
func (e *Engine) ensureRequestProgress(urgent bool) {
	if urgent && e.policy.backgroundPoll > 0 && e.async && e.leader == nil && !e.asleep && e.background != backgroundLeading {
		e.backgroundNow = true
		e.wakeBackground()
	} else if e.background == backgroundParked || urgent && e.backgroundLazy {
		e.ensureProgress()
	}
}

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

// backgroundLoop runs the background goroutine until the engine closes. Close waits for it.
func (e *Engine) backgroundLoop() {
	defer e.goroutines.Done()
	timer := time.NewTimer(tick)
	timer.Stop()
	var led, woken uint64 // Engine.leads and Engine.wakes at the last tick
	idle, wait := ticksToPark, tick
	wasUrgent := false // result of progressUrgent at the last check
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
			continue // a goroutine leads, so this check takes no lock
		}
		e.mu.Lock()
		wait = tick
		switch {
		case e.closed:
			e.quiet.Broadcast()
			e.mu.Unlock()
			return
		case !e.progressNeeded() || e.fatal != nil || e.asleep:
			idle++ // the goroutine in Wait calls ensureProgress after its sleep
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

// holdProcessor keeps a processor of the Go scheduler for a tick: it sleeps in a system call that
// the scheduler does not see.
//
// For every goroutine that becomes runnable the scheduler wakes a thread for an idle processor.
// If goroutines wake each other and ranks have no free core, that thread comes too late and takes
// the core of a rank for microseconds. While the background goroutine holds the processor, no
// processor is idle. For this purpose the engine has one processor more than its share of the
// cores (see comm.Init). A preemption by the runtime ends the system call. A goroutine that needs
// the processor waits for at most a tick.
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

// backgroundLead polls, yields and sleeps as a leader does until another goroutine leads or was
// woken, or no progress is needed.
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
			if e.checkWords() { // the word was stored before the writer could see that this rank sleeps
				return
			}
			e.sleepArmed(context.Background(), nil)
			p.reset(e)
		}
	}
}
