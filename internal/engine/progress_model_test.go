package engine

import "math/bits"

// A model of progress
//
// The model describes a rank with two or three goroutines of the program, which wait in the engine
// by the rule in wait.go, and the background goroutine (background.go). A state of the model is a
// [modelState]. A transition is what a goroutine does under the lock between two points at which it
// releases the lock. The comment before a method, or at a step of it, names the function of the
// engine that the method or step models. The model measures no time: a leader may become idle after
// any poll that found nothing, a yield may take any time, and a tick may occur at any time.
//
//	goroutine    computing ► leading ► sleeping ► returned ► leading ...
//	                 │           └► parked ► resuming ► leading ...
//	                 └► gone
//	background   parked ► ticking ► (tickDue) ► bgLeading ► sleeping ► returned ► bgLeading
//
// The environment is what happens outside of the rank's waits. For example, it starts waits, posts
// a request that no goroutine waits for, sends messages, stores words (and calls Notify in a
// separate step, as another rank does), makes room for a request that waits for room, ends
// contexts, and closes the engine.
//
// The search in progress_search_test.go visits every state that transitions can reach. In each
// state it checks the invariants of wait.go. At the end it checks that the environment may stop in
// any state: from each state, transitions of the rank alone can lead to a state in which every
// event was handled.

// place says where a goroutine of the model is: in which part of the engine, or outside of it.
type place uint8

const (
	computing place = iota // in the program, outside of the engine
	leading                // in Engine.lead, between two polls
	parked                 // in Engine.park, blocked
	resuming               // runnable, before it takes the lock: unparked, or in yieldToWoken
	sleeping               // asleep on the transports, in Wait of the queue
	returned               // Wait has returned, and the goroutine has not taken the lock yet
	gone                   // has ended
	ticking                // background goroutine: waits for a tick, or to be woken by Engine.kick
	tickDue                // background goroutine: about to take the lock
	bgLeading              // background goroutine: in backgroundLead, between two polls
)

// The kinds of event that a goroutine of the model may wait for.
const (
	forMessage = iota // a message, which causes a completion
	forWord           // a word in shared memory, whose store causes no completion
	forTask           // the end of a task (Engine.Go) of another goroutine; the waiter is passive
)

// The states of the request that no goroutine waits for. A scene has at most one such request.
const (
	noRequest = iota // it was not posted
	posted           // a receive, which a message ends
	absent           // a send, stalled until the peer starts, which causes an event
	stalled          // a send, stalled until the endpoint has room, which causes no event
	done             // it has ended
)

const (
	modelTicks  = 3    // replaces ticksToPark, so that there are fewer states
	requestMail = 0x80 // bit in modelState.queue for the event that the request waits for
	nobody      = -1   // value of modelState.leader and sleeper if no goroutine of the program leads or sleeps
)

// modelScene describes one search: the goroutines, and the events that may happen.
type modelScene struct {
	name     string
	waits    []int8 // by goroutine: number of times that it waits
	kinds    []int  // by goroutine: kind of event that it waits for (forMessage, forWord or forTask)
	request  uint8  // state of the request after it was posted: posted or absent; noRequest: there is no request
	urgent   bool   // the request is posted with the argument urgent of ensureRequestProgress
	contexts bool   // the context.Context of goroutine 0 may end
	closes   bool   // the engine may be closed
	fault    string // name of a step that the model leaves out or does wrongly, to see that the search detects it; "": none
}

// modelWaiter is the state of one goroutine of the program and of its waiter. ready, standby and
// waking are as in waiter.
type modelWaiter struct {
	at place
	// waits: number of waits that it has yet to begin; due: number of its events that have yet to
	// happen.
	waits, due int8
	// contextEnded: the context.Context of its wait has ended; othersLed: another goroutine has led
	// since this one fell asleep.
	ready, standby, waking, contextEnded, othersLed bool
}

// modelState is the state of the engine, its goroutines and its transport. It is comparable, so the
// search recognizes a state that it has visited.
type modelState struct {
	g    [3]modelWaiter
	mail uint8 // bit by goroutine: its message was read, or its task has ended, before it waited
	// Bit by goroutine. stored: the word that the goroutine waits for is stored. notify: the writer
	// of the word has not called Notify yet.
	stored, notify uint8
	queue          uint8 // bit by goroutine: the completion of its message was not read yet
	// armed: an event of the queue ends Wait. signaled: Signal was called since the last Wait.
	armed, signaled bool
	// asleep: Engine.asleep. bounded: the current Wait has a time limit.
	asleep, bounded bool
	leader, sleeper int8 // Engine.leader and Engine.sleeper, as indices in g, or nobody
	// woke: Engine.wakes has changed since the leader began to lead. bgWoke: it has changed since
	// backgroundLead began. bgLed: Engine.leads has changed since the last tick.
	woke, bgWoke, bgLed bool
	bg                  place           // place of the background goroutine
	background          backgroundState // Engine.background
	idle                int8            // number of ticks without work: the variable idle of backgroundLoop
	// kick: Engine.kick holds a value. now: Engine.backgroundNow. room: the endpoint has room. one:
	// Engine.oneProcessor returns true.
	kick, now, room, one bool
	request              uint8 // state of the request that no goroutine waits for
	// closed: Engine.closed. closer: Close waits for Engine.quiet. notified: Engine.quiet was
	// signaled, and Close has not run since.
	closed, closer, notified bool
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

// emit is called with each state that a transition may lead to.
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

// progressNeeded is the model of Engine.progressNeeded: whether a goroutine has to poll the
// transport.
func (m *modelScene) progressNeeded(s *modelState) bool {
	for i := range m.waits {
		if s.g[i].at == parked && !m.passive(i) && !m.is("progressNeeded ignores followers") {
			return true
		}
	}
	return s.request != noRequest && s.request != done
}

// signal is the model of Engine.signal: it ends the current Wait, or the next one.
func (s *modelState) signal() { s.signaled, s.armed = true, false }

// event is what happens when a completion arrives or a peer calls Notify: if the queue is armed,
// Wait ends.
func (s *modelState) event() { s.armed = false }

// arm is the model of Engine.arm: it prepares the queue for a Wait, and returns false if the queue
// has unread completions.
func (s *modelState) arm() bool {
	if s.queue != 0 {
		return false
	}
	s.armed = true
	return true
}

// wake is the model of Engine.wake: the event of the goroutine i has happened. If the goroutine is
// parked, it becomes runnable.
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

// progress is the model of Engine.progress: it reads the queue and handles a completion. In the
// model a Read returns one completion. It also clears the event that reported the other
// completions, as a read from a socket does.
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
	if s.request == stalled && s.room { // as Engine.retry does
		s.request, some = done, true
	}
	return some
}

// checkWords is the model of Engine.checkWords: it wakes the goroutines whose words were stored.
func (m *modelScene) checkWords(s *modelState) (some bool) {
	for i := range m.waits {
		if m.kinds[i] == forWord && s.waiting(i) && (s.g[i].ready || s.stored>>i&1 != 0) {
			some = true
			m.wake(s, i)
		}
	}
	return some
}

// withStore calls its argument to with the state s, and with each state that follows from s if
// another rank stores a word now and calls Notify. The other rank needs no lock, so this may happen
// while a goroutine of this rank holds it.
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

// ensureProgress is the model of Engine.ensureProgress: it makes sure that the sleeping goroutine
// or the background goroutine will handle the remaining events.
func (m *modelScene) ensureProgress(s *modelState) {
	switch {
	case s.leader != nobody:
	case s.asleep:
		if m.is("ensureProgress does not arm") {
			return
		}
		if !s.arm() || s.request == stalled && !s.bounded && !m.is("ensureProgress leaves a sleep without a limit") {
			s.signal() // the queue has unread completions, or Engine.oversleeps returns true
		}
		if !m.is("ensureProgress does not check the words") {
			m.checkWords(s)
		}
	case s.background == backgroundParked && m.progressNeeded(s):
		s.background, s.kick = backgroundTicking, true
	}
}

// await is the model of Engine.await, for the goroutine i, up to the point at which it releases the
// lock: the goroutine returns, parks or begins to lead.
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

// finish is the model of the end of Engine.await, and of the code that has called await: the
// goroutine i returns to the program.
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

// handOver is the model of Engine.handOver: when a goroutine returns to the program, it may put a
// follower on standby.
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

// park is the model of Engine.park, for the goroutine i, up to the point at which it releases the
// lock.
func (m *modelScene) park(s modelState, i int, to emit) {
	s.g[i].at = parked
	if !m.is("park without ensureProgress") {
		m.ensureProgress(&s)
	}
	to(s)
}

// poll is the model of one poll in Engine.lead, by the goroutine i, and of what the leader does
// after it.
func (m *modelScene) poll(s modelState, i int, to emit) {
	w := &s.g[i]
	some := m.progress(&s)
	m.checkWords(&s)
	if w.ready || s.closed || w.contextEnded {
		s.leader = nobody
		m.finish(s, i, to)
		return
	}
	if s.woke { // Engine.lead returns leadWokeOthers, and Engine.await calls yieldToWoken
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
	to(s) // the leader releases the lock or yields
	if some {
		return
	}
	s.leader = nobody // the wait policy ends the polls: Engine.lead returns leadIdle
	if s.asleep && !m.is("sleep beside another sleeper") {
		m.park(s, i, to)
		return
	}
	m.withStore(s, func(s modelState) { // Engine.await calls Engine.sleep
		if !s.arm() || !m.is("sleep does not check the words") && m.checkWords(&s) {
			m.await(s, i, to)
			return
		}
		w := &s.g[i]
		w.at, w.othersLed, s.asleep, s.sleeper, s.bounded = sleeping, false, true, int8(i), s.request == stalled
		to(s)
	})
}

// afterWait is the model of Engine.sleep after Wait has returned: the goroutine i leads, returns or
// parks.
func (m *modelScene) afterWait(s modelState, i int, to emit) {
	w := &s.g[i]
	s.asleep, s.sleeper = false, nobody
	if !w.othersLed || w.ready || s.closed || w.contextEnded || m.is("sleep does not let others lead") {
		m.await(s, i, to)
		return
	}
	if s.leader == nobody && !m.is("sleep does not poll before it parks") { // as Engine.poll does
		m.progress(&s)
		m.checkWords(&s)
	}
	if w.ready {
		m.finish(s, i, to)
	} else {
		m.park(s, i, to)
	}
}

// tick is the model of a check of Engine.backgroundLoop, after it has taken the lock.
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

// ticked is the model of the end of the loop's body in Engine.backgroundLoop: the background
// goroutine waits for the next tick, or parks.
func (m *modelScene) ticked(s modelState, to emit) {
	s.now, s.bgLed, s.bg, s.background = false, false, ticking, backgroundTicking
	if s.idle >= modelTicks {
		s.background = backgroundParked
	}
	to(s)
}

// backgroundLead is the model of one round of the loop in Engine.backgroundLead, up to the point at
// which it releases the lock.
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
	to(s) // the leader releases the lock or yields
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
