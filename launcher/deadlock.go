package launcher

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/wire"
)

// Detection of deadlocks
//
// gorun asks all ranks what they do: see inspection. Each rank answers with a wire.RankState, which
// lists its calls of package comm, its communicators, and its links. A link counts the messages
// that the rank has exchanged with one other rank. From these answers gorun finds ranks that wait
// for each other.
//
// A rank whose call waits for a process at the other end of a connection counts as one that may
// continue, because that process may belong to another job.
//
// A rank waits if none of its goroutines runs outside of package comm, each of its calls has waited
// for the same event for a while, and none of its transfers makes progress. To complete, such a
// call needs other ranks. A receive from rank 3 needs rank 3. A receive from any source needs any
// one rank of the communicator. A collective needs the rank whose message, or whose store to shared
// memory, it waits for.
//
// The stuck ranks are the largest set of waiting ranks whose calls only ranks of the set can
// complete. If a rank of the set has a call that needs any one rank of a communicator, all ranks of
// the communicator are in the set. The search begins with all waiting ranks. It removes each rank
// that needs a rank outside the set, until no such rank is left. Its time is proportional to the
// number of calls, links and communicators in the answers.
//
// Ranks answer at different times, so one round of answers proves nothing. If ranks seem to be
// stuck, gorun asks again:
//
//	round 1 ── rank 0, rank 1, … ──► T ──► round 2 ── rank 0, rank 1, … ──►
//
// A rank that waits for the same events in both rounds also waits at time T, between the rounds. No
// message is on its way between two ranks at T if each of them has received as many messages as the
// other has sent, and if these counters are the same in both rounds. The deadlock is certain if
// three things hold: no message is on its way between a stuck rank and a rank that it needs; the
// contexts of the calls of the stuck ranks cannot end; and no other goroutine of the stuck ranks
// may run later. Otherwise the deadlock is possible. A rank that has not answered in both rounds
// may do anything, so no rank that needs it is stuck.

// worldID and finalID are the ids of the two communicators that all ranks have from Init to the end
// of Finalize: the world, and the communicator of the barrier that Finalize makes.
const (
	worldID = 0
	finalID = 1<<63 - 1
)

// ofAllRanks reports whether id is that of a communicator that all ranks have.
func ofAllRanks(id uint64) bool { return id == worldID || id == finalID }

// round holds the answers of one round of an inspection, by rank.
type round struct {
	states []*wire.RankState // the answers; nil element: the rank has not answered
	// silent says, by rank, that the rank has called Init and has not answered, or that its host
	// has not answered or is lost.
	silent []bool
}

// observe returns the answers that gorun has got from the ranks of a group in the current round of an
// inspection.
func (r *run) observe(g *group, a *groupAnswers) round {
	o := round{states: make([]*wire.RankState, g.size), silent: make([]bool, g.size)}
	for i := range o.silent {
		h := r.ranks[g.first+i].host
		o.silent[i] = a.silent[h] || r.hosts[h].state == hostLost
	}
	for _, g := range a.groups {
		for _, rank := range g.Ranks {
			o.states[rank], o.silent[rank] = g.State, g.NoAnswer
		}
	}
	return o
}

// need is what a call needs to complete: one rank, or any one rank of a communicator.
type need struct {
	// rank is the rank of the world that the call needs. If any is set, it is one of the ranks of
	// comm: if possible, not the caller.
	rank int
	any  bool       // the call needs any one rank of comm
	comm uint64     // id of a communicator, if any is set; 0 otherwise
	coll collective // the collective call; zero: the call is not a collective
}

// collective identifies one collective call of a communicator.
type collective struct {
	id  uint64 // id of the communicator
	seq uint32 // number of the call among the collective calls of the communicator, from 1 on
}

// waits holds what the ranks of a job wait for, and indexes of the answers for the searches. An
// answer is not complete if its list of communicators or of links was too long: then its MoreComms
// or MoreLinks is set.
type waits struct {
	round
	before []*wire.RankState // the answers of the round before, by rank; nil: there was no round before
	// needs has, by rank, what the calls of the rank need. It has nil for a rank that may continue
	// by itself, or for which that is not known.
	needs  [][]need
	proven []bool // the result of [waits.certain], which computes it only once; nil: not computed yet

	holders map[uint64][]holder // by communicator: the ranks that certainly have it, ascending
	// moreComms has the ranks that may have communicators that are not known, ascending: see
	// hasMoreComms.
	moreComms []int
	moreLinks []bool // by rank: one of its answers has left out links
	// moreLinksOf has, by communicator, the ranks of holders for which moreLinks is set, ascending.
	moreLinksOf map[uint64][]int
	moreBoth    []int // the ranks of moreComms for which moreLinks is set, ascending
	// linked has, by rank, the ranks to which an answer shows a link, from either side. A rank may
	// occur several times.
	linked [][]int
	// exits holds results of the search in [waits.next], by rank that waits in a collective: the
	// rank outside the collective at which the search has ended, or -1 if there is none. A rank
	// from which next has not searched has no entry.
	exits map[int]int

	steps int // number of ranks and pairs of ranks that the searches have looked at; the tests bound it
}

// holder is a rank that has a communicator.
type holder struct {
	rank int
	seq  uint32 // number of collectives that the rank has started on the communicator; 0 if listed is false
	// listed says that the rank's answer lists the communicator. If listed is false, the
	// communicator is one that all ranks have: see ofAllRanks.
	listed bool
}

// newWaits returns what ranks wait for, from the answers of one round and of the round before it.
// before is nil in the first round.
func newWaits(now round, before *round) *waits {
	w := &waits{round: now, needs: make([][]need, len(now.states)), exits: make(map[int]int)}
	if before != nil {
		w.before = before.states
	}
	w.indexLinks()
	w.indexComms()
	for r, s := range w.states {
		if s == nil {
			continue
		}
		if w.before == nil || sameWaits(w.before[r], s) {
			w.needs[r] = w.needsOf(r)
		}
	}
	return w
}

// indexComms sets holders, moreComms, moreLinksOf and moreBoth. It uses moreLinks, so indexLinks
// must run before it.
func (w *waits) indexComms() {
	w.holders, w.moreLinksOf = make(map[uint64][]holder), make(map[uint64][]int)
	for r, s := range w.states {
		if w.hasMoreComms(r) {
			w.moreComms = append(w.moreComms, r)
			if w.moreLinks[r] {
				w.moreBoth = append(w.moreBoth, r)
			}
		}
		var list []wire.RankComm
		if s != nil {
			list = s.Comms
		}
		for _, c := range list {
			w.hold(c.ID, holder{r, c.Seq, true})
		}
		w.hold(worldID, holder{rank: r})
		w.hold(finalID, holder{rank: r})
	}
}

// hold adds a rank to the holders of a communicator, unless the rank is one of them already. The
// caller adds the ranks in ascending order.
func (w *waits) hold(id uint64, h holder) {
	list := w.holders[id]
	if len(list) > 0 && list[len(list)-1].rank == h.rank {
		return
	}
	w.holders[id] = append(list, h)
	if w.moreLinks[h.rank] {
		w.moreLinksOf[id] = append(w.moreLinksOf[id], h.rank)
	}
}

// hasMoreComms reports whether a rank may have communicators that are not known: the rank has not
// answered although it should have, or its answer has left out communicators.
func (w *waits) hasMoreComms(rank int) bool {
	s := w.states[rank]
	return w.silent[rank] || s != nil && s.MoreComms
}

// indexLinks sets linked and moreLinks. It sorts the links of all answers by peer, because linkOf
// searches them.
func (w *waits) indexLinks() {
	w.linked, w.moreLinks = make([][]int, len(w.states)), make([]bool, len(w.states))
	for r := range w.states {
		for _, s := range w.both(r) {
			if s == nil {
				continue
			}
			slices.SortFunc(s.Links, comparePeers) // the links of a correct rank are sorted already
			w.moreLinks[r] = w.moreLinks[r] || s.MoreLinks
			for _, l := range s.Links {
				if peer := int(l[0]); peer < len(w.states) {
					w.linked[r], w.linked[peer] = append(w.linked[r], peer), append(w.linked[peer], r)
				}
			}
		}
	}
}

// both returns a rank's answers in the round before and in this one; nil: no answer.
func (w *waits) both(rank int) (list [2]*wire.RankState) {
	if w.before != nil {
		list[0] = w.before[rank]
	}
	list[1] = w.states[rank]
	return list
}

// sameWaits reports whether a rank already waited when it gave the answer before, and for the same
// events as in the answer now. before is nil if the rank did not answer in the round before.
func sameWaits(before, now *wire.RankState) bool {
	return before != nil && !before.Busy && !before.Moves && before.More == 0 && slices.Equal(before.Calls, now.Calls)
}

// needsOf returns what the calls of a rank need. It returns nil if the rank may continue by itself,
// or if what a call needs is not known.
func (w *waits) needsOf(rank int) (list []need) {
	s := w.states[rank]
	if s.Busy || s.More > 0 || s.Moves {
		return nil
	}
	for _, c := range s.Calls {
		n := need{rank: c.World}
		switch {
		case c.Follows:
			continue
		case !c.Still || c.Comm == "" || c.Wait == wire.WaitMemory, c.Connection:
			return nil
		case c.Wait == wire.WaitCollective:
			n.coll = collective{c.ID, c.Seq}
		case c.World < 0:
			n = need{rank: w.member(c.ID, rank), any: true, comm: c.ID}
		}
		if n.rank < 0 || n.rank >= len(w.states) {
			return nil
		}
		if !n.any && c.ID != finalID && w.finalizes(n.rank) {
			return nil // the call will fail, because its peer makes no more calls
		}
		list = append(list, n)
	}
	return list
}

// finalizes reports whether the answer of a rank shows a call of Finalize.
func (w *waits) finalizes(rank int) bool {
	s := w.states[rank]
	return s != nil && slices.ContainsFunc(s.Calls, func(c wire.RankCall) bool { return c.Comm != "" && c.ID == finalID })
}

// member returns the lowest rank, other than rank, that has communicator id or may have it. If there
// is no such rank, member returns rank.
func (w *waits) member(id uint64, rank int) int {
	first := -1
	look := func(r int) {
		if r != rank && (first < 0 || r < first) {
			first = r
		}
	}
	for _, h := range w.holders[id][:min(len(w.holders[id]), 2)] {
		look(h.rank)
	}
	for _, r := range w.moreComms[:min(len(w.moreComms), 2)] {
		look(r)
	}
	if first < 0 {
		return rank
	}
	return first
}

// mayHave reports whether a rank has communicator id, or may have it because not all of its
// communicators are known.
func (w *waits) mayHave(rank int, id uint64) bool {
	_, has := w.holder(rank, id)
	return has || w.hasMoreComms(rank)
}

// holder returns the entry of a rank in the holders of communicator id. ok is false if there is
// none.
func (w *waits) holder(rank int, id uint64) (h holder, ok bool) {
	w.steps++
	list := w.holders[id]
	i, ok := slices.BinarySearchFunc(list, rank, func(h holder, r int) int { return cmp.Compare(h.rank, r) })
	if ok {
		h = list[i]
	}
	return h, ok
}

// stuck returns, by rank, whether the rank is in the largest set of ranks that wait only for ranks
// of the set. The set contains only ranks for which may returns true. If quiet is set, a rank is in
// the set only if no message is on its way between it and the ranks that it needs: see quietNeed.
func (w *waits) stuck(may func(rank int) bool, quiet bool) []bool {
	set := make([]bool, len(w.needs))
	// out has ranks outside the set that settle has not handled yet. Ranks that need them may still
	// be in the set.
	var out []int
	waiters := make(map[int][]int)  // by rank: the ranks that need it
	anyOf := make(map[uint64][]int) // by communicator: the ranks that need any one rank of it
	for r, needs := range w.needs {
		if set[r] = len(needs) > 0 && may(r); !set[r] {
			out = append(out, r)
			continue
		}
		for _, n := range needs {
			if n.any {
				anyOf[n.comm] = append(anyOf[n.comm], r)
			} else {
				waiters[n.rank] = append(waiters[n.rank], r)
			}
		}
	}
	remove := func(ranks ...int) {
		w.steps += len(ranks)
		for _, r := range ranks {
			if set[r] {
				set[r] = false
				out = append(out, r)
			}
		}
	}
	removeAny := func(id uint64) {
		remove(anyOf[id]...)
		delete(anyOf, id)
	}
	// settle removes all ranks that need a rank of out, then those that need one of these, and so on.
	settle := func() {
		for len(out) > 0 {
			r := out[len(out)-1]
			out = out[:len(out)-1]
			remove(waiters[r]...)
			if w.hasMoreComms(r) { // r may have every communicator
				for id := range anyOf {
					removeAny(id)
				}
				continue
			}
			removeAny(worldID)
			removeAny(finalID)
			if s := w.states[r]; s != nil {
				w.steps += len(s.Comms)
				for _, c := range s.Comms {
					removeAny(c.ID)
				}
			}
		}
	}
	settle()
	if quiet {
		for r := range set {
			if set[r] && slices.ContainsFunc(w.needs[r], func(n need) bool { return !w.quietNeed(r, n) }) {
				remove(r)
			}
		}
		settle()
	}
	return set
}

func anyRank(int) bool { return true }

// possible returns the largest set of ranks that, as their answers say, wait only for ranks of the
// set: see [waits.stuck]. Messages that are on their way, contexts or other goroutines may still
// let these ranks continue.
func (w *waits) possible() []bool { return w.stuck(anyRank, false) }

// certain returns the largest set of ranks that certainly wait only for ranks of the set, so that
// none of them can ever continue: see [waits.stuck].
func (w *waits) certain() []bool {
	if w.proven == nil {
		w.proven = w.stuck(w.sure, true)
	}
	return w.proven
}

// again reports whether another round could make a possible deadlock certain. After the first
// round, it could do so for every possible deadlock. Later it could do so only for a deadlock that
// is not certain for one reason alone: messages seem to be on their way.
func (w *waits) again() bool {
	if w.before == nil {
		return slices.Contains(w.possible(), true)
	}
	return !slices.Equal(w.stuck(w.sure, false), w.certain())
}

// sure reports whether a rank that waits cannot continue without the ranks that it needs.
func (w *waits) sure(rank int) bool { return w.doubt(rank) == "" }

// doubt returns why a rank that waits may continue without the ranks that it needs. The result is
// the predicate of a sentence, such as "has answered only once". It is "" if the rank cannot
// continue.
func (w *waits) doubt(rank int) string {
	if w.before == nil {
		return "has answered only once"
	}
	var later []string
	for _, s := range w.both(rank) {
		for _, state := range s.Later {
			if text := laterText(state); !slices.Contains(later, text) {
				later = append(later, text)
			}
		}
	}
	slices.Sort(later)
	var reasons []string
	if len(later) > 0 {
		reasons = append(reasons, "has goroutines that "+strings.Join(later, ", and goroutines that "))
	}
	if slices.ContainsFunc(w.states[rank].Calls, func(c wire.RankCall) bool { return c.Bounded }) {
		reasons = append(reasons, "waits in a call that its context may end")
	}
	return strings.Join(reasons, ", and ")
}

// laterText returns what goroutines in this state do, as a predicate such as "sleep". state is an
// element of RankState.Later: the state of a goroutine that may run later.
func laterText(state string) string {
	switch state {
	case "sleep":
		return "sleep"
	case "IO wait", "syscall":
		return "read, write or are in system calls"
	}
	return "wait for channels or timers"
}

// quietNeed reports whether no message is on its way between a rank and the ranks that can meet its
// need n: one rank, or all ranks of a communicator. The caller has made sure that all these ranks
// have answered in both rounds; the comment at the top of this file says why that is necessary.
func (w *waits) quietNeed(rank int, n need) bool {
	if !n.any {
		return w.quiet(rank, n.rank)
	}
	// The cost: the searches below end at the first rank for which notQuiet returns true. Consider a
	// rank r of the communicator to which no answer shows a link. If all links of rank and of r are
	// known, no message is on its way between them, and r need not be looked at. If links of either
	// are not known, notQuiet(r) returns true, and the search ends. So the searches look at no more
	// ranks than there are known links, plus one.
	notQuiet := func(r int) bool { return !w.quiet(rank, r) }
	if w.moreLinks[rank] {
		return !slices.ContainsFunc(w.holders[n.comm], func(h holder) bool { return notQuiet(h.rank) }) && !slices.ContainsFunc(w.moreComms, notQuiet)
	}
	return !slices.ContainsFunc(w.moreLinksOf[n.comm], notQuiet) && !slices.ContainsFunc(w.moreBoth, notQuiet) &&
		!slices.ContainsFunc(w.linked[rank], func(r int) bool { return w.mayHave(r, n.comm) && notQuiet(r) })
}

// quiet reports whether no message is on its way between two ranks, in either direction. It returns
// false if that is not known. Both ranks must have answered in both rounds.
func (w *waits) quiet(a, b int) bool {
	w.steps++
	if a == b {
		return true
	}
	ab, ok := sameLink(w.before[a], w.states[a], b)
	ba, ok2 := sameLink(w.before[b], w.states[b], a)
	sent, received := 1, 2 // indexes in a wire.RankLink
	return ok && ok2 && ab[sent] == ba[received] && ab[received] == ba[sent]
}

// sameLink returns a rank's link to a peer, from two answers of the rank. ok is false if the
// counters of the link differ between the answers, or if an answer may have left out the link.
func sameLink(before, now *wire.RankState, peer int) (l wire.RankLink, ok bool) {
	l, known := linkOf(now, peer)
	was, wasKnown := linkOf(before, peer)
	return l, known && wasKnown && was == l
}

// linkOf returns a rank's link to a peer from the rank's answer s, whose links are sorted by peer.
// If s has no link to the peer, the link is zero: no messages. known is false if the answer may
// have left out the link.
func linkOf(s *wire.RankState, peer int) (l wire.RankLink, known bool) {
	if i, ok := slices.BinarySearchFunc(s.Links, wire.RankLink{uint32(peer)}, comparePeers); ok {
		return s.Links[i], true
	}
	return wire.RankLink{}, !s.MoreLinks
}

func comparePeers(a, b wire.RankLink) int { return cmp.Compare(a[0], b[0]) }
