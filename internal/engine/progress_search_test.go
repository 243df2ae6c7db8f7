package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// This file searches the states of the model in progress_model_test.go. It has the possible
// transitions, the invariants, and the faults of the rule that the search must detect.

// system calls its argument to for each transition that the rank makes by itself from the state s,
// without the environment. name describes the transition.
func (m *modelScene) system(s modelState, to func(name string, s modelState)) {
	step := func(name string, i int) emit {
		return func(n modelState) { to(fmt.Sprint(name, " ", i), n) }
	}
	mayReturn := !s.armed || s.signaled || s.bounded
	for i := range m.waits {
		n, w := s, &s.g[i]
		switch {
		case w.at == leading:
			m.poll(n, i, step("lead", i))
		case w.at == resuming:
			n.g[i].waking, n.g[i].standby = false, false // as Engine.resumed does
			m.await(n, i, step("resumed", i))
		case w.at == parked && w.contextEnded:
			m.await(n, i, step("park: context", i))
		case w.at == sleeping && w.contextEnded && !s.signaled:
			n.signal()
			step("sleep: AfterFunc", i)(n)
		case w.at == sleeping && mayReturn:
			n.g[i].at, n.signaled, n.armed = returned, false, false
			step("Wait", i)(n)
		case w.at == returned:
			m.afterWait(n, i, step("sleep", i))
		}
		if n = s; s.notify>>i&1 != 0 {
			n.notify &^= 1 << i
			n.event()
			step("Notify", i)(n)
		}
	}
	background := step("background", 0)
	n := s
	switch {
	case s.bg == ticking && (s.kick || s.idle < modelTicks):
		if s.idle >= modelTicks {
			n.idle = 0
		}
		kicked := s.kick && !m.is("a kick waits for a tick")
		if n.kick = false; s.bgLed && n.idle < modelTicks-1 && !kicked {
			n.bgLed = false
			n.idle++
		} else {
			n.bg = tickDue
		}
		background(n)
	case s.bg == tickDue:
		m.tick(n, background)
	case s.bg == bgLeading:
		m.backgroundLead(n, background)
	case s.bg == sleeping && mayReturn:
		n.bg, n.signaled, n.armed = returned, false, false
		background(n)
	case s.bg == returned:
		n.asleep = false
		m.backgroundLead(n, background)
	}
	if s.closer && s.notified {
		m.quiet(s, step("close", 0))
	}
}

// quiet is the model of the loop in Engine.close, which waits until no goroutine leads, sleeps or
// is about to take the lock.
func (m *modelScene) quiet(s modelState, to emit) {
	s.notified = false
	if s.closer = s.leader != nobody || s.asleep || s.count(func(w *modelWaiter) bool { return w.at == resuming }) > 0; s.closer {
		s.signal()
	}
	to(s)
}

// environment calls its argument to for each transition of the environment from the state s: the
// events that the rank does not cause itself.
func (m *modelScene) environment(s modelState, to func(name string, s modelState)) {
	for i, total := range m.waits {
		bit := uint8(1) << i
		step := func(name string) emit {
			return func(n modelState) { to(fmt.Sprint(name, " ", i), n) }
		}
		n, w := s, &s.g[i]
		if w.at == computing && w.waits > 0 && !s.closed { // the program calls Request.Wait
			n.g[i].waits--
			if (s.mail|s.stored)&bit != 0 {
				n.mail &^= bit
				n.stored &^= bit
				step("wait")(n)
			} else {
				m.await(n, i, step("wait"))
			}
		}
		// The program calls Test or Iprobe, which calls Engine.poll.
		if n = s; w.at == computing && s.leader == nobody && !s.closed {
			m.progress(&n)
			m.checkWords(&n)
			if s.asleep {
				m.ensureProgress(&n)
			}
			step("test")(n)
		}
		if n = s; w.at == computing && s.request == noRequest && m.request != noRequest && !s.closed {
			n.request = m.request
			if n.asleep { // as Engine.wakeSleeper does
				n.signal()
			}
			// The following statement models Engine.ensureRequestProgress.
			if m.urgent && n.leader == nobody && !n.asleep && n.background != backgroundLeading {
				n.now, n.background, n.kick = true, backgroundTicking, true
			} else if n.background == backgroundParked {
				m.ensureProgress(&n)
			}
			step("post")(n)
		}
		free := (s.mail|s.stored|s.queue)&bit == 0 && (!s.waiting(i) || !w.ready)
		if n = s; w.due > 0 && free && total > 0 {
			n.g[i].due--
			switch m.kinds[i] {
			case forMessage:
				n.queue |= bit
				n.event()
			case forWord:
				n.stored |= bit
				n.notify |= bit
			case forTask: // the task ends, as in Engine.complete
				if s.waiting(i) {
					m.wake(&n, i)
				} else {
					n.mail |= bit
				}
			}
			step("send")(n)
		}
		if n = s; m.contexts && i == 0 && s.waiting(i) && !w.contextEnded {
			n.g[i].contextEnded = true
			step("context ends")(n)
		}
	}
	step := func(name string) emit { return func(n modelState) { to(name, n) } }
	n := s
	if (s.request == posted || s.request == absent) && s.queue&requestMail == 0 {
		n.queue |= requestMail
		n.event()
		step("event of the request")(n)
	}
	if n = s; s.request == stalled && !s.room {
		n.room = true
		step("room")(n)
	}
	n = s
	n.one = !s.one // the background goroutine begins or ends to hold a processor (holdProcessor)
	step("hold")(n)
	if n = s; m.closes && !s.closed {
		n.closed, n.kick = true, true
		for i := range m.waits {
			if n.g[i].at == parked {
				n.g[i].at = resuming
			}
		}
		m.quiet(n, step("close"))
	}
}

// check returns an error if one of the invariants in wait.go does not hold in the state s.
func (m *modelScene) check(s *modelState) error {
	at := func(p ...place) int {
		return s.count(func(w *modelWaiter) bool { return slices.Contains(p, w.at) })
	}
	asleep := at(sleeping, returned)
	if s.bg == sleeping || s.bg == returned {
		asleep++
	}
	leads := 0
	if s.leader != nobody {
		leads = 1
	}
	switch {
	case at(leading) != leads || leads > 0 && s.g[s.leader].at != leading:
		return errors.New("Engine.leader is not the goroutine that leads")
	case asleep > 1 || s.asleep != (asleep == 1) || s.sleeper != nobody && s.g[s.sleeper].at != sleeping && s.g[s.sleeper].at != returned:
		return errors.New("Engine.asleep does not say that one goroutine is in Wait")
	case s.count(func(w *modelWaiter) bool { return w.at == parked && w.ready }) > 0:
		return errors.New("a goroutine is parked and ready")
	case leads+asleep == 0 && !s.closed && m.progressNeeded(s) && s.background == backgroundParked:
		return errors.New("no goroutine leads or sleeps, and the background goroutine is parked")
	case s.asleep && leads == 0 && s.armed && !s.signaled && at(returned) == 0 && s.bg != returned:
		if s.queue != 0 || s.sleeper != nobody && s.g[s.sleeper].ready || s.request == stalled && !s.bounded {
			return errors.New("no event ends the sleep")
		}
		for i := range m.waits {
			if m.kinds[i] == forWord && s.waiting(i) && !s.g[i].ready && s.stored&^s.notify>>i&1 != 0 {
				return errors.New("a word was stored, and no event ends the sleep")
			}
		}
	}
	return nil
}

// settled reports whether the rank has handled every message, word and event that has arrived.
func (m *modelScene) settled(s *modelState) bool {
	for i := range m.waits {
		if s.waiting(i) && (s.g[i].ready || s.g[i].contextEnded || s.closed || (s.queue|s.stored)>>i&1 != 0) {
			return false
		}
	}
	return !s.closer && (s.request == noRequest || s.request == done || s.closed ||
		s.queue&requestMail == 0 && (s.request != stalled || !s.room))
}

// ticksForEver reports whether all goroutines of the program sleep, are parked or compute, and the
// background goroutine continues to tick although it has nothing to do.
func (m *modelScene) ticksForEver(s modelState) bool {
	for range 4 * modelTicks {
		next, others := s, s.closer || s.bg != ticking && s.bg != tickDue || s.idle >= modelTicks && !s.kick
		if others {
			return false
		}
		m.system(s, func(name string, n modelState) {
			next = n
			others = others || !strings.HasPrefix(name, "background")
		})
		if others || next.bg != ticking && next.bg != tickDue {
			return false
		}
		s = next
	}
	return true
}

// normalize clears the fields that a transition sets before it reads them again. So states that
// differ only in such fields become equal, and the search visits one of them.
func (s *modelState) normalize() {
	if s.leader == nobody {
		s.woke = false
	}
	if !s.asleep {
		s.armed, s.bounded = false, false
	}
	for i := range s.g {
		s.g[i].othersLed = s.g[i].othersLed && (s.g[i].at == sleeping || s.g[i].at == returned)
	}
	if s.background != backgroundLeading {
		s.bgWoke = false
	}
}

// search visits every state that can be reached. It returns their number, and an error for the
// first violation, with the transitions that lead to it.
func (m *modelScene) search() (states int, err error) {
	type arrival struct {
		from int32
		name string
	}
	first := m.first()
	all, came, number := []modelState{first}, []arrival{{nobody, ""}}, map[modelState]int32{first: 0}
	var moves [][2]int32 // transitions of the rank itself, as the numbers of two states: after and before
	way := func(i int32, what error) error {
		var names []string
		for j := i; came[j].from != nobody; j = came[j].from {
			names = append([]string{came[j].name}, names...)
		}
		return fmt.Errorf("%w: %s\n%+v", what, strings.Join(names, ", "), all[i])
	}
	for i := 0; i < len(all); i++ {
		s := all[i]
		if err := m.check(&s); err != nil {
			return len(all), way(int32(i), err)
		}
		if m.ticksForEver(s) {
			return len(all), way(int32(i), errors.New("the background goroutine ticks for ever"))
		}
		visit := func(name string, n modelState) int32 {
			n.normalize()
			k, seen := number[n]
			if !seen {
				k = int32(len(all))
				number[n] = k
				all, came = append(all, n), append(came, arrival{int32(i), name})
			}
			return k
		}
		m.system(s, func(name string, n modelState) { moves = append(moves, [2]int32{visit(name, n), int32(i)}) })
		m.environment(s, func(name string, n modelState) { visit(name, n) })
	}
	// From which states does the rank alone reach a settled state? Follow its transitions backward
	// from the settled states.
	slices.SortFunc(moves, func(a, b [2]int32) int { return int(a[0] - b[0]) })
	starts := make([]int32, len(all)+1)
	for _, x := range moves {
		starts[x[0]+1]++
	}
	ends := make([]bool, len(all))
	var open []int32
	for i := range all {
		starts[i+1] += starts[i]
		if m.settled(&all[i]) {
			ends[i] = true
			open = append(open, int32(i))
		}
	}
	for len(open) > 0 {
		i := open[len(open)-1]
		open = open[:len(open)-1]
		for _, x := range moves[starts[i]:starts[i+1]] {
			if !ends[x[1]] {
				ends[x[1]] = true
				open = append(open, x[1])
			}
		}
	}
	if i := slices.Index(ends, false); i >= 0 {
		return len(all), way(int32(i), errors.New("an event is never handled"))
	}
	return len(all), nil
}

// scenes lists the scenes that are searched, those with few states first.
var scenes = []modelScene{
	{name: "words", waits: []int8{2, 1}, kinds: []int{forWord, forMessage}},
	{name: "messages", waits: []int8{2, 2}, kinds: []int{forMessage, forMessage}},
	{name: "close, a context", waits: []int8{1, 1}, kinds: []int{forMessage, forWord}, contexts: true, closes: true},
	{name: "a task", waits: []int8{1, 1, 1}, kinds: []int{forTask, forWord, forMessage}},
	{name: "an urgent receive", waits: []int8{1, 1}, kinds: []int{forMessage, forWord}, request: posted, urgent: true},
	{name: "a send without room", waits: []int8{1, 1}, kinds: []int{forMessage, forMessage}, request: absent},
	{name: "a receive", waits: []int8{2, 1}, kinds: []int{forMessage, forMessage}, request: posted},
	{name: "three messages", waits: []int8{1, 1, 1}, kinds: []int{forMessage, forMessage, forMessage}},
	{name: "two words", waits: []int8{1, 1, 1}, kinds: []int{forWord, forWord, forMessage}},
	{name: "a context", waits: []int8{1, 1, 1}, kinds: []int{forMessage, forWord, forMessage}, contexts: true},
	{name: "close", waits: []int8{1, 1}, kinds: []int{forMessage, forWord}, request: posted, closes: true},
	{name: "close, three", waits: []int8{1, 1, 1}, kinds: []int{forMessage, forTask, forMessage}, closes: true},
}

// outcome is the result of a search: the number of states, and the error.
type outcome struct {
	states int
	err    error
}

// searched holds the outcomes of searches in this process, by the scene's name and the fault. A
// search always has the same outcome, so with -cpu or -count the tests need not repeat it.
var searched = map[[2]string]outcome{}

func (m *modelScene) searchOnce() (states int, err error) {
	k := [2]string{m.name, m.fault}
	x, known := searched[k]
	if !known {
		x.states, x.err = m.search()
		searched[k] = x
	}
	return x.states, x.err
}

// TestProgressModel: in no order of events is an invariant violated, or a message, a word or a
// request never handled.
func TestProgressModel(t *testing.T) {
	for _, m := range scenes {
		t.Run(m.name, func(t *testing.T) {
			states, err := m.searchOnce()
			t.Log(states, "states")
			require.NoError(t, err)
		})
	}
}

// TestProgressModelFindsFaults: if the model leaves out a step of the rule or does it wrongly, the
// search reports an error that contains want. If want is empty, the fault only costs time, because
// the next tick repairs it, and the search reports nothing.
func TestProgressModelFindsFaults(t *testing.T) {
	for _, x := range []struct{ fault, want string }{
		{"handOver without ensureProgress", "the background goroutine is parked"},
		{"park without ensureProgress", "the background goroutine is parked"},
		{"progressNeeded ignores followers", "never handled"},
		{"sleep does not check the words", "no event ends the sleep"},
		{"the background goroutine does not check the words", "no event ends the sleep"},
		{"ensureProgress does not check the words", "no event ends the sleep"},
		{"ensureProgress does not arm", "no event ends the sleep"},
		{"ensureProgress leaves a sleep without a limit", "no event ends the sleep"},
		{"wake does not signal the sleeper", "no event ends the sleep"},
		{"sleep beside another sleeper", "one goroutine is in Wait"},
		{"ticks while another sleeps", "ticks for ever"},
		{"await does not broadcast", "never handled"},
		{"lead while others were woken", ""},
		{"sleep does not poll before it parks", ""},
		{"a kick waits for a tick", ""},
	} {
		t.Run(x.fault, func(t *testing.T) {
			few := scenes
			if x.want == "" {
				few = scenes[:5]
			}
			for _, m := range few {
				m.fault = x.fault
				states, err := m.searchOnce()
				if err != nil {
					t.Log(m.name, states, "states:", err)
					require.NotEmpty(t, x.want)
					require.ErrorContains(t, err, x.want)
					return
				}
			}
			require.Empty(t, x.want, "the search finds nothing")
		})
	}
}
