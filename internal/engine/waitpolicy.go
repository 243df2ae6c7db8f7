package engine

import (
	"runtime"
	"sync/atomic"
	"time"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/internal/sys"
)

// How a leader waits
//
//	   poll ───────────────────► yield ──────────────► sleep
//	for engine.poll          sched_yield between    in CompletionQueue.Wait
//	if cores are free,       polls, for             until an event arrives
//	else a few times         engine.yield
//
// Every completion starts this sequence again. Polls without yields serve small messages: a yield
// that no other thread uses takes about as long as a small message. If another thread wants the
// core, even a thread of another program, a yield gives it the core at once.
//
// If ranks outnumber cores, the rank that the leader waits for may be next in the kernel's queue,
// so the leader polls only a few times before it yields. If it slept at once, both sides would
// pay for system calls at each message. But if the first yields take up the time for yields, the
// thread that has the core computes. Then a sleep is better, because the kernel gives the core
// sooner to a thread that it wakes than to a thread that yields.
//
// The background goroutine runs beside a goroutine of the program that computes. So it treats the
// host as if it had twice as many ranks.
//
// The engine knows the numbers of ranks and cores, but not which other programs run on the cores,
// or which ranks are bound to which core. So a yield that took a long time, because another
// thread had the core meanwhile, shortens the polling of the next waits as if ranks outnumbered
// cores. This ends when a yield returns at once.

// movingYield is the minimum time for which a leader yields if data is being transferred and
// cores are free. Its polls may be necessary for the transfer although they find no completion
// here, for example when this rank helps a peer to copy.
const movingYield = 2 * time.Millisecond

// waitPolicy says how long an engine's goroutines poll and yield.
type waitPolicy struct {
	poll           time.Duration // how long a goroutine that waits polls; 0: a few times
	backgroundPoll time.Duration // the same if a goroutine of this rank may be computing; more than 0: a core is free for it
	yield          time.Duration
	severalProcs   bool // the Go scheduler has several processors, so a yield of the thread lets other goroutines run
}

// engines counts the engines of this process. There is one, except in tests and in programs that
// run ranks as goroutines.
var engines atomic.Int32

const (
	// pollsPerClock is the number of polls before the first reading of the clock and between two
	// readings. A reading may cost as much as a poll.
	pollsPerClock = 32
	// fewPolls is the number of polls before the first yield if ranks outnumber cores.
	fewPolls = 6
	// pollsPerYield is the number of polls between two yields if ranks do not outnumber cores.
	pollsPerYield = 16

	// A yield that takes wantedYield or longer was used by another thread: two thread switches
	// take longer than wantedYield, and a yield that no thread uses takes 0.3 µs. If a yield
	// takes longer than computesYield, the other thread computes.
	wantedYield   = time.Microsecond
	computesYield = 50 * time.Microsecond

	// crowdedYield divides the time for which a leader yields if another thread wants the core.
	crowdedYield = 10

	// Await loads its word for about a microsecond if cores are free, else for about the time in
	// which a store becomes visible to another core.
	spinsAlone    = 1000
	spinsCrowded  = 20
	yieldsCrowded = 16 // yields between two series of loads
)

func newWaitPolicy(p *params.Set, ranks, cores int) waitPolicy {
	if cores == 0 {
		cores = runtime.NumCPU()
	}
	w := waitPolicy{
		poll:         p.Duration("engine.poll"),
		yield:        p.Duration("engine.yield"),
		severalProcs: runtime.GOMAXPROCS(0) > 1,
	}
	w.backgroundPoll = w.poll
	switch p.String("engine.spin") {
	case "always":
	case "never":
		w.poll, w.backgroundPoll = 0, 0
	default:
		if ranks > cores {
			w.poll = 0
		}
		if 2*ranks > cores || runtime.NumCPU() < 2 {
			w.backgroundPoll = 0
		}
	}
	return w
}

// setCoreWanted records whether another thread wants the core.
func (e *Engine) setCoreWanted(wanted bool) {
	e.coreWanted = wanted
	if wanted || e.policy.poll == 0 {
		e.spinLimit.Store(spinsCrowded)
	} else {
		e.spinLimit.Store(spinsAlone)
	}
}

// leaderPoll returns how long a leader polls without yields. If functions of Engine.Go run and no
// goroutine is parked, a goroutine of the program computes, so the time is backgroundPoll.
func (e *Engine) leaderPoll() time.Duration {
	if e.coreWanted {
		return 0
	}
	if e.tasks > 0 && len(e.parked) == 0 && e.resuming == 0 {
		return e.policy.backgroundPoll
	}
	return e.policy.poll
}

// backgroundStep returns what the background goroutine does after a poll that found nothing.
// While data is being transferred it waits as a leader does, because a sleep and a wake-up for
// each segment would cost more.
func (e *Engine) backgroundStep(p *waitProgress) step {
	if e.moving == 0 {
		return stepSleep
	}
	if p.polls++; p.polls < p.decideAt {
		return stepPoll
	}
	if e.coreWanted {
		return e.nextStep(p, 0)
	}
	return e.nextStep(p, e.policy.backgroundPoll)
}

// clock returns the time since New. It uses Go's monotonic clock, which is the cheapest one.
func (e *Engine) clock() time.Duration { return time.Since(e.start) }

type step int

const (
	stepPoll step = iota
	stepYield
	stepSleep
)

// waitProgress is the progress of a goroutine through the sequence of polls, yields and sleep.
type waitProgress struct {
	polls    int // number of polls that found nothing
	decideAt int // the value of polls at which to decide again
	yielded  bool
	since    time.Duration // time of the first decision; 0: there was none
	now      time.Duration // time at which the last yield ended; 0: no yield since the last decision
}

// reset starts the sequence again after a completion.
func (p *waitProgress) reset(e *Engine) {
	p.polls, p.decideAt, p.yielded, p.since, p.now = 0, pollsPerClock, false, 0, 0
	if e.policy.poll == 0 || e.coreWanted {
		p.decideAt = fewPolls
	}
}

// nextStep decides what to do after p.decideAt polls that found nothing. poll is how long to poll
// without yields.
func (e *Engine) nextStep(p *waitProgress, poll time.Duration) step {
	now := p.now
	if now == 0 {
		now = e.clock()
		e.noteTime(now)
	}
	p.now = 0
	if p.since == 0 {
		p.since = now
	}
	waited := now - p.since
	if waited < poll {
		p.decideAt = p.polls + pollsPerClock
		return stepPoll
	}
	if p.decideAt = p.polls + 1; poll > 0 {
		p.decideAt = p.polls + pollsPerYield
	}
	limit := e.policy.yield
	if poll == 0 {
		limit /= crowdedYield
	}
	if e.moving > 0 && poll > 0 {
		limit = max(limit, movingYield)
	}
	if !p.yielded || waited < poll+limit {
		p.yielded = true
		return stepYield
	}
	return stepSleep
}

// If a transport cannot end a sleep, each sleep is a nap of limited time, and an event waits for
// the end of the nap. So a leader polls and yields for napsPoll before it naps. While data is
// being transferred, which may need its polls (ProgressManual), it polls for napsMovingPoll, the
// time that a long message takes.
//
// Peers' access to exposed memory may need this rank's polls, too, and causes no event here. So a
// leader does not sleep while memory is exposed, unless ranks outnumber cores.
const (
	napsPoll       = time.Millisecond
	napsMovingPoll = time.Second
	napLength      = 20 * time.Microsecond
)

// mustPoll reports whether a leader must keep polling although nextStep has decided that it
// sleeps.
func (e *Engine) mustPoll(p *waitProgress) bool {
	limit := napsPoll
	switch {
	case e.exposed > 0 && e.policy.poll > 0:
		return true
	case e.napsOnly && e.moving > 0:
		limit = napsMovingPoll
	case e.policy.poll == 0 || !e.napsOnly && e.moving == 0:
		return false
	}
	return e.clock()-p.since < limit
}

// yield offers the core to other ranks. The other goroutines of this rank usually have further
// processors of the Go scheduler. Only if they may have none does yield call runtime.Gosched too:
// the scheduler then wakes a thread for an idle processor, which costs more than the yield.
func (e *Engine) yield(p *waitProgress) {
	e.mu.Unlock()
	several := engines.Load() > 1
	if !e.policy.severalProcs || several {
		runtime.Gosched()
	}
	before := e.clock()
	sys.Yield()
	p.now = e.clock()
	wanted := p.now-before > wantedYield
	e.mu.Lock()
	e.noteTime(p.now)
	if wanted != e.coreWanted {
		e.setCoreWanted(wanted)
	}
}

// testFailed runs after a call of Test, Iprobe or a similar function that found nothing. A single
// such call never yields. In a loop of calls testFailed yields as a leader does, because the
// goroutine or rank that the loop waits for may have no core. If a yield has taken as long as a
// computation does, testFailed does not yield for the same time, so the loop keeps half of the
// core. The caller holds the lock, which testFailed releases during the yield.
func (e *Engine) testFailed() {
	e.failedTests++
	limit := pollsPerYield
	if e.coreWanted || e.policy.poll == 0 || e.tasks > 0 {
		limit = fewPolls
	}
	if e.failedTests < limit {
		return
	}
	e.failedTests = 0
	now := e.clock()
	if now < e.noYieldUntil {
		return
	}
	var p waitProgress
	e.yield(&p)
	if took := p.now - now; took > computesYield {
		e.noYieldUntil = p.now + took
	}
}

// schedulerInterval is well below 10 ms, after which the Go runtime preempts a goroutine.
const schedulerInterval = 4 * time.Millisecond

// enterScheduler calls runtime.Gosched if the last call is schedulerInterval ago. If a goroutine
// that polls by short system calls or calls to C never did so, the runtime's monitor would find
// it in one of them after 10 ms and take its processor away. The goroutine would get another
// processor, whose time counts as over too, and so on: the monitor would stay awake and use a
// tenth of a core. enterScheduler returns whether it has released the lock meanwhile.
func (e *Engine) enterScheduler() bool {
	now := e.clock()
	e.noteTime(now)
	if now-e.lastGosched < schedulerInterval {
		return false
	}
	e.lastGosched = now
	e.mu.Unlock()
	runtime.Gosched()
	e.mu.Lock()
	return true
}
