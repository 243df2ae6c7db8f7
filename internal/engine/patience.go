package engine

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/params"
)

// How who waits does it
//
//	   poll ───────────────────► yield ──────────────► sleep
//	for engine.poll          sched_yield between    in CompletionQueue.Wait
//	where cores are free,    polls, for             until something comes
//	else a few times         engine.yield
//
// Whatever comes starts it anew. Polling alone is for small messages. A yield
// that nobody makes use of takes about as long as one of those, so it adds next
// to nothing to a longer wait; and if somebody does want the core, be it another
// program, it has it now and not at the end of a time slice. Where ranks
// outnumber cores whom one waits for may be next in the kernel's queue, so there
// a few polls are enough, to see a message that is on its way already. Sleeping
// at once would cost both sides system calls for each message, and the kernel a
// wake-up; but where a yield has taken longer than all of them should, who has
// the core computes, and then the kernel is kinder to one that it wakes than to
// one that yields. Who waits in the background, beside a goroutine that computes, counts
// cores as if there were twice as many ranks.
//
// How many ranks and cores there are is known from the start, but not what else
// runs on them, nor who was bound to which. So a yield that took long, because
// somebody else had the core meanwhile, makes the next waits as short of polls
// as if ranks outnumbered cores, until a yield comes back at once.

// movingYield is how long a leader yields at least where data is on its way and
// cores are free: it may be its polls that move it, though nothing comes of them
// here, as of helping a peer to copy.
const movingYield = 2 * time.Millisecond

// policy is how long an engine's goroutines do what.
type policy struct {
	poll  time.Duration // polling of who waits; 0: a few times
	spare time.Duration // the same where a goroutine of this rank may be computing
	yield time.Duration
	alone bool // a yield to other threads is one to all goroutines that matter
}

// engines counts those of this process. There is one but in tests and in
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

	// wantedYield is how long a yield takes from which on somebody else has had
	// the core: two switches take longer, a yield to nobody 0.3 µs.
	wantedYield = time.Microsecond

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

// want notes whether somebody else has use for the core.
func (e *Engine) want(wanted bool) {
	e.wanted = wanted
	if wanted || e.policy.poll == 0 {
		e.glances.Store(glancesCrowded)
	} else {
		e.glances.Store(glancesAlone)
	}
}

// foreground is how long a leader polls. Where functions run on goroutines of
// their own and nobody follows the leader, the program's goroutine is thought to
// compute.
func (e *Engine) foreground() time.Duration {
	if e.wanted {
		return 0
	}
	if e.tasks > 0 && len(e.followers) == 0 {
		return e.policy.spare
	}
	return e.policy.poll
}

// background is what the async goroutine does after a poll that found nothing:
// while data moves it waits as a leader does, for pieces that come one after the
// other cost a sleep and a wake-up each.
func (e *Engine) background(p *patience) step {
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

// patience is where somebody who waits stands.
type patience struct {
	polls   int // that found nothing
	look    int // at which of them to decide anew
	yielded bool
	since   time.Duration // when the first decision was taken; 0: none was
	now     time.Duration // when the last yield ended; 0: there was none since the last decision
}

// renew starts anew, since something has come.
func (p *patience) renew(e *Engine) {
	p.polls, p.look, p.yielded, p.since, p.now = 0, polls, false, 0, 0
	if e.policy.poll == 0 || e.wanted {
		p.look = fewPolls
	}
}

// next decides what to do after p.look polls that found nothing, of which the
// first may go on for a time.
func (e *Engine) next(p *patience, poll time.Duration) step {
	now := p.now
	if now == 0 {
		now = e.clock()
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

// yield offers the core to other ranks. Other goroutines of this one have
// further processors; only where they may not a yield is one of the goroutine
// too, for that rouses a thread to take the processor over if one is idle, which
// costs more than the yield. showUp sees to the rest.
func (e *Engine) yield(p *patience) {
	e.mu.unlock()
	several := engines.Load() > 1
	if !e.policy.alone || several {
		runtime.Gosched()
	}
	before := e.clock()
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	p.now = e.clock()
	wanted := p.now-before > wantedYield
	e.mu.lock()
	if wanted != e.wanted {
		e.want(wanted)
	}
	if !several && e.home.used(wanted, p.now) {
		e.mu.unlock()
		e.home.goThere()
		e.mu.lock()
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
	if now-e.shownUp < showUpTime {
		return false
	}
	e.shownUp = now
	e.mu.unlock()
	runtime.Gosched()
	e.mu.lock()
	return true
}
