package mpi

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

// A model of ranks that agree: their councils are real, and what lies between them
// is delivered by the test, in any order.
//
//	call     a rank calls Agree for the next time
//	abandon  its context ends: it may call again
//	step     its call looks at what has come and who has ended
//	deliver  one of the messages on the way is filed, whether or not in order
//	die      a rank dies; what it has sent may still come
//	finalize a rank whose calls are over calls Finalize: it makes no more calls
//	tick     the watch of a rank asks for votes that are missing
//	notice   a rank hears of a death; of what the dead one has sent to it and has
//	         not come it gets no more than the first few messages
//
// A step that is late stands for a goroutine off its processor, and filing without
// a step for the watch or another call that does it.
type model struct {
	modelSize
	ranks []*modelRank
	wire  [][][]*ballot // by receiver, then sender
	past  *past
}

// modelSize counts what may still happen: calls of each rank; deaths, abandons and finals of
// all ranks together.
type modelSize struct{ calls, deaths, abandons, finals int }

// past is what has happened.
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
	*council
	open     []*modelCall
	called   uint32
	verdicts map[uint32]*ballot // that calls have returned
	knows    []bool             // whose end
	dead     bool
}

type modelCall struct {
	*party
	abandoned bool
	due       bool // a step may change something
}

// event is what happens next: kind, rank and what it is about.
type event struct {
	kind byte
	rank int
	peer int // sender; of notice: who died; of step: which call
	at   int // of deliver: which message; of notice: how many remain
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
	m := &model{modelSize: size, wire: make([][][]*ballot, n)}
	for i := range n {
		m.wire[i] = make([][]*ballot, n)
		m.ranks = append(m.ranks, &modelRank{
			council:  &council{cases: make(map[caseID]*hearing), settled: make(map[uint64]*ballot)},
			verdicts: make(map[uint32]*ballot), knows: make([]bool, n),
		})
	}
	m.connect()
	return m
}

func (m *model) connect() {
	for i, r := range m.ranks {
		r.stir = r.wake
		r.send = func(b *ballot, to int) {
			if m.ranks[to].dead || r.knows[to] {
				return
			}
			var sent ballot
			if err := sent.parse(b.append(nil)); err != nil {
				panic(err)
			}
			m.wire[to][i] = append(m.wire[to][i], &sent)
		}
	}
}

func (m *model) group() Group {
	g := Group{ranks: make([]int, len(m.ranks))}
	for i := range g.ranks {
		g.ranks[i] = i
	}
	return g
}

// clone copies what changes. Ballots do not once they are sent.
func (m *model) clone() *model {
	c := &model{modelSize: m.modelSize, wire: make([][][]*ballot, len(m.wire)), past: m.past}
	for to := range m.wire {
		c.wire[to] = make([][]*ballot, len(m.wire))
		for from, queue := range m.wire[to] {
			c.wire[to][from] = slices.Clone(queue)
		}
	}
	for _, r := range m.ranks {
		x := &modelRank{
			council: &council{cases: make(map[caseID]*hearing), settled: maps.Clone(r.settled), waiting: r.waiting, leaving: r.leaving},
			called:  r.called, verdicts: maps.Clone(r.verdicts), knows: slices.Clone(r.knows), dead: r.dead,
		}
		parties := make(map[*party]*party)
		for _, call := range r.open {
			p, own := *call.party, *call.own
			own.failed = slices.Clone(own.failed)
			p.council, p.own = x.council, &own
			parties[call.party] = &p
			x.open = append(x.open, &modelCall{party: &p, abandoned: call.abandoned, due: call.due})
		}
		for id, h := range r.cases {
			x.cases[id] = &hearing{votes: maps.Clone(h.votes), party: parties[h.party]}
		}
		c.ranks = append(c.ranks, x)
	}
	c.connect()
	return c
}

// key is the same for states that are the same.
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
	put := func(b *ballot) {
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
			k = append(k, byte(c.told))
			flag(c.due, c.abandoned, c.ask, c.asked)
			put(c.own)
		}
		for seq := range uint32(m.calls) + 1 { // other ranks may be ahead
			if h := r.cases[caseID{1, seq}]; h != nil {
				for w := range m.ranks {
					k = append(k, 0xfe)
					put(h.votes[w])
				}
			}
			k = append(k, 0xfd)
			put(r.verdicts[seq])
		}
		k = append(k, 0xfc)
		put(r.settled[1])
		for _, queue := range m.wire[i] {
			k = append(k, 0xfb)
			for _, b := range queue {
				put(b)
			}
		}
	}
	return string(k)
}

// events are all that can happen next.
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
			asks = asks || call.told == i && !call.ask && !call.asked && r.cases[caseID{1, call.own.seq}] != nil // nil: there is a later verdict
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
		own := &ballot{kind: vote, what: agreeCall, seq: r.called, id: 1, next: uint64(e.rank + 1), failed: newBitmap(n), known: newBitmap(n)}
		r.open = append(r.open, &modelCall{party: &party{
			council: r.council, s: &state{id: 1, rank: e.rank, group: m.group()}, own: own, told: -1,
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
		r.file(b, e.peer)
	case dieEvent:
		m.deaths--
		r.dead = true
		clear(m.wire[e.rank])
	case finalEvent:
		m.finals--
		r.leave()
	case tickEvent:
		r.remind()
		if !slices.ContainsFunc(r.open, func(c *modelCall) bool { return c.ask && c.due }) {
			return fmt.Errorf("the watch of rank %d asks for no votes", e.rank)
		}
	case noticeEvent:
		r.knows[e.peer] = true
		queue := &m.wire[e.rank][e.peer]
		*queue = (*queue)[:e.at]
		r.wake()
	}
	return nil
}

// ticks reports whether the watch may ask: a rank refuses, or in a small model may refuse
// later.
func (m *model) ticks() bool {
	return m.finals > 0 && m.calls*len(m.ranks) < 4 || slices.ContainsFunc(m.ranks, func(r *modelRank) bool { return r.leaving })
}

// wake ends what is in Attend.
func (r *modelRank) wake() {
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
	c.miss(slices.Clone(r.knows))
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

// learn looks at a verdict that a call returns: those that live have the same.
func (m *model) learn(rank int, v *ballot) error {
	for i, r := range m.ranks {
		if v.failed.has(i) && !r.dead {
			return fmt.Errorf("rank %d thinks that %d has failed", rank, i)
		}
		if v.final == 0 && !r.dead && r.called < v.seq {
			return fmt.Errorf("rank %d has a verdict of call %d, which %d has not made", rank, v.seq, i)
		}
		if int(v.final) == i+1 && (r.called >= v.seq || !r.leaving) {
			return fmt.Errorf("rank %d thinks that %d is in Finalize and has not voted", rank, i)
		}
		if w := r.verdicts[v.seq]; !r.dead && w != nil && (w.next != v.next || w.final != v.final || !bytes.Equal(w.failed, v.failed)) {
			return fmt.Errorf("rank %d has %v without %08b, and %d had %v without %08b", rank, v.next, v.failed, i, w.next, w.failed)
		}
	}
	m.ranks[rank].verdicts[v.seq] = v
	return nil
}

// rest looks at a state in which perhaps nothing happens any more but deaths.
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

// play does what a text says.
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

// TestAVerdictBehindAVote: a verdict lies in the queue when its reader hears that
// who sent it has failed, and votes for the next.
func TestAVerdictBehindAVote(t *testing.T) {
	m := newModel(3, modelSize{calls: 1, deaths: 1})
	m.play(t, `
		c 0
		c 1
		c 2
		d 0 1
		d 0 2
		s 0      // presides, and sends its verdict to both
		! 0
		n 1 0 0  // never gets it
		s 1      // presides, and asks 2
		d 2 1
		n 2 0 1
		s 2      // votes for 1
		d 2 0    // the verdict
		s 2      // is none any more
		d 1 2
		s 1
		d 2 1
		s 2
	`)
	require.NoError(t, m.rest(m.events()))
	require.Equal(t, bitmap{1}, m.ranks[2].verdicts[1].failed)
	require.NotNil(t, m.ranks[1].verdicts[1])
}

// TestEveryOrder tries every order of all that can happen.
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

// TestByChance follows some of the orders that more ranks have. In each some things
// come much later than others.
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
