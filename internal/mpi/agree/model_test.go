package agree

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// model is a simulation of ranks that agree. Each rank runs the code of this package on a Ranks of
// its own. The test itself delivers the messages between the ranks and decides when ranks die. The
// test runs these events, in any order:
//
//	call     a rank calls Agree for the next time
//	abandon  the context of a call ends: the call returns, and the rank may make another call
//	step     a call of Agree examines the messages that its rank has handled and the ranks that have ended
//	deliver  a rank handles one of the messages in transit, not necessarily the first
//	die      a rank dies; messages that it has sent may still arrive
//	finalize a rank whose calls have returned calls Finalize: it makes no more calls
//	tick     a rank calls Remind
//	notice   a rank learns that another rank has died; of the messages that the dead rank has sent to
//	         this rank and that are in transit, only a number of the first ones still arrive
//
// A step some time after the event that makes it due stands for a goroutine that waits for a
// processor. A delivery without a step stands for a message that Answer, or another call, handles.
type model struct {
	modelSize
	ranks []*modelRank
	wire  [][][]*message // messages in transit, by receiver, then by sender, in the order of sending
	past  *past
}

// modelSize limits the events: calls is the number of calls of each rank; deaths, abandons and
// finals are the numbers of deaths, abandoned calls and calls of Finalize that may still happen on
// all ranks together.
type modelSize struct{ calls, deaths, abandons, finals int }

// past is the list of the events that have happened, the last one first.
type past struct {
	before *past
	last   event
}

func (p *past) String() string {
	if p == nil {
		return ""
	}
	return fmt.Sprintf("%v%v\n", p.before, p.last)
}

type modelRank struct {
	*Ranks
	open   []*modelCall
	called uint32
	// The decisions that the calls of this rank have returned, by number of the agreement (seq).
	decisions map[uint32]*message
	knows     []bool // by rank: this rank knows that the rank has died
	dead      bool
}

type modelCall struct {
	*participant
	abandoned bool
	due       bool // something has happened since the last step of the call, so a step may have an effect
}

// event is something that can happen next; see model.
type event struct {
	kind byte
	rank int
	peer int // of deliver: the sender; of notice: the rank that died; of step and abandon: index of the call
	at   int // of deliver: index of the message in wire; of notice: number of messages that still arrive
}

func (e event) String() string { return fmt.Sprintf("%c %d %d %d", e.kind, e.rank, e.peer, e.at) }

const (
	callEvent    = 'c'
	abandonEvent = 'a'
	stepEvent    = 's'
	deliverEvent = 'd'
	dieEvent     = '!'
	finalEvent   = 'f'
	tickEvent    = 't'
	noticeEvent  = 'n'
)

func newModel(n int, size modelSize) *model {
	m := &model{modelSize: size, wire: make([][][]*message, n)}
	for i := range n {
		m.wire[i] = make([][]*message, n)
		m.ranks = append(m.ranks, &modelRank{
			Ranks:     &Ranks{instances: make(map[instanceID]*instance), decided: make(map[uint64]*message)},
			decisions: make(map[uint32]*message), knows: make([]bool, n),
		})
	}
	m.connect()
	return m
}

func (m *model) connect() {
	for i, r := range m.ranks {
		r.wake = r.wakeCalls
		r.send = func(b *message, to int) {
			if m.ranks[to].dead || r.knows[to] {
				return
			}
			var sent message
			if err := sent.parse(b.append(nil)); err != nil {
				panic(err)
			}
			m.wire[to][i] = append(m.wire[to][i], &sent)
		}
	}
}

func (m *model) group() []int {
	ranks := make([]int, len(m.ranks))
	for i := range ranks {
		ranks[i] = i
	}
	return ranks
}

// clone returns a copy of the model. Messages are shared, because they do not change after they are
// sent.
func (m *model) clone() *model {
	c := &model{modelSize: m.modelSize, wire: make([][][]*message, len(m.wire)), past: m.past}
	for to := range m.wire {
		c.wire[to] = make([][]*message, len(m.wire))
		for from, queue := range m.wire[to] {
			c.wire[to][from] = slices.Clone(queue)
		}
	}
	for _, r := range m.ranks {
		x := &modelRank{
			Ranks:  &Ranks{instances: make(map[instanceID]*instance), decided: maps.Clone(r.decided), waiting: r.waiting, leaving: r.leaving},
			called: r.called, decisions: maps.Clone(r.decisions), knows: slices.Clone(r.knows), dead: r.dead,
		}
		parties := make(map[*participant]*participant)
		for _, call := range r.open {
			p, own := *call.participant, *call.own
			own.failed = slices.Clone(own.failed)
			p.Ranks, p.own = x.Ranks, &own
			parties[call.participant] = &p
			x.open = append(x.open, &modelCall{participant: &p, abandoned: call.abandoned, due: call.due})
		}
		for id, h := range r.instances {
			x.instances[id] = &instance{votes: maps.Clone(h.votes), own: parties[h.own]}
		}
		c.ranks = append(c.ranks, x)
	}
	c.connect()
	return c
}

// key returns the same text for equal states.
func (m *model) key() string {
	k := append(make([]byte, 0, 256), byte(m.abandons), byte(m.finals))
	flag := func(bits ...bool) {
		for _, b := range bits {
			if b {
				k = append(k, 1)
			} else {
				k = append(k, 0)
			}
		}
	}
	put := func(b *message) {
		if b != nil {
			k = append(append(k, byte(b.kind), byte(b.seq), byte(b.next), byte(b.final)), b.failed...)
		}
	}
	for i, r := range m.ranks {
		k = append(k, 0xff, byte(r.called))
		flag(r.dead)
		if r.dead {
			continue
		}
		flag(r.leaving)
		flag(r.knows...)
		for _, c := range r.open {
			k = append(k, byte(c.votedFor))
			flag(c.due, c.abandoned, c.ask, c.asked)
			put(c.own)
		}
		for seq := range uint32(m.calls) + 1 { // also agreements that the rank has not started
			if h := r.instances[instanceID{1, seq}]; h != nil {
				for w := range m.ranks {
					k = append(k, 0xfe)
					put(h.votes[w])
				}
			}
			k = append(k, 0xfd)
			put(r.decisions[seq])
		}
		k = append(k, 0xfc)
		put(r.decided[1])
		for _, queue := range m.wire[i] {
			k = append(k, 0xfb)
			for _, b := range queue {
				put(b)
			}
		}
	}
	return string(k)
}

// events returns all events that can happen next.
func (m *model) events() (may []event) {
	for i, r := range m.ranks {
		if r.dead {
			continue
		}
		waits, asks := false, false
		for c, call := range r.open {
			if call.due {
				may = append(may, event{stepEvent, i, c, 0})
			}
			waits = waits || !call.abandoned
			// If the instance is nil, the agreement or a later one is decided.
			asks = asks || call.votedFor == i && !call.ask && !call.asked && r.instances[instanceID{1, call.own.seq}] != nil
			if m.abandons > 0 && !call.abandoned {
				may = append(may, event{abandonEvent, i, c, 0})
			}
		}
		if int(r.called) < m.calls && !waits && !r.leaving {
			may = append(may, event{callEvent, i, 0, 0})
		}
		if m.finals > 0 && !waits && !r.leaving {
			may = append(may, event{finalEvent, i, 0, 0})
		}
		if asks && m.ticks() {
			may = append(may, event{tickEvent, i, 0, 0})
		}
		for from, queue := range m.wire[i] {
			for at := range queue {
				may = append(may, event{deliverEvent, i, from, at})
			}
			if m.ranks[from].dead && !r.knows[from] {
				for keep := range len(queue) + 1 {
					may = append(may, event{noticeEvent, i, from, keep})
				}
			}
		}
		if m.deaths > 0 {
			may = append(may, event{dieEvent, i, 0, 0})
		}
	}
	return may
}

func (m *model) do(e event) error {
	m.past = &past{m.past, e}
	r := m.ranks[e.rank]
	switch e.kind {
	case callEvent:
		r.called++
		n := len(m.ranks)
		own := &message{kind: vote, call: Agree, seq: r.called, id: 1, next: uint64(e.rank + 1), failed: newBitmap(n), known: newBitmap(n)}
		r.open = append(r.open, &modelCall{participant: &participant{
			Ranks: r.Ranks, comm: &Comm{ID: 1, Rank: e.rank, Ranks: m.group()}, own: own, votedFor: -1,
		}})
		return m.step(e.rank, len(r.open)-1)
	case abandonEvent:
		m.abandons--
		r.open[e.peer].abandoned = true
	case stepEvent:
		return m.step(e.rank, e.peer)
	case deliverEvent:
		queue := &m.wire[e.rank][e.peer]
		b := (*queue)[e.at]
		*queue = slices.Delete(*queue, e.at, e.at+1)
		r.handle(b, e.peer)
	case dieEvent:
		m.deaths--
		r.dead = true
		clear(m.wire[e.rank])
	case finalEvent:
		m.finals--
		r.Leave()
	case tickEvent:
		r.Remind()
		if !slices.ContainsFunc(r.open, func(c *modelCall) bool { return c.ask && c.due }) {
			return fmt.Errorf("Remind of rank %d asks for no votes", e.rank)
		}
	case noticeEvent:
		r.knows[e.peer] = true
		queue := &m.wire[e.rank][e.peer]
		*queue = (*queue)[:e.at]
		r.wakeCalls()
	}
	return nil
}

// ticks reports whether the test may call Remind: a rank is in Finalize and refuses votes, or the
// model is so small that the test also tries Remind before a rank is in Finalize.
func (m *model) ticks() bool {
	return m.finals > 0 && m.calls*len(m.ranks) < 4 || slices.ContainsFunc(m.ranks, func(r *modelRank) bool { return r.leaving })
}

// wakeCalls does what the engine's WakeAttend does: each open call of the rank runs a step again.
func (r *modelRank) wakeCalls() {
	for _, c := range r.open {
		c.due = true
	}
}

func (m *model) step(rank, call int) error {
	r := m.ranks[rank]
	c := r.open[call]
	if c.absent != nil {
		r.waiting--
	}
	c.due = false
	c.setAbsent(slices.Clone(r.knows))
	v, err := c.step()
	if v == nil && err == nil {
		return nil
	}
	r.open = slices.Delete(r.open, call, call+1)
	if err != nil {
		if c.abandoned {
			return nil
		}
		return fmt.Errorf("rank %d, call %d: %w", rank, c.own.seq, err)
	}
	return m.learn(rank, v)
}

// learn records the decision v that a call of rank returns, and checks it against those of the live
// ranks, which must be the same.
func (m *model) learn(rank int, v *message) error {
	for i, r := range m.ranks {
		if v.failed.Has(i) && !r.dead {
			return fmt.Errorf("rank %d thinks that %d has failed", rank, i)
		}
		if v.final == 0 && !r.dead && r.called < v.seq {
			return fmt.Errorf("rank %d has a decision of call %d, which %d has not made", rank, v.seq, i)
		}
		if int(v.final) == i+1 && (r.called >= v.seq || !r.leaving) {
			return fmt.Errorf("rank %d thinks that %d is in Finalize and has not voted", rank, i)
		}
		if w := r.decisions[v.seq]; !r.dead && w != nil && (w.next != v.next || w.final != v.final || !bytes.Equal(w.failed, v.failed)) {
			return fmt.Errorf("rank %d has %v without %08b, and %d had %v without %08b", rank, v.next, v.failed, i, w.next, w.failed)
		}
	}
	m.ranks[rank].decisions[v.seq] = v
	return nil
}

// rest checks the state of the model if, of all events, only deaths, abandoned calls and calls of
// Finalize can happen next. events are the events that can happen.
func (m *model) rest(events []event) error {
	if slices.ContainsFunc(events, func(e event) bool { return e.kind != dieEvent && e.kind != abandonEvent && e.kind != finalEvent }) {
		return nil
	}
	for i, r := range m.ranks {
		if !r.dead && len(r.open) > 0 {
			return fmt.Errorf("rank %d waits for ever", i)
		}
	}
	return nil
}

// play runs a script with one event in each line: the letter of the event's kind, and then its
// rank, peer and at. Numbers at the end may be left out; they are 0.
func (m *model) play(t *testing.T, script string) {
	t.Helper()
	for line := range strings.Lines(script) {
		var e event
		line, _, _ = strings.Cut(line, "//")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		n, _ := fmt.Sscanf(line, "%c %d %d %d", &e.kind, &e.rank, &e.peer, &e.at)
		require.Greater(t, n, 1, line)
		require.Contains(t, m.events(), e, line)
		require.NoError(t, m.do(e), line)
	}
}

// TestDecisionBehindVote: a decision of rank 0 is in transit to rank 2. Before it arrives, rank 2
// learns that rank 0 has died, and votes for rank 1. Then rank 2 must not accept the decision of
// rank 0.
func TestDecisionBehindVote(t *testing.T) {
	m := newModel(3, modelSize{calls: 1, deaths: 1})
	m.play(t, `
		c 0
		c 1
		c 2
		d 0 1
		d 0 2
		s 0      // rank 0 is the coordinator, and sends its decision to ranks 1 and 2
		! 0
		n 1 0 0  // rank 1 learns of the death, and never gets the decision
		s 1      // rank 1 is the coordinator, and asks rank 2
		d 2 1
		n 2 0 1
		s 2      // rank 2 votes for rank 1
		d 2 0    // the decision of rank 0 arrives
		s 2      // rank 2 does not accept it
		d 1 2
		s 1
		d 2 1
		s 2
	`)
	require.NoError(t, m.rest(m.events()))
	require.Equal(t, Bitmap{1}, m.ranks[2].decisions[1].failed)
	require.NotNil(t, m.ranks[1].decisions[1])
}

// TestEveryOrder runs small models through all orders of their events. In each order, all live
// ranks must get the same decisions, and none may wait for ever.
func TestEveryOrder(t *testing.T) {
	for _, x := range []struct {
		ranks int
		modelSize
	}{
		{2, modelSize{3, 1, 2, 0}}, {3, modelSize{2, 2, 0, 0}}, {3, modelSize{2, 1, 1, 0}}, {4, modelSize{1, 2, 0, 0}},
		{2, modelSize{3, 1, 1, 1}}, {3, modelSize{1, 1, 0, 2}}, {3, modelSize{1, 2, 0, 1}}, {4, modelSize{1, 0, 0, 1}}, {3, modelSize{1, 1, 1, 1}}, {3, modelSize{2, 1, 0, 1}},
	} {
		t.Run(fmt.Sprint(x), func(t *testing.T) {
			first := newModel(x.ranks, x.modelSize)
			seen := map[string]bool{}
			for open := []*model{first}; len(open) > 0; {
				m := open[len(open)-1]
				open = open[:len(open)-1]
				events := m.events()
				require.NoError(t, m.rest(events), m.past)
				for _, e := range events {
					c := m.clone()
					require.NoError(t, c.do(e), c.past)
					if k := c.key(); !seen[k] {
						seen[k] = true
						open = append(open, c)
					}
				}
			}
			t.Logf("%v %d states", x, len(seen))
		})
	}
}

// TestByChance runs models with more ranks through random orders of events. In each run, some
// events are much less likely than others, and so come late.
func TestByChance(t *testing.T) {
	for seed := range uint64(5000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		n := 3 + rng.IntN(3)
		m := newModel(n, modelSize{1 + rng.IntN(2), rng.IntN(n), rng.IntN(3), rng.IntN(n)})
		late := map[event]int{}
		for events := m.events(); len(events) > 0; events = m.events() {
			require.NoError(t, m.rest(events), m.past)
			var next event
			least := math.MaxFloat64
			for _, e := range events {
				about := event{kind: e.kind, rank: e.rank, peer: e.peer}
				if _, ok := late[about]; !ok {
					late[about] = rng.IntN(4)
					if e.kind == dieEvent || e.kind == abandonEvent || e.kind == finalEvent {
						late[about] += 2
					}
				}
				if at := rng.ExpFloat64() * float64(int(1)<<(3*late[about])); at < least {
					next, least = e, at
				}
			}
			require.NoError(t, m.do(next), m.past)
		}
		require.NoError(t, m.rest(nil), m.past)
	}
}
