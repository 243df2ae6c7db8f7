package launcher

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/internal/wire"
)

// The bounds of a report of deadlocks.
const (
	// maxCycles is the largest number of circles that the report names among the certain deadlocks,
	// and again among the possible ones.
	maxCycles = 4
	maxCycle  = 12 // most ranks of one circle that the report names
	maxDoubts = 4  // most lines that say why deadlocks are not certain
)

// deadlocks returns lines that say which ranks wait for each other in a circle, first those that
// certainly do, and then those that possibly do, with the reasons why that is not certain.
func (w *waits) deadlocks() (lines []string) {
	possible, certain := w.possible(), w.certain()
	lines = w.circles("deadlock: ", certain, nil)
	if slices.Equal(possible, certain) {
		return lines
	}
	lines = append(lines, w.circles("possible deadlock: ", possible, certain)...)
	return append(lines, w.doubts(possible, certain)...)
}

// circles returns lines about the ranks of set that are not in except. set is a result of
// [waits.stuck], so its ranks wait for each other. Each line begins with title. A line names the
// ranks of one circle, in which each rank waits for the next one and the last rank for the first
// one. If there are ranks that no line names, a last line counts them. except may be nil.
func (w *waits) circles(title string, set, except []bool) (lines []string) {
	skip := func(r int) bool { return !set[r] || except != nil && except[r] }
	// seen[r] is 0 if no walk has visited rank r. Otherwise it is 1 plus the rank at which that
	// walk began.
	seen := make([]int, len(set))
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
			// The walk has reached a rank that an earlier walk has visited, or one that is not to
			// be named.
			continue
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

// next returns a rank that the given rank waits for. The given rank is in a result of
// [waits.stuck]. If that rank waits in the same collective as the given rank, next goes on to the
// rank that it waits for, and so on, until it finds a rank that does not wait in the collective. If
// there is none, because the ranks of the collective wait for each other, next returns the rank
// that the given one waits for.
func (w *waits) next(rank int) int {
	// Any of the needs will do, because all of them name ranks of the same result of [waits.stuck].
	coll := w.needs[rank][0].coll
	if coll == (collective{}) {
		return w.needs[rank][0].rank
	}
	const none = -1 // in w.exits: the walk from the rank does not leave the collective
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

// cycleText returns a circle as text, such as "rank 0 waits for 1, 1 for 0". It begins with the
// lowest rank.
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

// doubts returns at most maxDoubts lines that say why the ranks of possible that are not in certain
// may continue.
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

// lateCall is a collective in which ranks wait for ranks that have not called it, or that may not have
// called it because they have not answered.
type lateCall struct {
	call   wire.RankCall // the call of a rank that waits
	late   []int         // the ranks that have not called it, ascending
	silent []int         // the ranks that have not answered, ascending
}

// lateCalls returns the collectives in which ranks wait for others, at most maxLate of them.
func (w *waits) lateCalls() (list []lateCall) {
	// peers has, by collective, the ranks for whose messages, or stores to shared memory, the calls
	// of the collective wait.
	peers := make(map[collective]map[int]bool)
	calls := make(map[collective]wire.RankCall)
	var order []collective
	for _, s := range w.states {
		if s == nil {
			continue
		}
		for _, c := range s.Calls {
			if k := (collective{c.ID, c.Seq}); c.Wait == wire.WaitCollective && !c.Connection {
				if peers[k] == nil {
					order = append(order, k)
					peers[k], calls[k] = make(map[int]bool), c
				}
				peers[k][c.World] = true
			}
		}
	}
	for _, k := range order {
		l := lateCall{call: calls[k]}
		ranks := slices.Collect(maps.Keys(peers[k]))
		if needsAll(l.call.Name) {
			for _, h := range w.holders[k.id] {
				ranks = append(ranks, h.rank)
			}
		}
		slices.Sort(ranks)
		for _, r := range slices.Compact(ranks) {
			switch waited := peers[k][r]; {
			case r < 0 || r >= len(w.states): // the answer is invalid
			case w.silent[r] && (waited || ofAllRanks(k.id)):
				l.silent = append(l.silent, r)
			case w.late(r, k):
				l.late = append(l.late, r)
			}
		}
		if len(l.late) == 0 && len(l.silent) == 0 {
			continue
		}
		if list = append(list, l); len(list) == maxLate {
			break
		}
	}
	return list
}

// String returns a line that names the ranks.
func (l *lateCall) String() string {
	line := fmt.Sprintf("comm.%s(%s) waits ", l.call.Name, l.call.Comm)
	switch {
	case len(l.silent) == 0:
		return line + "for " + rankWords(l.late)
	case len(l.late) == 0:
		return line + "perhaps for " + rankWords(l.silent) + ", which did not answer"
	default:
		return line + "for " + rankWords(l.late) + ", and perhaps for " + rankWords(l.silent) + ", which did not answer"
	}
}

// rankWords returns ranks as text, such as "rank 3" or "ranks 3-5, 7".
func rankWords(ranks []int) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return "ranks " + rankList(ranks)
}

// late reports whether a rank certainly has the communicator of collective k and has not called k.
func (w *waits) late(rank int, k collective) bool {
	h, ok := w.holder(rank, k.id)
	if h.listed {
		return h.seq < k.seq
	}
	return ok && !w.hasMoreComms(rank)
}

// needsAll reports whether a collective call returns on a rank only after all ranks have called it.
// name is the name of the call without "comm.". needsAll returns false for a request of a
// nonblocking collective, because its name does not say which collective it is.
func needsAll(name string) bool {
	for _, prefix := range [...]string{"Bcast", "Scatter", "Gather", "Scan", "Exscan", "Request."} {
		if strings.HasPrefix(name, prefix) {
			return false
		}
	}
	return name != "Reduce"
}
