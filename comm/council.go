package comm

import (
	"context"
	"fmt"
	"sync"

	"github.com/weft-hpc/weft/internal/engine"
)

// A council agrees on what has become of a communicator's ranks, while more of
// them may fail, and whether or not it is revoked.
//
//	every rank ── vote ──► the lowest rank that it knows to live: it presides
//	                          │ has a vote of each rank, or knows that it has ended
//	every rank ◄── verdict ───┘
//
// Where the one who presides fails, the ranks vote for the next, and that one
// sends its vote to them: who has heard the verdict already answers any vote with
// it. So, as nobody who lives is passed over, and as who is taken for dead by one
// is refused by it from then on:
//
//   - if any rank that goes on has a verdict, each that comes after is the same;
//   - a rank that the others have given up is in the verdict, and fails if it lives.
//
// A rank votes in one agreement of a communicator when it has the verdict of the
// one before. So the last verdict is all that a rank has to keep. Who has it and
// is asked while it computes answers at the next tick of the watch.
//
// Votes travel in a space of the whole world that nobody else uses and nobody
// revokes.
type council struct {
	job  *job
	talk *engine.Context

	mu      sync.Mutex
	cases   map[caseID]map[int]*ballot // guarded by mu; votes that came here, by world rank
	settled map[uint64]*ballot         // guarded by mu; the last verdict, by communicator
	waiting int                        // guarded by mu; calls in Attend
}

type caseID struct {
	id  uint64
	seq uint32
}

// councilID is the id of the councils' space.
const councilID = finalID - 1

func (j *job) openCouncil(all Group) {
	j.council = council{
		job: j, talk: j.eng.OpenContext(2*councilID, all.ranks),
		cases: make(map[caseID]map[int]*ballot), settled: make(map[uint64]*ballot),
	}
}

// agree blocks until the ranks of s that live have all called it, and returns the
// verdict. A call that ctx ends votes all the same.
func (k *council) agree(ctx context.Context, s *state, what byte, flag uint64) (*ballot, error) {
	n := len(s.group.ranks)
	own := &ballot{
		kind: vote, what: what, seq: s.agreements.Add(1), id: s.id, flag: flag, next: k.job.newID(),
		failed: newBitmap(n), known: newBitmap(n),
	}
	for _, r := range s.p2p.Acknowledged() {
		own.known.set(r)
	}
	p := &party{council: k, s: s, own: own, told: -1}
	v, err := p.wait(ctx)
	if isContext(err) {
		go func() { _, _ = p.wait(context.Background()) }() // for the others; ends with the verdict, or the engine
	}
	switch {
	case err != nil:
		return nil, err
	case v.what != what:
		return nil, fmt.Errorf("%w: ranks called different ones of Agree and Shrink", ErrMismatch)
	case !v.fits(n):
		return nil, errBallot
	}
	if what != finalizeCall {
		err = s.lose(v.failed)
	}
	return v, err
}

// lose gives up whom the others have.
func (s *state) lose(failed bitmap) error {
	gone := s.job.eng.Absent(s.group.ranks)
	var more []int
	for _, r := range failed.ranks(len(gone)) {
		if !gone[r] {
			more = append(more, s.group.ranks[r])
		}
	}
	s.job.eng.Lose("the other ranks have given it up", more...)
	if failed.has(s.rank) {
		return fmt.Errorf("%w: the other ranks have given this one up", ErrProcFailed)
	}
	return nil
}

// party is a rank's part in an agreement.
type party struct {
	*council
	s    *state
	own  *ballot
	told int // who presided when the vote was sent; -1: it was not

	turn   uint32 // of the engine when absent was found
	absent []bool // nil: it was not
	gone   int    // how many are
}

func (p *party) wait(ctx context.Context) (*ballot, error) {
	for {
		if turn := p.job.eng.Turn(); p.absent == nil || turn != p.turn {
			p.turn, p.absent, p.gone = turn, p.job.eng.Absent(p.s.group.ranks), 0
			for i, gone := range p.absent {
				if gone {
					p.own.failed.set(i)
					p.gone++
				}
			}
		}
		v, err := p.step()
		if v != nil || err != nil {
			return v, err
		}
		m, st, err := p.talk.Attend(ctx, p.turn)
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		p.take(m, st)
	}
}

// step votes, or presides, and returns the verdict if there is one; else the
// caller is counted as waiting.
func (p *party) step() (*ballot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v := p.settled[p.s.id]; v != nil && v.seq >= p.own.seq {
		if v.seq > p.own.seq {
			return nil, fmt.Errorf("%w: the other ranks have gone on without this one", ErrProcFailed)
		}
		return v, nil
	}
	chair := 0
	for p.absent[chair] { // this rank is not
		chair++
	}
	if chair != p.s.rank {
		if p.told != chair {
			p.told = chair
			p.send(p.own, p.s.group.ranks[chair])
		}
		p.waiting++
		return nil, nil
	}
	votes := p.cases[caseID{p.own.id, p.own.seq}]
	if p.told != chair {
		p.told = chair
		for i, w := range p.s.group.ranks {
			if chair > 0 && i != chair && !p.absent[i] && votes[w] == nil {
				p.send(p.own, w) // who presided before may have told it
			}
		}
	}
	v := p.tally(votes)
	if v == nil {
		p.waiting++
		return nil, nil
	}
	p.settleLocked(v)
	for i, w := range p.s.group.ranks {
		if i != p.s.rank && !p.absent[i] && votes[w] == nil { // the others were answered
			p.send(v, w)
		}
	}
	return v, nil
}

// tally makes the verdict of who presides; nil: votes are missing.
func (p *party) tally(votes map[int]*ballot) *ballot {
	n := len(p.absent)
	if len(votes)+p.gone < n-1 {
		return nil
	}
	v := *p.own
	v.kind, v.failed, v.known = verdict, newBitmap(n), newBitmap(n)
	v.failed.or(p.own.failed)
	v.known.or(p.own.known)
	for i, w := range p.s.group.ranks {
		if i == p.s.rank || p.absent[i] {
			continue
		}
		b := votes[w]
		if b == nil {
			return nil
		}
		if b.what != v.what || !b.fits(n) {
			v.what = differentCalls
			continue
		}
		v.flag &= b.flag
		v.failed.or(b.failed)
		v.known.and(b.known)
	}
	return &v
}

// settleLocked notes a verdict and tells it to those who voted for this rank.
func (k *council) settleLocked(v *ballot) {
	if last := k.settled[v.id]; last != nil && last.seq >= v.seq {
		return
	}
	k.settled[v.id] = v
	c := caseID{v.id, v.seq}
	for w := range k.cases[c] {
		k.send(v, w)
	}
	delete(k.cases, c)
}

// send tells a world rank; if that has ended it needs to know nothing.
func (k *council) send(b *ballot, world int) {
	k.talk.Isend(b.append(nil), engine.Env{Peer: world}).Abandon()
}

// take files a message; the zero message is none. Calls that wait look at what has
// come.
func (k *council) take(m engine.Message, st engine.Status) {
	if m.IsZero() {
		return
	}
	buf := make([]byte, min(st.Bytes, ballotHeader+2*len(newBitmap(k.job.world.Size))))
	var b ballot
	if _, err := m.Recv(context.Background(), buf); err != nil || b.parse(buf) != nil {
		return // its sender has failed, or is no correct rank
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch last := k.settled[b.id]; {
	case b.kind == verdict:
		k.settleLocked(&b)
	case last == nil || last.seq < b.seq:
		c := caseID{b.id, b.seq}
		if k.cases[c] == nil {
			k.cases[c] = make(map[int]*ballot)
		}
		k.cases[c][st.Source] = &b
	case last.seq == b.seq:
		k.send(last, st.Source)
	}
	if k.waiting > 0 {
		k.job.eng.Nudge()
	}
}

// answer takes what has come while nobody waits. Before there is a verdict nobody
// can be answered.
func (k *council) answer() {
	k.mu.Lock()
	mute := len(k.settled) == 0
	k.mu.Unlock()
	if mute {
		return
	}
	for {
		m, st, ok, err := k.talk.Improbe(engine.Env{Peer: AnySource, Tag: AnyTag, Aside: true})
		if !ok || err != nil {
			return
		}
		k.take(m, st)
	}
}

// forget drops the last verdict of a communicator that all ranks have freed.
func (k *council) forget(s *state) {
	k.mu.Lock()
	delete(k.settled, s.id)
	k.mu.Unlock()
}
