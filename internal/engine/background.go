package engine

import (
	"context"
	"runtime"
	"time"

	"github.com/weft-hpc/weft/internal/sys"
)

// The background goroutine
//
//	           attend                  for a tick nobody led or slept
//	parked ──────────────► ticking ─────────────────────────► standing in
//	   ▲                    │   ▲                               │    ▲
//	   └── nothing to do, ──┘   └── a goroutine leads, or was ──┘    │ Wait
//	       or another is            woken, or nothing is left        ▼
//	       in Wait, for some ticks
//	                                                              asleep
//
// It stands in for the leader if no goroutine leads and work is left: goroutines
// are parked, or requests are under way that no goroutine waits for. It checks that
// once a tick. A notice from each leader that leaves would cost a blocking call
// more than the call itself; and a program that has started transfers and waits for
// them next moves them on better by itself.
//
// While data moves it polls and yields as a leader does, else it sleeps in Wait.
// When it has completed the request of a goroutine it goes back to ticking: the
// goroutine that was woken leads when it waits again.

const (
	// tick is how long nobody has led before the background goroutine stands in.
	tick = time.Millisecond
	// shortTick is in place of tick where a core is spare and a rendezvous is
	// under way, since a large message takes about as long, or messages had yet to
	// leave or goroutines were left without a leader at the last tick.
	shortTick = 100 * time.Microsecond
	// lazyTick is in place of tick where only small requests are under way that
	// nobody waits for: they end when the program waits for them. A tick costs a
	// rank that computes some 25 µs of its core.
	lazyTick = 10 * time.Millisecond
	// ticksToPark is after how many ticks it parks if there is nothing to do or
	// another goroutine is in Wait.
	ticksToPark = 20
	// holdWakes is after how many wake-ups of goroutines within a tick it holds
	// a processor for the next one; see hold.
	holdWakes = 20
)

type backgroundState uint8

const (
	backgroundParked backgroundState = iota
	backgroundTicking
	backgroundStandingIn
)

// needed reports whether a goroutine has to move the transports on: another one is
// parked until something comes, messages have yet to leave that their senders
// take for sent, or requests are under way that no goroutine waits for.
func (e *Engine) needed() bool { return e.followers > 0 || e.unsent > 0 || e.active > 0 && e.async }

// pressing reports whether what is needed should not wait for a lazyTick:
// goroutines are parked, data is to be moved or sent, or a window is open.
func (e *Engine) pressing() bool {
	return e.followers > 0 || e.large > 0 || e.unsent > 0 || len(e.stalled) > 0 || len(e.ports) > 0
}

// attend makes sure that the background goroutine will stand in if no goroutine leads
// or sleeps and one is needed. The caller holds the lock.
func (e *Engine) attend() {
	switch {
	case e.leader != nil:
	case e.asleep:
		// A poll may have left something that no event reports: more than a
		// Read gives, bytes that wait for room, or a stalled request. Arm may take
		// back a Notify that came since the last look at the words.
		if !e.arm() || e.oversleeps() {
			e.signal()
		}
		e.lookAtWords()
	case e.background == backgroundParked && e.needed(), e.lazy && e.pressing():
		e.rouseBackground()
	}
}

// attendRequest is attend for a request that no goroutine waits for yet. If it is
// urgent and a core is spare, the background goroutine stands in at once.
func (e *Engine) attendRequest(urgent bool) {
	if urgent && e.policy.spare > 0 && e.async && e.leader == nil && !e.asleep && e.background != backgroundStandingIn {
		e.now = true
		e.rouseBackground()
	} else if e.background == backgroundParked || urgent && e.lazy {
		e.attend()
	}
}

func (e *Engine) rouseBackground() {
	if e.kick == nil {
		return
	}
	e.background, e.lazy = backgroundTicking, false
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// backgroundLoop ends when the engine closes; Close waits for it.
func (e *Engine) backgroundLoop() {
	defer e.goroutines.Done()
	timer := time.NewTimer(tick)
	timer.Stop()
	var led, woken uint64 // Engine.leads and Engine.wakes at the last tick
	idle, wait := ticksToPark, tick
	calm := true // nothing was pressing at the last look
	short := tick
	if e.policy.spare > 0 {
		short = shortTick
	}
	for {
		kicked := false
		switch n := e.wakes.Load(); {
		case idle >= ticksToPark:
			<-e.kick
			idle, kicked = 0, true
		case n-woken >= holdWakes && e.policy.spare == 0 && e.policy.alone:
			woken = n
			e.hold()
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
			continue // without the lock: a goroutine leads
		}
		e.mu.Lock()
		wait = tick
		switch {
		case e.closed:
			e.quiet.Broadcast()
			e.mu.Unlock()
			return
		case !e.needed() || e.fatal != nil || e.asleep:
			idle++ // the goroutine in Wait calls attend when it returns
		case e.leader != nil || e.waking > 0 || e.leads.Load() != led && !e.now:
			idle = 0
		default:
			e.standIn()
			idle, wait = 0, short
		}
		if e.large > 0 || e.unsent > 0 {
			wait = short
		}
		pressing := e.pressing()
		if e.lazy = calm && !pressing; e.lazy {
			wait = lazyTick
		}
		calm = !pressing
		e.now = false
		led = e.leads.Load()
		e.background = backgroundTicking
		if idle >= ticksToPark {
			e.background = backgroundParked
		}
		e.mu.Unlock()
	}
}

// hold keeps a processor of the Go scheduler for a tick, asleep in a system call
// that the scheduler does not see.
//
// For every goroutine that becomes runnable the scheduler wakes a thread for an idle
// processor. If goroutines hand over to each other and ranks have no core to spare,
// that thread comes too late, and takes the core of a rank for microseconds. While this
// goroutine holds the processor, none is idle. The engine has one processor more than
// its share of the cores for that (see comm.Init). A preemption by the runtime ends the
// call. A goroutine that needs the processor waits for a tick at most.
func (e *Engine) hold() {
	e.mu.Lock()
	e.holding = true
	e.mu.Unlock()
	sys.Nap(tick)
	e.mu.Lock()
	e.holding = false
	e.mu.Unlock()
	runtime.Gosched()
}

// standIn does what a leader does until a goroutine leads or was woken, or
// nothing is left to be done.
func (e *Engine) standIn() {
	e.background = backgroundStandingIn
	wakes := e.wakes.Load()
	var p patience
	p.renew(e)
	for !e.closed && e.fatal == nil && e.leader == nil && !e.asleep && e.needed() {
		n := e.progress()
		if e.lookAtWords() {
			n++
		}
		if e.wakes.Load() != wakes {
			return
		}
		if n > 0 {
			p.renew(e)
			e.mu.breathe()
			continue
		}
		step := e.backgroundStep(&p)
		if step == stepSleep && !e.arm() {
			step = stepYield
		}
		switch step {
		case stepPoll:
			e.mu.breathe()
		case stepYield:
			e.yield(&p)
		case stepSleep:
			if e.lookAtWords() { // stored before the writer could see us asleep
				return
			}
			e.doze(context.Background(), nil)
			p.renew(e)
		}
	}
}
