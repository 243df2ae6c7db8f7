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
// A leader is the goroutine that polls the transports for its rank (see wait.go). While nothing
// arrives, it goes through these steps:
//
//	   poll ───────────────────► yield ──────────────► sleep
//	for engine.poll          sched_yield between    in CompletionQueue.Wait
//	if cores are free,       polls, for             until an event arrives
//	else a few times         engine.yield
//
// Every completion starts the sequence again. While it only polls, the leader gets a small message
// with the least delay: a yield takes about as long as a small message, even if no other thread
// wants the core. If another thread wants the core, also one of another program, a yield gives it
// the core at once.
//
// If ranks outnumber cores, the rank that the leader waits for may be next in the kernel's queue of
// runnable threads. So the leader polls only a few times before it yields. If it slept at once,
// both ranks would pay for system calls at each message. But if the yields take as long as
// engine.yield permits, the thread that has the core computes. Then a sleep is better, because the
// kernel gives the core sooner to a thread that wakes from a sleep than to a thread that yields.
//
// The background goroutine runs beside a goroutine of the program that computes. So it decides as
// if there were twice as many ranks on the host.
//
// The engine knows the numbers of ranks and cores. It does not know which other programs run on the
// cores, or which ranks are bound to which core. But if a yield takes a long time, another thread
// had the core meanwhile. Then the leaders of the next waits poll as if ranks outnumbered cores,
// until a yield returns at once.

// movingYield is the minimum time for which a leader yields before it sleeps, if data is being
// transferred and ranks do not outnumber cores. The transfer may need its polls although they find
// no completion on this rank, for example when this rank helps a peer to copy.
const movingYield = 2 * time.Millisecond

// waitPolicy says how long the goroutines of an engine poll and yield before they sleep.
type waitPolicy struct {
	// Time for which a leader polls without yields; 0: it polls only a few times, because ranks
	// outnumber cores or the parameters say so.
	poll time.Duration
	// The same if a goroutine of this rank may be computing; if it is more than 0, the engine assumes
	// that there is a core for both.
	backgroundPoll time.Duration
	// Time for which a leader then polls with yields before it sleeps; see also crowdedYield and
	// movingYield.
	yield time.Duration
	// The Go scheduler has several processors (GOMAXPROCS), so other goroutines can run while the
	// thread of one yields its core.
	severalProcs bool
}

// engines is the number of open engines in this process. It is 1, except in tests, in programs that
// run several ranks in one process, and in processes that are connected with another job.
var engines atomic.Int32

const (
	// pollsPerClock is the number of polls before the first reading of the clock, and between two
	// readings, while a leader only polls. A reading may cost as much as a poll.
	pollsPerClock = 32
	// fewPolls is the number of polls before the first yield if ranks outnumber cores, or if
	// another thread wants the core. These polls take as long as a small message and the peer's
	// answer to it, if the peer has another core. With fewer polls both ranks of a ping-pong yield
	// in every wait, and an exchange takes three times as long.
	fewPolls = 16
	// pollsPerYield is the number of polls between two yields if ranks do not outnumber cores.
	pollsPerYield = 16

	// If a yield takes longer than wantedYield, another thread has used the core meanwhile: two
	// switches of threads take longer than wantedYield, and a yield for which no thread waits takes
	// 0.3 µs. If a yield takes longer than computesYield, the other thread computes.
	wantedYield   = time.Microsecond
	computesYield = 50 * time.Microsecond

	// crowdedYield divides waitPolicy.yield if ranks outnumber cores, or if another thread wants
	// the core.
	crowdedYield = 10

	// Before Context.Await takes the lock, it loads its word spinsAlone times, which takes about a
	// microsecond, if ranks do not outnumber cores and no other thread wants the core. Otherwise it
	// loads the word spinsCrowded times, which takes about as long as a store needs to become
	// visible to another core, then yields and starts again, up to yieldsCrowded times.
	spinsAlone    = 1000
	spinsCrowded  = 20
	yieldsCrowded = 16 // maximum number of yields of one call of Await before it takes the lock
)

// newWaitPolicy returns the policy for the parameters p. ranks is the number of ranks on this host.
// cores is the number of hardware threads that they share; 0: all that this process may use.
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

// setCoreWanted records whether another thread wants the core, and sets spinLimit accordingly.
func (e *Engine) setCoreWanted(wanted bool) {
	e.coreWanted = wanted
	if wanted || e.policy.poll == 0 {
		e.spinLimit.Store(spinsCrowded)
	} else {
		e.spinLimit.Store(spinsAlone)
	}
}

// leaderPoll returns how long a leader polls without yields. If tasks (functions of Engine.Go) run
// and no other goroutine waits, the leader probably waits for a task, and a goroutine of the
// program computes. Then the time is that of the background goroutine.
func (e *Engine) leaderPoll() time.Duration {
	if e.coreWanted {
		return 0
	}
	if e.tasks > 0 && len(e.parked) == 0 && e.resuming == 0 {
		return e.policy.backgroundPoll
	}
	return e.policy.poll
}

// backgroundStep returns what the background goroutine does after a poll that found nothing. While
// data is being transferred, the background goroutine polls and yields as a leader does, because a
// sleep and a wake-up for each segment of the data would cost more. Otherwise it sleeps.
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

// clock returns the time since New, by Go's monotonic clock: time.Since is cheaper than time.Now.
func (e *Engine) clock() time.Duration { return time.Since(e.start) }

// step is what a goroutine that polls does next, after a poll that found nothing.
type step int

const (
	stepPoll  step = iota // it polls again
	stepYield             // it yields the core, and then polls again
	stepSleep             // it sleeps on the transports
)

// waitProgress records how far a goroutine has come in the sequence of polls, yields and sleep.
type waitProgress struct {
	polls    int           // number of polls that found nothing since the start of the sequence
	decideAt int           // value of polls at which nextStep decides again
	yielded  bool          // the goroutine has yielded since the start of the sequence
	since    time.Duration // time on Engine.clock of the first decision; 0: there was none
	// Time on Engine.clock at which the last yield ended; 0: there was no yield since the last
	// decision.
	now time.Duration
}

// reset starts the sequence again, as at the start of a wait and after a completion.
func (p *waitProgress) reset(e *Engine) {
	p.polls, p.decideAt, p.yielded, p.since, p.now = 0, pollsPerClock, false, 0, 0
	if e.policy.poll == 0 || e.coreWanted {
		p.decideAt = fewPolls
	}
}

// nextStep returns what a goroutine does after p.decideAt polls that found nothing, and sets the
// number of polls after which it decides again. poll is the time for which the goroutine polls
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

// If events cannot end a sleep on the transports (Engine.napsOnly), each sleep is a short nap, and
// the engine handles an event only at the end of the nap. While a transfer or a write by a peer may
// need polls, a nap takes about napLength. So a leader polls and yields for napsPoll before its
// first nap. While data is being transferred, which may need the leader's polls, it does so for
// napsMovingPoll, which is about the time that a long message takes.
//
// If this rank has registered memory to which writes of peers advance only while this rank polls
// (Engine.exposed), a write causes no event here. So a leader does not sleep while there is such
// memory, unless ranks outnumber cores.
const (
	napsPoll       = time.Millisecond
	napsMovingPoll = time.Second
	napLength      = 20 * time.Microsecond
)

// mustPoll reports whether a leader must continue to poll and yield, although nextStep has decided
// that it sleeps.
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

// yield offers the core to the threads of other ranks and programs. It records in p when it ended,
// and records whether another thread has used the core (setCoreWanted). Usually other goroutines of
// this rank have further processors of the Go scheduler. Only if they may have none, yield calls
// runtime.Gosched too. Otherwise it does not, because Gosched makes the scheduler wake a thread for
// an idle processor, which costs more than the yield. The caller holds the lock before and after
// the call; yield releases it meanwhile.
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

// testFailed runs at the end of each call of Test, Iprobe or a similar function that found nothing.
// A program may call such a function in a loop, and the goroutine or rank that it waits for may
// have no core. So testFailed yields the core at every pollsPerYield-th call. If the yield has
// taken longer than computesYield, testFailed does not yield for the same time again, so the loop
// keeps half of the core. The caller holds the lock, which testFailed releases during the yield.
func (e *Engine) testFailed() {
	e.failedTests++
	if e.failedTests < pollsPerYield {
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

// schedulerInterval is the time after which a leader enters the Go scheduler; see enterScheduler.
// It is well below 10 ms, after which the Go runtime preempts a goroutine.
const schedulerInterval = 4 * time.Millisecond

// enterScheduler calls runtime.Gosched if its last call of Gosched is at least schedulerInterval
// ago. A leader calls it now and then, for this reason: if a goroutine polls by short system calls
// or calls to C for 10 ms without entering the scheduler, the runtime's monitor thread finds it in
// such a call and takes its processor away. The goroutine gets another processor, whose time slice
// counts as over too, and so on. So the monitor would stay awake and use a tenth of a core.
// enterScheduler returns whether it has released the lock meanwhile.
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
