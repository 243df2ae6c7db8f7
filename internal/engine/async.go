package engine

import (
	"time"

	"golang.org/x/sys/unix"
)

// Asynchronous progress
//
//	            kick                     leader seen
//	parked ────────────► asleep in Wait ────────────► watching
//	   ▲                      ▲      nobody leads and    │
//	   │                      └──── requests are open ───┤ every watchTick
//	   └────────────────────────────── quiet for long ───┘
//
// While somebody leads, the async goroutine must not sleep in Wait: every
// message would wake it for nothing. Nor may each blocking call rouse it when
// it ends. So after it has seen a leader it looks again every millisecond, or
// sooner where a rendezvous is under way, and only one that is posted while
// nobody leads kicks it at once; when there has been nothing to do for a while
// it parks, and costs nothing.
//
// While data moves it polls and yields as a leader does before it sleeps, and as
// long as a transport cannot be slept on, since it copies by our polls, it does
// not sleep at all.

const (
	watchTick  = time.Millisecond
	watchTicks = 20 // until it parks
	// watchLarge is how soon it looks again where a rendezvous is under way and a
	// core is spare: a large message takes about as long.
	watchLarge = 100 * time.Microsecond
)

type asyncState int

const (
	asyncParked asyncState = iota
	asyncWatching
	asyncRunning
)

// wantProgress makes sure that requests under way are looked after when nobody
// leads: at once if it is urgent and a core is spare, else within a watchTick.
// The caller holds the lock.
func (e *Engine) wantProgress(urgent bool) {
	if e.leader != nil || e.async == asyncRunning || e.kick == nil {
		return
	}
	if e.async == asyncParked || urgent && e.policy.spare > 0 {
		e.async = asyncRunning
		select {
		case e.kick <- struct{}{}:
		default:
		}
	}
}

// asyncLoop moves requests on while no goroutine waits for one. It ends when
// the engine closes; Close waits for it.
func (e *Engine) asyncLoop() {
	defer e.goroutines.Done()
	timer := time.NewTimer(watchTick)
	timer.Stop()
	idleTicks := 0
	for {
		select {
		case <-e.kick:
			idleTicks = 0
		case <-timer.C:
		}
		e.mu.lock()
		e.standBack()
		worked := e.runAsync()
		for e.large > 0 && e.leader != nil && !e.sleeping && !e.closed && e.policy.spare > 0 {
			e.async = asyncWatching
			e.mu.unlock()
			rest(watchLarge)
			e.mu.lock()
			worked = e.runAsync() || worked
		}
		if e.closed {
			e.quiet.Broadcast()
			e.mu.unlock()
			return
		}
		if worked {
			idleTicks = 0
		} else {
			idleTicks++
		}
		if idleTicks < watchTicks && !e.sleeping {
			e.async = asyncWatching
			timer.Reset(watchTick)
		} else {
			e.async = asyncParked
			timer.Stop()
		}
		e.mu.unlock()
	}
}

// standBack waits until nobody has led for a while, where a rendezvous is under
// way and no core is spare: a program that has posted some and waits for them
// next moves them on better by itself, and until then this goroutine would take
// the core of a rank that is at it.
func (e *Engine) standBack() {
	for e.policy.spare == 0 && e.large > 0 && !e.closed {
		e.async = asyncWatching
		seen := e.leads
		e.mu.unlock()
		rest(watchTick)
		e.mu.lock()
		if e.leader == nil && e.leads == seen {
			return
		}
	}
}

// runAsync leads while requests are under way and nobody else does. It reports
// whether there was any work.
func (e *Engine) runAsync() bool {
	worked := e.leads != e.leadsSeen
	e.leadsSeen = e.leads
	var p patience
	p.renew(e)
	for !e.closed && e.fatal == nil && e.leader == nil && e.active > 0 {
		e.async = asyncRunning
		worked = true
		if e.progress() > 0 {
			p.renew(e)
			e.mu.breathe()
			continue
		}
		step := e.background(&p)
		if step == stepSleep && !e.arm() {
			step = stepYield
		}
		switch step {
		case stepPoll:
			e.mu.breathe()
			continue
		case stepYield:
			e.yield(&p)
			continue
		case stepSleep:
		}
		nap := e.napTime()
		e.asyncAsleep = true
		e.mu.unlock()
		e.waitset.wait(nap)
		e.mu.lock()
		e.asyncAsleep = false
		p.renew(e)
		if e.heir() != nil {
			e.async = asyncWatching
			e.succeed() // a goroutine that waits would rather lead itself
			break
		}
	}
	return worked
}

// rest sleeps for a time that is too short for the runtime's timers.
func rest(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // if a signal ends it, it is over early
}
