package engine

import "math/bits"

// A model of progress: all states of the rule in wait.go and background.go for a rank of two or
// three goroutines. A transition is what a goroutine does under the lock between two points at
// which the lock is free. A comment before a method or at a step names the function of the engine
// that it models. Time has no length in the model: a leader may become idle after any poll that
// found nothing, a yield may take any time, and a tick may occur at any time.
//
//	goroutine    computing ► leading ► sleeping ► returned ► leading ...
//	                 │           └► parked ► resuming ► leading ...
//	                 └► gone
//	background   parked ► ticking ► (tickDue) ► bgLeading ► sleeping ► returned ► bgLeading
//
// The environment starts waits, posts a request that no goroutine waits for, sends messages,
// stores words (and calls Notify in a separate step, as another rank does), makes room for a
// stalled request, ends contexts and closes the engine.
//
// The search visits every reachable state. In each state it checks the invariants. At the end it
// checks that the environment may stop in any state: from there the rank alone reaches a state in
// which every event was handled.

// place is the state of a goroutine of the model.
type place uint8

const (
	computing place = iota
	leading         // between two polls
	parked
	resuming // runnable: unparked, or giving way
	sleeping // in Wait
	returned // from Wait; it has not taken the lock yet
	gone
	ticking   // background goroutine: waits for a tick or a kick
	tickDue   // background goroutine: about to take the lock
	bgLeading // background goroutine: leads, between two polls
)

// The kinds of event that a goroutine of the model waits for.
const (
	forMessage = iota
	forWord    // a word in shared memory, whose store causes no completion
	forTask    // a task of another goroutine; the waiter is passive
)

// The states of the request that no goroutine waits for.
const (
	noRequest = iota
	posted    // a message ends it
	absent    // stalled until the peer starts, which causes an event
	stalled   // stalled until there is room, which causes no event
	done
)

const (
	modelTicks  = 3    // replaces ticksToPark
	requestMail = 0x80 // in modelState.queue: the event that the request waits for
	nobody      = -1
)

// modelScene describes the goroutines and the possible events of a search.
type modelScene struct {
	name     string
	waits    []int8 // by goroutine: number of waits; after them it is gone
	kinds    []int  // by goroutine: kind of event that it waits for
	request  uint8  // posted or absent: initial state of the request; noRequest: there is none
	urgent   bool   // the request is urgent; see ensureRequestProgress
	contexts bool   // the context of goroutine 0 may end
	closes   bool
	fault    string // name of a step that the model leaves out or does wrong; "": none
}

type modelWaiter struct {
	at                                              place
	waits, due                                      int8 // number of waits not begun; of messages not sent
	ready, standby, waking, contextEnded, othersLed bool // ready, standby and waking as in waiter; contextEnded: its context has ended; othersLed: others have led since it fell asleep
}

// modelState is the engine with its goroutines and its transport. It is comparable.
type modelState struct {
	g                        [3]modelWaiter
	mail                     uint8 // bit by goroutine: a message arrived before its receive
	stored, notify           uint8 // bit by goroutine: its word is stored; the writer has not called Notify yet
	queue                    uint8 // bit by goroutine: unread completions
	armed, signaled          bool
	asleep, bounded          bool // Engine.asleep; the Wait has a timeout
	leader, sleeper          int8
	woke, bgWoke, bgLed      bool // Engine.wakes has changed since the leader, or backgroundLead, began; Engine.leads since the last tick
	bg                       place
	background               backgroundState
	idle                     int8
	kick, now, room, one     bool
	request                  uint8
	closed, closer, notified bool // closer: Close waits for Engine.quiet; notified: Close was woken
}

func (m *modelScene) first() modelState {
	s := modelState{leader: nobody, sleeper: nobody, bg: ticking, idle: modelTicks}
	for i := range s.g {
		s.g[i].at = gone
	}
	for i, n := range m.waits {
		s.g[i] = modelWaiter{at: computing, waits: n, due: n}
	}
	return s
}

// emit gets each state that a transition may lead to.
type emit func(s modelState)

func (m *modelScene) is(fault string) bool { return m.fault == fault }

func (s *modelState) waiting(i int) bool {
	return s.g[i].at != computing && s.g[i].at != gone
}

func (s *modelState) count(which func(w *modelWaiter) bool) (n int) {
	for i := range s.g {
		if which(&s.g[i]) {
			n++
		}
	}
	return n
}

func (m *modelScene) passive(i int) bool { return m.kinds[i] == forTask }

// Engine.progressNeeded
func (m *modelScene) progressNeeded(s *modelState) bool {
	for i := range m.waits {
		if s.g[i].at == parked && !m.passive(i) && !m.is("progressNeeded ignores followers") {
			return true
		}
	}
	return s.request != noRequest && s.request != done
}

// Engine.signal
func (s *modelState) signal() { s.signaled, s.armed = true, false }

// event is a completion, or Notify: it ends a Wait if the queue is armed.
func (s *modelState) event() { s.armed = false }

// Engine.arm
func (s *modelState) arm() bool {
	if s.queue != 0 {
		return false
	}
	s.armed = true
	return true
}

// Engine.wake
func (m *modelScene) wake(s *modelState, i int) {
	w := &s.g[i]
	w.ready = true
	if s.asleep && int(s.sleeper) == i && !m.is("wake does not signal the sleeper") {
		s.signal()
	}
	if w.waking || w.at != parked && !w.standby {
		return
	}
	w.waking, s.woke, s.bgWoke = true, true, true
	if w.at == parked {
		w.at = resuming
	}
}

// Engine.progress. A Read returns one completion. It also clears the event that reported the
// other ones, as a Read of a socket does.
func (m *modelScene) progress(s *modelState) (some bool) {
	if some = s.queue != 0; some {
		bit := s.queue & -s.queue
		s.queue &^= bit
		s.armed = s.asleep
		i := bits.TrailingZeros8(bit)
		switch {
		case bit == requestMail:
			if s.request++; s.request == absent {
				s.request = done
			}
		case s.waiting(i) && !s.g[i].ready:
			m.wake(s, i)
		default:
			s.mail |= bit
		}
	}
	if s.request == stalled && s.room { // Engine.retry
		s.request = done
	}
	return some
}

// Engine.checkWords
func (m *modelScene) checkWords(s *modelState) (some bool) {
	for i := range m.waits {
		if m.kinds[i] == forWord && s.waiting(i) && (s.g[i].ready || s.stored>>i&1 != 0) {
			some = true
			m.wake(s, i)
		}
	}
	return some
}

// withStore calls to with s, and with each state in which another rank has meanwhile stored a
// word and called Notify, for which it needs no lock.
func (m *modelScene) withStore(s modelState, to emit) {
	to(s)
	for i := range m.waits {
		if n := s; m.kinds[i] == forWord && s.waiting(i) && s.g[i].due > 0 {
			n.g[i].due--
			n.stored |= 1 << i
			n.event()
			to(n)
		}
	}
}

// Engine.ensureProgress
func (m *modelScene) ensureProgress(s *modelState) {
	switch {
	case s.leader != nobody:
	case s.asleep:
		if m.is("ensureProgress does not arm") {
			return
		}
		if !s.arm() || s.request == stalled && !s.bounded && !m.is("ensureProgress leaves a sleep without a limit") {
			s.signal() // Engine.oversleeps
		}
		if !m.is("ensureProgress does not check the words") {
			m.checkWords(s)
		}
	case s.background == backgroundParked && m.progressNeeded(s):
		s.background, s.kick = backgroundTicking, true
	}
}

// Engine.await, up to the point at which it releases the lock
func (m *modelScene) await(s modelState, i int, to emit) {
	w := &s.g[i]
	switch {
	case w.ready || s.closed || w.contextEnded:
		m.finish(s, i, to)
	case s.leader != nobody || m.passive(i) ||
		s.count(func(w *modelWaiter) bool { return w.waking }) > 0 && !m.is("lead while others were woken"):
		m.park(s, i, to)
	default:
		w.at, s.leader, s.woke, s.bgLed = leading, int8(i), false, true
		for j := range s.g {
			s.g[j].othersLed = true
		}
		to(s)
	}
}

// finish is the end of Engine.await, and the caller's code.
func (m *modelScene) finish(s modelState, i int, to emit) {
	w := &s.g[i]
	if s.closed && !m.is("await does not broadcast") {
		s.notified = true
	}
	if w.ready {
		s.stored &^= 1 << i
	}
	*w = modelWaiter{at: computing, waits: w.waits, due: w.due}
	if s.closed || !w.ready && w.contextEnded {
		w.at = gone
	}
	if (s.asleep || m.progressNeeded(&s)) && !m.is("handOver without ensureProgress") {
		m.handOver(s, to)
	} else {
		to(s)
	}
}

// Engine.handOver
func (m *modelScene) handOver(s modelState, to emit) {
	if s.leader == nobody && !s.asleep && s.one && s.count(func(w *modelWaiter) bool { return w.at == resuming }) == 0 {
		found := false
		for i := range m.waits {
			if s.g[i].at == parked && !m.passive(i) {
				n := s
				n.g[i].at, n.g[i].standby = resuming, true
				m.ensureProgress(&n)
				to(n)
				found = true
			}
		}
		if found {
			return
		}
	}
	m.ensureProgress(&s)
	to(s)
}

// Engine.park
func (m *modelScene) park(s modelState, i int, to emit) {
	s.g[i].at = parked
	if !m.is("park without ensureProgress") {
		m.ensureProgress(&s)
	}
	to(s)
}

// Engine.lead: one poll and what follows it
func (m *modelScene) poll(s modelState, i int, to emit) {
	w := &s.g[i]
	some := m.progress(&s)
	m.checkWords(&s)
	if w.ready || s.closed || w.contextEnded {
		s.leader = nobody
		m.finish(s, i, to)
		return
	}
	if s.woke { // leadWokeOthers: Engine.yieldToWoken
		s.leader = nobody
		if s.one {
			w.at, w.standby = resuming, true
			m.ensureProgress(&s)
			to(s)
		} else {
			m.park(s, i, to)
		}
		return
	}
	to(s) // it breathes or yields
	if some {
		return
	}
	s.leader = nobody // leadIdle
	if s.asleep && !m.is("sleep beside another sleeper") {
		m.park(s, i, to)
		return
	}
	m.withStore(s, func(s modelState) { // Engine.sleep
		if !s.arm() || !m.is("sleep does not check the words") && m.checkWords(&s) {
			m.await(s, i, to)
			return
		}
		w := &s.g[i]
		w.at, w.othersLed, s.asleep, s.sleeper, s.bounded = sleeping, false, true, int8(i), s.request == stalled
		to(s)
	})
}

// Engine.sleep, when Wait has returned
func (m *modelScene) afterWait(s modelState, i int, to emit) {
	w := &s.g[i]
	s.asleep, s.sleeper = false, nobody
	if !w.othersLed || w.ready || s.closed || w.contextEnded || m.is("sleep does not let others lead") {
		m.await(s, i, to)
		return
	}
	if s.leader == nobody && !m.is("sleep does not poll before it parks") { // Engine.poll
		m.progress(&s)
		m.checkWords(&s)
	}
	if w.ready {
		m.finish(s, i, to)
	} else {
		m.park(s, i, to)
	}
}

// Engine.backgroundLoop, when it has the lock
func (m *modelScene) tick(s modelState, to emit) {
	switch {
	case s.closed:
		s.notified, s.bg = true, gone
		to(s)
		return
	case !m.progressNeeded(&s):
		s.idle++
	case s.asleep && !m.is("ticks while another sleeps"):
		s.idle++
	case s.leader != nobody || s.asleep || s.bgLed && !s.now ||
		s.count(func(w *modelWaiter) bool { return w.waking }) > 0:
		s.idle = 0
	default:
		s.background, s.bgWoke = backgroundLeading, false
		m.backgroundLead(s, to)
		return
	}
	m.ticked(s, to)
}

// the end of the loop body of Engine.backgroundLoop
func (m *modelScene) ticked(s modelState, to emit) {
	s.now, s.bgLed, s.bg, s.background = false, false, ticking, backgroundTicking
	if s.idle >= modelTicks {
		s.background = backgroundParked
	}
	to(s)
}

// Engine.backgroundLead, from the head of its loop
func (m *modelScene) backgroundLead(s modelState, to emit) {
	s.idle = 0
	if s.closed || s.leader != nobody || s.asleep || !m.progressNeeded(&s) {
		m.ticked(s, to)
		return
	}
	some := m.progress(&s)
	some = m.checkWords(&s) || some
	if s.bgWoke {
		m.ticked(s, to)
		return
	}
	s.bg = bgLeading
	to(s) // it breathes or yields
	if some {
		return
	}
	m.withStore(s, func(s modelState) {
		switch {
		case !s.arm():
		case !m.is("the background goroutine does not check the words") && m.checkWords(&s):
			m.ticked(s, to)
		default:
			s.bg, s.asleep, s.bounded = sleeping, true, s.request == stalled
			to(s)
		}
	})
}
