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
//	where cores are free,    polls, for             until something comes
//	else a few times         engine.yield
//
// Every completion starts this again. Polls without yields serve small messages: a
// yield that no other thread uses takes about as long as one of them. A thread that
// wants the core, even of another program, gets it at once by a yield. Where ranks
// outnumber cores, the rank that the leader waits for may be next in the kernel's
// queue, so a few polls are enough. A sleep at once would cost both sides system calls
// for each message. But if the first yields use up the time for yields, the thread
// that has the core computes. Then a sleep is better: the kernel gives the core sooner
// to a thread that it wakes than to one that yields. The background goroutine runs
// beside a goroutine that computes, and so counts cores as if there were twice as many
// ranks.
//
// How many ranks and cores there are is known from the start, but not what else
// runs on them, nor which ranks were bound where. So a yield that took long,
// because another thread had the core meanwhile, makes the next waits as short of
// polls as if ranks outnumbered cores, until a yield comes back at once.

// movingYield is how long a leader yields at least where data is on its way and
// cores are free: its polls may be what moves the data, although they find
// nothing here, as when this rank helps a peer to copy.
const movingYield = 2 * time.Millisecond

// policy is how long an engine's goroutines poll and yield.
type policy struct {
	poll  time.Duration // polling of a goroutine that waits; 0: a few times
	spare time.Duration // the same where a goroutine of this rank may be computing; more than 0: a core is spare
	yield time.Duration
	alone bool // a yield to other threads lets all goroutines run that matter
}

// engines counts those of this process. There is one except in tests and in
// programs that run their ranks as goroutines.
var engines atomic.Int32

const (
	// polls are the polls before the first look at the clock, and between two
	// looks: reading it may cost as much as a poll.
	polls = 32
	// fewPolls are the polls before the first yield where ranks outnumber cores.
	fewPolls = 6
	// turnPolls are the polls between two yields where they do not.
	turnPolls = 16

	// A yield that takes wantedYield or longer was used by another thread: two
	// switches take longer, a yield that no thread uses 0.3 µs. If it takes longer
	// than computesYield, the other thread computes.
	wantedYield   = time.Microsecond
	computesYield = 50 * time.Microsecond

	// crowdedYield divides the time for which a leader yields where another rank
	// has use for the core.
	crowdedYield = 10

	// An Await looks at its word for about a microsecond where cores are free,
	// else for what a store takes from core to core.
	glancesAlone   = 1000
	glancesCrowded = 20
	turnsCrowded   = 16 // of others, between glances
)

func newPolicy(p *params.Set, ranks, cores int) policy {
	if cores == 0 {
		cores = runtime.NumCPU()
	}
	w := policy{
		poll:  p.Duration("engine.poll"),
		yield: p.Duration("engine.yield"),
		alone: runtime.GOMAXPROCS(0) > 1,
	}
	w.spare = w.poll
	switch p.String("engine.spin") {
	case "always":
	case "never":
		w.poll, w.spare = 0, 0
	default:
		if ranks > cores {
			w.poll = 0
		}
		if 2*ranks > cores || runtime.NumCPU() < 2 {
			w.spare = 0
		}
	}
	return w
}

// want notes whether another thread has use for the core.
func (e *Engine) want(wanted bool) {
	e.wanted = wanted
	if wanted || e.policy.poll == 0 {
		e.glances.Store(glancesCrowded)
	} else {
		e.glances.Store(glancesAlone)
	}
}

// foreground is how long a leader polls without yields. If collectives run on
// goroutines of their own and no goroutine is parked, the program's goroutine
// computes.
func (e *Engine) foreground() time.Duration {
	if e.wanted {
		return 0
	}
	if e.tasks > 0 && len(e.parked) == 0 && e.resuming == 0 {
		return e.policy.spare
	}
	return e.policy.poll
}

// backgroundStep is what the background goroutine does after a poll that found
// nothing: while data moves it waits as a leader does, for pieces that come one
// after the other cost a sleep and a wake-up each.
func (e *Engine) backgroundStep(p *patience) step {
	if e.moving == 0 {
		return stepSleep
	}
	if p.polls++; p.polls < p.look {
		return stepPoll
	}
	if e.wanted {
		return e.next(p, 0)
	}
	return e.next(p, e.policy.spare)
}

// clock is the time since the engine was made, by the cheapest clock there is.
func (e *Engine) clock() time.Duration { return time.Since(e.born) }

type step int

const (
	stepPoll step = iota
	stepYield
	stepSleep
)

// patience is how far a goroutine that waits has come.
type patience struct {
	polls   int // that found nothing
	look    int // at which of them to decide again
	yielded bool
	since   time.Duration // when the first decision was taken; 0: none was
	now     time.Duration // when the last yield ended; 0: there was none since the last decision
}

// renew starts again, since something has come.
func (p *patience) renew(e *Engine) {
	p.polls, p.look, p.yielded, p.since, p.now = 0, polls, false, 0, 0
	if e.policy.poll == 0 || e.wanted {
		p.look = fewPolls
	}
}

// next decides what to do after p.look polls that found nothing, where polling
// without yields is worth the time poll.
func (e *Engine) next(p *patience, poll time.Duration) step {
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
		p.look = p.polls + polls
		return stepPoll
	}
	if p.look = p.polls + 1; poll > 0 {
		p.look = p.polls + turnPolls
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

// Where a transport cannot end a sleep, a sleep is a nap, and what comes
// meanwhile waits for its end. So a leader polls and yields for longer before it
// naps; while data moves, perhaps by its polls alone (ProgressManual), for as
// long as a long message takes.
//
// What peers do to exposed memory may need this rank's polls, too, and shows
// nowhere. A leader does not sleep while memory is exposed, unless ranks
// outnumber cores.
const (
	blindPoll  = time.Millisecond
	blindMoves = time.Second
	blindNap   = 20 * time.Microsecond
)

// mustPoll says that a leader whose patience is over may not sleep yet.
func (e *Engine) mustPoll(p *patience) bool {
	limit := blindPoll
	switch {
	case e.exposed > 0 && e.policy.poll > 0:
		return true
	case e.blind && e.moving > 0:
		limit = blindMoves
	case e.policy.poll == 0 || !e.blind && e.moving == 0:
		return false
	}
	return e.clock()-p.since < limit
}

// yield offers the core to other ranks. Other goroutines of this rank mostly have
// further processors. Only where they may not is a yield one of the goroutine,
// too: the Go scheduler then wakes a thread for an idle processor, which costs
// more than the yield.
func (e *Engine) yield(p *patience) {
	e.mu.Unlock()
	several := engines.Load() > 1
	if !e.policy.alone || several {
		runtime.Gosched()
	}
	before := e.clock()
	sys.Yield()
	p.now = e.clock()
	wanted := p.now-before > wantedYield
	e.mu.Lock()
	e.noteTime(p.now)
	if wanted != e.wanted {
		e.want(wanted)
	}
}

// foundNothing is called after a question (Test, Iprobe and their kin) that
// found nothing. A single question never yields. A loop of them does, as a
// leader would, so that what it asks for can happen: another goroutine or rank
// may have no core to do it on. If a yield has taken as long as a computation
// does, the next is as far away, so that a loop keeps half of its time. The caller
// holds the lock, which is open meanwhile.
func (e *Engine) foundNothing() {
	e.unanswered++
	limit := turnPolls
	if e.wanted || e.policy.poll == 0 || e.tasks > 0 {
		limit = fewPolls
	}
	if e.unanswered < limit {
		return
	}
	e.unanswered = 0
	now := e.clock()
	if now < e.keepCore {
		return
	}
	var p patience
	e.yield(&p)
	if took := p.now - now; took > computesYield {
		e.keepCore = p.now + took
	}
}

// showUpTime is well below the 10 ms after which the runtime takes a goroutine
// for one that hogs its processor.
const showUpTime = 4 * time.Millisecond

// showUp goes through the scheduler now and then. A goroutine that polls by
// short system calls or calls to C, and never does, is found in one of them by
// the runtime's monitor once its 10 ms are over, and has its processor taken
// away. It gets another whose time counts as over too, and so on: the monitor
// stays awake and costs a tenth of a core. It says whether it opened the lock.
func (e *Engine) showUp() bool {
	now := e.clock()
	e.noteTime(now)
	if now-e.shownUp < showUpTime {
		return false
	}
	e.shownUp = now
	e.mu.Unlock()
	runtime.Gosched()
	e.mu.Lock()
	return true
}
