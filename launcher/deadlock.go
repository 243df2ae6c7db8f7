package launcher

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/wire"
)

// Detection of deadlocks
//
// A rank waits if each of its goroutines that could run is in a call that has waited for the same
// event for a while, and none of its transfers moves. Such a call needs other ranks: a receive from
// rank 3 needs rank 3; a receive from any source needs any one rank of the communicator; a collective
// needs the rank whose message or store it waits for.
//
// The stuck ranks are the largest set of waiting ranks whose calls only ranks of the set can complete.
// For a call that needs any one rank of a communicator, all ranks of the communicator are in the set.
// The search begins with all waiting ranks. It removes each rank that needs a rank outside the set,
// until there is none. Its time grows with the number of calls, links and communicators in the answers.
//
// Ranks answer at different times, so one round of answers proves nothing. If ranks seem to be stuck,
// gorun asks again:
//
//	round 1 ── rank 0, rank 1, … ──► T ──► round 2 ── rank 0, rank 1, … ──►
//
// A rank that waits for the same events in both rounds also waits at time T, between the rounds. If the
// counters of messages between two ranks are equal on both sides and do not change, no message is on
// its way between them at T. The deadlock is certain if this holds for all stuck ranks and the ranks
// that they need, if the contexts of their calls cannot end, and if no other goroutine of these ranks
// may run later. Otherwise it is possible. A rank that has not answered twice may do anything, so no
// rank that needs it is stuck.

// finalID is the id of the communicator of Finalize's barrier. The world and this one are
// the communicators that all ranks have from Init to the end of Finalize.
const (
	worldID = 0
	finalID = 1<<63 - 1
)

func ofAllRanks(id uint64) bool { return id == worldID || id == finalID }

// round holds the answers of one round, by rank.
type round struct {
	states []*wire.RankState // nil: no answer
	silent []bool            // the rank runs, as far as gorun knows, and should have answered
}

// need is what a call needs: one rank, or any one rank of a communicator.
type need struct {
	rank int  // any: an example, if possible another rank than the one that calls
	any  bool // any rank of comm
	comm uint64
	coll collective // the collective call; zero: the call is not a collective
}

// collective identifies one collective call of a communicator. Collectives are numbered
// from 1 on.
type collective struct {
	id  uint64
	seq uint32
}

// waits holds what the ranks of a job wait for.
type waits struct {
	round
	before []*wire.RankState // the states of the round before; nil: this is the first one
	needs  [][]need          // by rank; nil: the rank may continue by itself
	proven []bool            // certain's result; nil: not searched for yet

	holders     map[uint64][]holder // by communicator: the ranks that have it, ascending
	moreComms   []int               // ranks for which hasMoreComms returns true, ascending
	moreLinks   []bool              // by rank: it may have links that are not known
	moreLinksOf map[uint64][]int    // by communicator: its ranks that may have unknown links, ascending
	moreBoth    []int               // ranks of moreComms that may also have unknown links
	linked      [][]int             // by rank: the ranks with which the answers show a link, with repetitions
	exits       map[int]int         // results of next, by rank

	steps int // number of ranks and pairs of ranks that the searches have looked at
}

// holder is a rank that has a communicator.
type holder struct {
	rank   int
	seq    uint32 // collectives that it has started on the communicator
	listed bool   // its answer lists the communicator; can be false only if all ranks have it
}

// newWaits returns what ranks wait for, from the answers of one round and of the round
// before.
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

// indexComms finds the ranks of each communicator. It needs the result of indexLinks.
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

// hold records that a rank has a communicator, unless holders has the rank already.
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

// hasMoreComms reports whether a rank may have communicators that are not known.
func (w *waits) hasMoreComms(rank int) bool {
	s := w.states[rank]
	return w.silent[rank] || s != nil && s.MoreComms
}

// indexLinks finds the links of each rank. It sorts the links of all states.
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

// both returns a rank's states in the round before and in this one.
func (w *waits) both(rank int) (list [2]*wire.RankState) {
	if w.before != nil {
		list[0] = w.before[rank]
	}
	list[1] = w.states[rank]
	return list
}

// sameWaits reports whether a rank waited in the round before, and for the same events as
// now.
func sameWaits(before, now *wire.RankState) bool {
	return before != nil && !before.Busy && !before.Moves && before.More == 0 && slices.Equal(before.Calls, now.Calls)
}

// needsOf returns what each of a rank's calls needs. It returns nil if the rank may
// continue by itself, or if that is not known.
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
		case !c.Still || c.Comm == "" || c.Wait == wire.WaitMemory:
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
			return nil // the call will fail
		}
		list = append(list, n)
	}
	return list
}

// finalizes reports whether a rank is in Finalize.
func (w *waits) finalizes(rank int) bool {
	s := w.states[rank]
	return s != nil && slices.ContainsFunc(s.Calls, func(c wire.RankCall) bool { return c.Comm != "" && c.ID == finalID })
}

// member returns the first rank, other than the given one, that has a communicator or may
// have it. It returns the given one if there is no other.
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

// mayHave reports whether a rank has a communicator, or may have it.
func (w *waits) mayHave(rank int, id uint64) bool {
	_, has := w.holder(rank, id)
	return has || w.hasMoreComms(rank)
}

// holder returns the entry of a rank in the list of ranks that have a communicator.
func (w *waits) holder(rank int, id uint64) (h holder, ok bool) {
	w.steps++
	list := w.holders[id]
	i, ok := slices.BinarySearchFunc(list, rank, func(h holder, r int) int { return cmp.Compare(h.rank, r) })
	if ok {
		h = list[i]
	}
	return h, ok
}

// stuck returns the largest set of ranks that wait for each other. The set contains only
// ranks for which may returns true. If quiet is set, it contains only ranks whose needs are
// quiet: see quietNeed.
func (w *waits) stuck(may func(rank int) bool, quiet bool) []bool {
	set := make([]bool, len(w.needs))
	var out []int                   // ranks outside the set; the ranks that need them are still to be removed
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

// possible returns the ranks that wait for each other as far as their answers say.
func (w *waits) possible() []bool { return w.stuck(anyRank, false) }

// certain returns the ranks that certainly wait for each other.
func (w *waits) certain() []bool {
	if w.proven == nil {
		w.proven = w.stuck(w.sure, true)
	}
	return w.proven
}

// again reports whether another round could make a possible deadlock certain.
func (w *waits) again() bool {
	if w.before == nil {
		return slices.Contains(w.possible(), true)
	}
	return !slices.Equal(w.stuck(w.sure, false), w.certain())
}

// sure reports whether a rank that waits cannot continue by itself.
func (w *waits) sure(rank int) bool { return w.doubt(rank) == "" }

// doubt returns why a rank that waits may continue after all, as the predicate of a
// sentence; "" if it cannot.
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

// laterText returns what a goroutine does, from its state in RankState.Later.
func laterText(state string) string {
	switch state {
	case "sleep":
		return "sleep"
	case "IO wait", "syscall":
		return "read, write or are in system calls"
	}
	return "wait for channels or timers"
}

// quietNeed reports whether no message is on its way between a rank and the ranks of one of
// its needs. Each of these ranks has answered twice.
func (w *waits) quietNeed(rank int, n need) bool {
	if !n.any {
		return w.quiet(rank, n.rank)
	}
	// The cost: consider a member with which the answers show no link. If all links of both ranks
	// are known, no message is on its way between them. Otherwise that is not known, and the
	// searches of holders, moreComms, moreLinksOf and moreBoth end at this member. So these
	// searches look at no more ranks than there are known links.
	notQuiet := func(r int) bool { return !w.quiet(rank, r) }
	if w.moreLinks[rank] {
		return !slices.ContainsFunc(w.holders[n.comm], func(h holder) bool { return notQuiet(h.rank) }) && !slices.ContainsFunc(w.moreComms, notQuiet)
	}
	return !slices.ContainsFunc(w.moreLinksOf[n.comm], notQuiet) && !slices.ContainsFunc(w.moreBoth, notQuiet) &&
		!slices.ContainsFunc(w.linked[rank], func(r int) bool { return w.mayHave(r, n.comm) && notQuiet(r) })
}

// quiet reports whether no message is on its way between two ranks, in either direction.
func (w *waits) quiet(a, b int) bool {
	w.steps++
	if a == b {
		return true
	}
	ab, ok := sameLink(w.before[a], w.states[a], b)
	ba, ok2 := sameLink(w.before[b], w.states[b], a)
	sent, received := 1, 2
	return ok && ok2 && ab[sent] == ba[received] && ab[received] == ba[sent]
}

// sameLink returns a rank's link to a peer. ok is false if the link has changed between
// two rounds, or if that is not known.
func sameLink(before, now *wire.RankState, peer int) (l wire.RankLink, ok bool) {
	l, known := linkOf(now, peer)
	was, wasKnown := linkOf(before, peer)
	return l, known && wasKnown && was == l
}

// linkOf returns a rank's link to a peer, from the sorted links. known is false if the
// answer may have left it out.
func linkOf(s *wire.RankState, peer int) (l wire.RankLink, known bool) {
	if i, ok := slices.BinarySearchFunc(s.Links, wire.RankLink{uint32(peer)}, comparePeers); ok {
		return s.Links[i], true
	}
	return wire.RankLink{}, !s.MoreLinks
}

func comparePeers(a, b wire.RankLink) int { return cmp.Compare(a[0], b[0]) }

// The bounds of a report of deadlocks.
const (
	maxCycles = 4
	maxCycle  = 12 // ranks of one circle
	maxDoubts = 4
)

// deadlocks returns lines that say which ranks wait for each other in a circle, and which
// of these deadlocks are certain.
func (w *waits) deadlocks() (lines []string) {
	possible, certain := w.possible(), w.certain()
	lines = w.circles("deadlock: ", certain, nil)
	if slices.Equal(possible, certain) {
		return lines
	}
	lines = append(lines, w.circles("possible deadlock: ", possible, certain)...)
	return append(lines, w.doubts(possible, certain)...)
}

// circles returns lines about the ranks of a set, except those of another set.
func (w *waits) circles(title string, set, except []bool) (lines []string) {
	skip := func(r int) bool { return !set[r] || except != nil && except[r] }
	seen := make([]int, len(set)) // by rank: the walk that visited it, from 1 on
	total, named := 0, 0
	for start := range set {
		if skip(start) {
			continue
		}
		total++
		var path []int
		r := start
		for seen[r] == 0 && !skip(r) {
			seen[r] = start + 1
			path = append(path, r)
			r = w.next(r)
		}
		if seen[r] != start+1 {
			continue // this rank waits for ranks that are named elsewhere
		}
		cycle := path[slices.Index(path, r):]
		if len(lines) < maxCycles {
			named += len(cycle)
			lines = append(lines, title+cycleText(cycle))
		}
	}
	if rest := total - named; rest > 0 {
		verb := "wait"
		if rest == 1 {
			verb = "waits"
		}
		lines = append(lines, fmt.Sprintf("%s%s that %s for these", title, plural(rest, "more rank"), verb))
	}
	return lines
}

// next returns a rank that a stuck rank waits for. If both ranks wait in the same
// collective, next follows the waits from rank to rank. It returns the first rank that is
// not in the collective, if there is one.
func (w *waits) next(rank int) int {
	coll := w.needs[rank][0].coll // all needs of a stuck rank name stuck ranks
	if coll == (collective{}) {
		return w.needs[rank][0].rank
	}
	const none = -1 // ranks wait for each other within the collective
	var path []int
	at := rank
	for w.needs[at][0].coll == coll {
		w.steps++
		if _, known := w.exits[at]; known {
			break
		}
		w.exits[at] = none
		path = append(path, at)
		at = w.needs[at][0].rank
	}
	exit := at
	if w.needs[at][0].coll == coll {
		exit = w.exits[at]
	}
	for _, r := range path {
		w.exits[r] = exit
	}
	if exit = w.exits[rank]; exit == none {
		return w.needs[rank][0].rank
	}
	return exit
}

func cycleText(cycle []int) string {
	if len(cycle) == 1 {
		return fmt.Sprintf("rank %d waits for itself", cycle[0])
	}
	first := slices.Index(cycle, slices.Min(cycle))
	cycle = append(slices.Clone(cycle[first:]), cycle[:first]...)
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d waits for %d", cycle[0], cycle[1])
	for i := 1; i < len(cycle); i++ {
		if len(cycle) > maxCycle && i == maxCycle-2 {
			b.WriteString(", …")
			i = len(cycle) - 1
		}
		fmt.Fprintf(&b, ", %d for %d", cycle[i], cycle[(i+1)%len(cycle)])
	}
	return b.String()
}

// doubts returns lines that say why possible deadlocks are not certain.
func (w *waits) doubts(possible, certain []bool) (lines []string) {
	ranks := make(map[string][]int)
	var order []string
	for r := range possible {
		if !possible[r] || certain[r] {
			continue
		}
		if why := w.doubt(r); why != "" {
			if ranks[why] == nil {
				order = append(order, why)
			}
			ranks[why] = append(ranks[why], r)
		}
	}
	for _, why := range order[:min(len(order), maxDoubts)] {
		subject := fmt.Sprintf("each of ranks %s ", rankList(ranks[why]))
		if len(ranks[why]) == 1 {
			subject = fmt.Sprintf("rank %d ", ranks[why][0])
		}
		lines = append(lines, "not certain, because "+subject+why)
	}
	if len(lines) == 0 {
		lines = append(lines, "not certain, because messages between these ranks seem to be on their way")
	}
	return lines
}

// lateLines returns lines that name the ranks that have not called a collective in which
// other ranks wait for them.
func (w *waits) lateLines() (lines []string) {
	peers := make(map[collective]map[int]bool) // whose messages or stores ranks wait for
	calls := make(map[collective]wire.RankCall)
	var order []collective
	for _, s := range w.states {
		if s == nil {
			continue
		}
		for _, c := range s.Calls {
			if k := (collective{c.ID, c.Seq}); c.Wait == wire.WaitCollective {
				if peers[k] == nil {
					order = append(order, k)
					peers[k], calls[k] = make(map[int]bool), c
				}
				peers[k][c.World] = true
			}
		}
	}
	for _, k := range order {
		c := calls[k]
		ranks := slices.Collect(maps.Keys(peers[k]))
		if needsAll(c.Name) {
			for _, h := range w.holders[k.id] {
				ranks = append(ranks, h.rank)
			}
		}
		slices.Sort(ranks)
		var late, silent []int
		for _, r := range slices.Compact(ranks) {
			switch waited := peers[k][r]; {
			case r < 0 || r >= len(w.states): // no correct rank sends this
			case w.silent[r] && (waited || ofAllRanks(k.id)):
				silent = append(silent, r)
			case w.late(r, k):
				late = append(late, r)
			}
		}
		line := fmt.Sprintf("comm.%s(%s) waits ", c.Name, c.Comm)
		switch {
		case len(late) > 0 && len(silent) > 0:
			line += "for " + rankWords(late) + ", and perhaps for " + rankWords(silent) + ", which did not answer"
		case len(late) > 0:
			line += "for " + rankWords(late)
		case len(silent) > 0:
			line += "perhaps for " + rankWords(silent) + ", which did not answer"
		default:
			continue
		}
		if lines = append(lines, line); len(lines) == maxLate {
			break
		}
	}
	return lines
}

// rankWords returns "rank 3", or "ranks 3-5, 7".
func rankWords(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return "ranks " + rankList(ranks)
}

// late reports whether a rank is known to have the communicator of a collective, and not
// to have called the collective.
func (w *waits) late(rank int, k collective) bool {
	h, ok := w.holder(rank, k.id)
	if h.listed {
		return h.seq < k.seq
	}
	return ok && !w.hasMoreComms(rank)
}

// needsAll reports whether a collective call ends on a rank only after all ranks have made
// it.
func needsAll(name string) bool {
	for _, prefix := range [...]string{"Bcast", "Scatter", "Gather", "Scan", "Exscan", "Request."} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return name != "Reduce"
}

// observe returns the answers of an inspection as a round.
func (r *run) observe(a *inspection) round {
	o := round{states: make([]*wire.RankState, len(r.ranks)), silent: make([]bool, len(r.ranks))}
	for i := range o.silent {
		h := r.ranks[i].host
		o.silent[i] = a.silent[h] || r.hosts[h].state == hostLost
	}
	for _, g := range a.groups {
		for _, rank := range g.Ranks {
			o.states[rank], o.silent[rank] = g.State, g.NoAnswer
		}
	}
	return o
}
