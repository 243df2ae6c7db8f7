package mpi

import (
	"context"
	"fmt"
	"maps"
	"slices"
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
// sends its vote to them: who has a verdict answers any vote with it. In whatever
// order messages and news of failures come, of the ranks in the communicator's
// order:
//
//   - A rank votes while it has no verdict, and for k when it knows that all below
//     k have ended.
//   - Who has voted for k, or presides as k, takes no verdict from a rank below k
//     any more. One may still lie there: so to vote and to file what has come
//     exclude each other (mu).
//   - k makes a verdict when it has a vote of each rank that it does not know to
//     have ended. A verdict that it gets in place of a vote it takes for its own.
//
// So when k makes one no rank that lives has one, nor takes one but k's or that of
// a higher rank, which asks, when k has ended, all that live: if any rank that goes
// on has a verdict, each that comes after is the same. A rank that the others have
// given up is in the verdict, and fails if it lives.
//
// A rank in Finalize takes no part in an agreement in which it has not voted before.
// It answers each vote with a refusal. A rank that refuses has sent no vote and no verdict
// of the agreement, and accepts none. So a rank that gets the refusal treats its sender like
// a rank that has ended before the agreement, and all of the above holds: a rank votes for
// k when all below k have ended or refused, and k needs no vote of a rank that has
// refused. The verdict names a rank that has refused, and the call fails with ErrFinalized
// on all ranks. If votes are missing at a tick of the watch, the rank that presides sends
// its vote once to the ranks that have not voted, so that those in Finalize refuse.
//
// A rank votes in one agreement of a communicator when it has the verdict of the
// one before, or its program no longer waits for it. So the last verdict is all
// that a rank has to keep. A rank that computes, or is in Finalize, answers at the next
// tick of the watch.
//
// Votes travel in a space of the whole world that nobody else uses and nobody
// revokes.
type council struct {
	job  *job
	talk *engine.Context
	send func(b *ballot, world int) // tells a world rank; if that has ended it needs to know nothing
	stir func()                     // has calls in Attend look at what has changed

	mu      sync.Mutex
	cases   map[caseID]*hearing // guarded by mu; those that have no verdict here
	settled map[uint64]*ballot  // guarded by mu; the last verdict, by communicator
	waiting int                 // guarded by mu; calls in Attend
	leaving bool                // guarded by mu; this rank is in Finalize
}

// hearing is an agreement before its verdict.
type hearing struct {
	votes map[int]*ballot // the votes and refusals that came here, by world rank
	party *party          // this rank's; nil: it has not voted yet
}

type caseID struct {
	id  uint64
	seq uint32
}

// councilID is the id of the councils' space.
const councilID = finalID - 1

func (j *job) openCouncil(all Group) {
	talk := j.eng.OpenContext(2*councilID, all.ranks)
	talk.KeepInFinalize()
	j.council = council{
		job: j, talk: talk,
		send: func(b *ballot, world int) {
			talk.Isend(b.append(nil), engine.Env{Peer: world}).Abandon()
		},
		stir: j.eng.WakeAttend, cases: make(map[caseID]*hearing), settled: make(map[uint64]*ballot),
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
		p.background = true
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
	s.job.eng.MarkFailed("the other ranks have given it up", more...)
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
	told int // whom it voted for, or itself when it presides; -1: it did not vote; guarded by council.mu

	// Of the rank that presides; guarded by council.mu.
	ask   bool // the next step sends the vote to the ranks whose votes are missing
	asked bool // a step has sent the vote to these ranks

	background bool // the context has ended the call

	turn   uint32 // of the engine when absent was found
	absent []bool // nil: it was not
	gone   int    // how many are
}

func (p *party) wait(ctx context.Context) (*ballot, error) {
	for {
		if turn := p.job.eng.ChangeCount(); p.absent == nil || turn != p.turn {
			p.turn = turn
			p.miss(p.job.eng.Absent(p.s.group.ranks))
		}
		v, err := p.step()
		if v != nil || err != nil {
			return v, err
		}
		m, st, err := p.talk.Attend(ctx, p.turn, p.background)
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
		if err != nil {
			return nil, err
		}
		p.take(m, st)
	}
}

// miss notes which ranks have ended.
func (p *party) miss(absent []bool) {
	p.absent, p.gone = absent, 0
	for i, gone := range absent {
		if gone {
			p.own.failed.set(i)
			p.gone++
		}
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
	if p.leaving && p.told < 0 && p.own.what != finalizeCall { // the other ranks may have a refusal of this rank
		return nil, fmt.Errorf("%w: Finalize was called", ErrClosed)
	}
	h := p.hearing(caseID{p.own.id, p.own.seq})
	h.party = p
	ranks := p.s.group.ranks
	chair := 0
	for p.absent[chair] || h.refused(ranks[chair]) { // this rank is not
		chair++
	}
	if p.told != chair {
		p.told = chair
		if chair != p.s.rank {
			p.send(p.own, ranks[chair])
		}
		p.ask = chair == p.s.rank && chair > 0 // the rank that presided before may have sent a verdict to some ranks
	}
	if chair == p.s.rank {
		if p.ask {
			p.ask, p.asked = false, true
			for i, w := range ranks {
				if i != chair && !p.absent[i] && h.votes[w] == nil {
					p.send(p.own, w)
				}
			}
		}
		if v := p.tally(h.votes); v != nil {
			p.settleLocked(v)
			if p.waiting > 0 { // for one before
				p.stir()
			}
			return v, nil
		}
	}
	p.waiting++
	return nil, nil
}

// tally makes the verdict of who presides; nil: votes are missing.
func (p *party) tally(votes map[int]*ballot) *ballot {
	n := len(p.absent)
	if len(votes)+p.gone < n-1 {
		return nil
	}
	v := *p.own
	v.kind, v.failed, v.known = verdict, newBitmap(n), newBitmap(n)
	v.final = 0
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
		if b.kind == refusal {
			if v.final == 0 {
				v.final = uint32(i) + 1
			}
			continue
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

// refused reports whether a world rank has refused to vote.
func (h *hearing) refused(world int) bool {
	b := h.votes[world]
	return b != nil && b.kind == refusal
}

// hearing finds a case that is not settled, or opens it; the caller holds mu.
func (k *council) hearing(c caseID) *hearing {
	h := k.cases[c]
	if h == nil {
		h = &hearing{votes: make(map[int]*ballot)}
		k.cases[c] = h
	}
	return h
}

// settleLocked notes a verdict and tells it to those who voted for this rank.
func (k *council) settleLocked(v *ballot) {
	k.settled[v.id] = v
	for w, b := range k.cases[caseID{v.id, v.seq}].votes {
		if b.kind == vote {
			k.send(v, w)
		}
	}
	maps.DeleteFunc(k.cases, func(c caseID, _ *hearing) bool { return c.id == v.id && c.seq <= v.seq })
}

// file takes what a world rank says.
func (k *council) file(b *ballot, world int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := caseID{b.id, b.seq}
	last := k.settled[b.id]
	switch {
	case last != nil && last.seq > b.seq: // nobody who goes on waits for it
	case last != nil && last.seq == b.seq:
		if b.kind == vote {
			k.send(last, world)
		}
	case b.kind == vote && k.refuses(c, b):
		k.send(&ballot{kind: refusal, what: b.what, seq: b.seq, id: b.id}, world)
	case b.kind == vote:
		k.hearing(c).votes[world] = b
	case b.kind == refusal:
		if h := k.cases[c]; h != nil && h.party != nil { // otherwise this rank has sent no vote
			h.votes[world] = b
		}
	case k.heeds(c, world):
		delete(k.cases[c].votes, world) // it needs no answer
		k.settleLocked(b)
	}
	if k.waiting > 0 {
		k.stir()
	}
}

// heeds says whether a verdict of a world rank counts: this rank has voted, and for
// none above that one.
func (k *council) heeds(c caseID, world int) bool {
	h := k.cases[c]
	return h != nil && h.party != nil && slices.Index(h.party.s.group.ranks, world) >= h.party.told
}

// refuses reports whether this rank refuses a vote: it is in Finalize, and has not voted in
// this agreement. It does not refuse votes of the agreement that Finalize itself makes.
func (k *council) refuses(c caseID, b *ballot) bool {
	h := k.cases[c]
	return k.leaving && b.what != finalizeCall && (h == nil || h.party == nil)
}

// leave records that this rank is in Finalize. It refuses the votes that came for agreements
// in which this rank has not voted.
func (k *council) leave() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaving = true
	for c, h := range k.cases {
		for w, b := range h.votes {
			if k.refuses(c, b) {
				delete(h.votes, w)
				k.send(&ballot{kind: refusal, what: b.what, seq: b.seq, id: b.id}, w)
			}
		}
	}
}

// remind asks once for the votes that are missing, in each agreement over which this rank
// presides. The watch calls remind.
func (k *council) remind() {
	k.mu.Lock()
	defer k.mu.Unlock()
	stir := false
	for _, h := range k.cases {
		if p := h.party; p != nil && p.told == p.s.rank && !p.asked {
			p.ask, stir = true, true
		}
	}
	if stir {
		k.stir()
	}
}

// take files a message; the zero message is none.
func (k *council) take(m engine.Message, st engine.Status) {
	if m.IsZero() {
		return
	}
	buf := make([]byte, min(st.Bytes, ballotHeader+2*len(newBitmap(k.job.world.Size))))
	var b ballot
	if _, err := m.Recv(context.Background(), buf); err != nil || b.parse(buf) != nil {
		return // its sender has failed, or is no correct rank
	}
	k.file(&b, st.Source)
}

// answer handles the messages that have come while no call is in Attend. A rank that has no
// verdict, and is not in Finalize, has no answer.
func (k *council) answer() {
	k.mu.Lock()
	mute := len(k.settled) == 0 && !k.leaving
	k.mu.Unlock()
	if mute {
		return
	}
	for {
		m, st, err := k.talk.Iattend()
		if m.IsZero() || err != nil {
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
