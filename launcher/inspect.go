package launcher

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/internal/ui"
)

// inspectLimit is how long gorun waits in one round of an inspection for the answers of the hosts.
// A host waits for the answers of its ranks for a shorter time, one second.
const inspectLimit = 3 * time.Second

// The bounds of an inspection.
const (
	inspectRounds = 5 // most rounds of one inspection
	// inspectRepeat is the time, from the beginning of the inspection, after which no further round
	// begins.
	inspectRepeat = 4 * time.Second
	// inspectTime is the longest time of an inspection, including the time to write stacks to
	// files.
	inspectTime = inspectRepeat + inspectLimit + stacksTime
)

// inspectRequest asks [run.control] to find out what the ranks do.
type inspectRequest struct {
	stacks bool   // also write the stacks of the ranks' goroutines to files
	dir    string // directory for these files; "": a new temporary directory
	// then is called once, with the answer, by the goroutine that runs [run.control] or that ends the run.
	// If run.control has ended, the goroutine that has written the files calls it. It must not block.
	then func(a inspected)
}

// inspected is the answer to an inspectRequest.
type inspected struct {
	lines []string // text for the user
	weft  bool     // at least one rank is a weft program that has called Init

	// What lines say about collectives that wait for ranks, and about deadlocks.
	late      []ui.Late
	deadlocks []string
}

// inspection asks all ranks what they do, in one or more rounds. In each round gorun sends the
// hosts an Inspect, and they answer with Inspected. Further rounds follow only if ranks seem to be
// in a deadlock: see deadlock.go. An inspection answers all requests that were waiting when it
// began. Later requests wait for the next inspection. So a request waits for at most one other
// inspection, regardless of the number of requests.
type inspection struct {
	requests []inspectRequest

	n      int       // Inspect.N of the current round
	first  int       // Inspect.N of the first round, the only round that asks for stacks
	rounds int       // number of rounds that have begun
	until  time.Time // no round begins after this time
	// silent is true, by host index, for a host that has been asked in this round and has not
	// answered. Hosts that have answered have no entry.
	silent map[int]bool
	groups []proto.Group          // the answers of the hosts in this round; they have the numbers of ranks in the job
	last   map[int]string         // by number of a rank in no call: what it did last, by the answers in this round
	of     map[int]*groupAnswers  // by number of a group
	files  map[string]*stackFiles // the files of stacks, by inspectRequest.dir; empty: no request wants stacks
}

// lateInspection is the message of a timer to [run.control]: the time for answers to the Inspect
// whose N is n is over.
type lateInspection struct{ n int }

// filesWritten is a message to [run.control]: gorun has written the stacks to the files in one
// directory, or has failed to do so. requests are the requests for these files, and answer is the
// answer to all of them.
type filesWritten struct {
	requests []inspectRequest
	answer   inspected
}

func (m filesWritten) reply() {
	for _, q := range m.requests {
		q.then(m.answer)
	}
}

// inspect begins an inspection for a request. It queues the request if an inspection is under way
// or its files are being written. If no rank runs, inspect answers the request at once.
func (r *run) inspect(q inspectRequest) {
	if r.phase != phaseRunning {
		r.refuseInspection(q)
		return
	}
	r.inspectQueue = append(r.inspectQueue, q)
	r.nextInspection()
}

// refuseInspection answers a request when no rank runs.
func (r *run) refuseInspection(q inspectRequest) {
	q.then(inspected{lines: []string{"no rank runs" + r.during()}})
}

// askHosts begins a round of an inspection: it sends Inspect to all hosts, and waits for the
// answers of those that have ranks and are not lost. In the first round, Inspect also asks for
// stacks, if a request wants them. askHosts does not block.
func (r *run) askHosts(a *inspection) {
	r.inspectSeq++
	a.n, a.rounds, a.silent, a.groups, a.last = r.inspectSeq, a.rounds+1, make(map[int]bool), nil, make(map[int]string)
	if a.rounds == 1 {
		a.first = a.n
	}
	for i := range r.hosts {
		if r.hosts[i].state != hostLost && len(r.ranksOn(i)) > 0 {
			a.silent[i] = true
		}
	}
	r.node.Do(proto.Inspect{N: a.n, Stacks: len(a.files) > 0 && a.rounds == 1})
	late := lateInspection{a.n}
	time.AfterFunc(inspectLimit, func() { r.mail.post(late) })
}

// stacksOf handles Stacks: it queues the stacks of a rank to be written by the inspection under
// way. Stacks answer the Inspect of the first round, but those of a slow rank may arrive during a
// later round.
func (r *run) stacksOf(m proto.Stacks) {
	if a := r.inspecting; a != nil && m.N == a.first {
		for _, f := range a.files {
			f.add(m)
		}
	}
}

// hostInspected handles Inspected, the answer of a host about its ranks. It ignores an answer to an
// earlier Inspect. When all hosts have answered, the round ends.
func (r *run) hostInspected(m proto.Inspected) {
	a := r.inspecting
	if a == nil || m.N != a.n || !a.silent[m.Index] {
		return
	}
	delete(a.silent, m.Index)
	a.groups = append(a.groups, m.Groups...)
	for _, l := range m.Last {
		a.last[l.Rank] = l.Text
	}
	if len(a.silent) == 0 {
		r.endRound()
	}
}

// endRound ends a round. It begins another round if that can make a possible deadlock certain,
// unless the inspection has reached one of its bounds. Otherwise it ends the inspection and answers
// the requests. It answers requests for stacks only when the files are written or can no longer be
// written. The next inspection begins only then, too, because the files of both may have the same
// names.
func (r *run) endRound() {
	a := r.inspecting
	again := false
	var waiting []groupWaits
	for _, g := range r.groups {
		if g.id > 0 && !g.active() {
			continue
		}
		v := a.answers(g)
		now := r.observe(g, v)
		w := groupWaits{g, v, now, newWaits(now, v.before)}
		waiting = append(waiting, w)
		again = again || w.again()
	}
	if again && a.rounds < inspectRounds && time.Now().Before(a.until) && r.phase == phaseRunning {
		for _, w := range waiting {
			w.answers.before = &w.now
			for rank, s := range w.now.states {
				if s != nil {
					w.answers.known[rank] = s
				}
			}
		}
		r.askHosts(a)
		return
	}
	r.inspecting = nil
	var answer inspected
	for _, w := range waiting {
		one := r.summary(w.group, w.answers, w.waits)
		prefix := ""
		if w.group.id > 0 {
			prefix = fmt.Sprintf("group %d: ", w.group.id)
		}
		for _, line := range one.lines {
			answer.lines = append(answer.lines, prefix+line)
		}
		for _, line := range one.deadlocks {
			answer.deadlocks = append(answer.deadlocks, prefix+line)
		}
		answer.late = append(answer.late, one.late...)
		answer.weft = answer.weft || len(w.answers.known) > 0
	}
	answer.lines = append(answer.lines, r.lastLines(a.last)...)
	for _, g := range a.groups {
		answer.weft = answer.weft || g.State != nil || g.NoAnswer
	}
	for dir, f := range a.files {
		written := filesWritten{answer: answer}
		for _, q := range a.requests {
			if q.stacks && q.dir == dir {
				written.requests = append(written.requests, q)
			}
		}
		r.writing++
		// The goroutine ends when the files are written, or after stacksTime. [run.close] waits for
		// it.
		r.background.Go(func() {
			written.answer.lines = append(slices.Clone(answer.lines), f.finish())
			if !r.mail.post(written) {
				written.reply()
			}
		})
	}
	for _, q := range a.requests {
		if !q.stacks {
			q.then(answer)
		}
	}
	r.nextInspection()
}

// maxLast is the number of ranks whose last messages and calls an answer names.
const maxLast = 8

// lastLines returns a line for each of the first ranks of last: what the rank did last.
func (r *run) lastLines(last map[int]string) (lines []string) {
	for i, number := range slices.Sorted(maps.Keys(last)) {
		if i == maxLast {
			return append(lines, fmt.Sprintf("… and what %s did last", plural(len(last)-i, "more rank")))
		}
		if r.valid(number) {
			lines = append(lines, "rank "+r.nameOfRank(number)+" last: "+last[number])
		}
	}
	return lines
}

// stacksWritten handles filesWritten: it answers the requests, and begins the next inspection if
// requests wait for one and no other files are being written.
func (r *run) stacksWritten(m filesWritten) {
	r.writing--
	m.reply()
	r.nextInspection()
}

// nextInspection begins an inspection for all requests in inspectQueue. It does nothing if there
// are no such requests, if an inspection is under way, or if files of the last inspection are still
// being written. If no rank runs any more, it only answers the requests.
func (r *run) nextInspection() {
	if len(r.inspectQueue) == 0 || r.inspecting != nil || r.writing > 0 {
		return
	}
	list := r.inspectQueue
	r.inspectQueue = nil
	if r.phase != phaseRunning {
		for _, q := range list {
			r.refuseInspection(q)
		}
		return
	}
	a := &inspection{requests: list, until: time.Now().Add(inspectRepeat), of: make(map[int]*groupAnswers), files: make(map[string]*stackFiles)}
	for _, q := range list {
		if q.stacks && a.files[q.dir] == nil {
			a.files[q.dir] = newStackFiles(q.dir, len(r.ranks), r.rankNames())
		}
	}
	r.inspecting = a
	r.askHosts(a)
}

// rankNames returns the names of all ranks, or nil if none was spawned.
func (r *run) rankNames() (names []string) {
	if len(r.groups) > 1 {
		for i := range r.ranks {
			names = append(names, r.nameOfRank(i))
		}
	}
	return names
}

// dropRequests answers all requests that have no answer yet, except those that wait for a goroutine
// that writes files, which answers them. It also closes the mailbox, so that no further requests come.
func (r *run) dropRequests() {
	list := r.inspectQueue
	if a := r.inspecting; a != nil {
		list = append(a.requests, list...)
		for _, f := range a.files {
			f.abandon()
		}
	}
	r.inspecting, r.inspectQueue = nil, nil
	var measures []measureRequest
	for _, m := range r.mail.close() {
		switch m := m.(type) {
		case filesWritten:
			m.reply()
		case inspectRequest:
			list = append(list, m)
		case stateRequest:
			m.then(r.state())
		case captureRequest:
			m.then(capturedFiles{})
		case measureRequest:
			measures = append(measures, m)
		}
	}
	r.dropMeasurements(measures)
	if c := r.capturing; c != nil {
		r.capturing = nil
		c.then(capturedFiles{})
	}
	for _, q := range list {
		q.then(inspected{lines: []string{jobEnded}})
	}
}

const jobEnded = "the job has ended"

// printInspected queues title and the lines of a for stderr, with no other output between them. It
// does not block.
func (s *session) printInspected(title string, a inspected) {
	var b strings.Builder
	b.WriteString("gorun: " + title + "\n")
	for _, l := range a.lines {
		b.WriteString("gorun:   " + l + "\n")
	}
	s.out.print(b.String())
}

// summary says what the ranks of a group do. Its lines are first a line for each set of ranks that do the
// same, then a line for each collective that waits for ranks, then the deadlocks. If a rank has not
// answered in the last round but has answered in an earlier one, its line has the earlier answer,
// too.
func (r *run) summary(of *group, a *groupAnswers, w *waits) (sum inspected) {
	var list []*sameCalls
	at := make(map[string]*sameCalls)
	add := func(rank int, parts, peers []string, seqs string) {
		if s := a.known[rank]; s != nil && w.silent[rank] {
			first := parts[0] + "; before: "
			parts, peers, seqs = groupText(proto.Group{State: s})
			parts[0] = first + parts[0]
		}
		key := strings.Join(parts, "\x00") + "\x00\x00" + seqs
		e := at[key]
		if e == nil {
			e = &sameCalls{parts: parts, seqs: seqs}
			at[key] = e
			list = append(list, e)
		}
		e.ranks, e.peers = append(e.ranks, rank), append(e.peers, peers)
	}
	known := make([]bool, len(w.states))
	slices.SortStableFunc(a.groups, func(x, y proto.Group) int { return cmp.Compare(slices.Min(x.Ranks), slices.Min(y.Ranks)) })
	for _, g := range a.groups {
		parts, peers, seqs := groupText(g)
		for _, rank := range g.Ranks {
			known[rank] = true
			add(rank, parts, peers, seqs)
		}
	}
	for rank, ok := range known {
		switch h := r.ranks[of.first+rank].host; {
		case ok:
		case r.hosts[h].state == hostLost:
			add(rank, []string{"lost with host " + r.hosts[h].Name}, nil, "")
		case a.silent[h]:
			add(rank, []string{"host " + r.hosts[h].Name + " has not answered"}, nil, "")
		default:
			add(rank, []string{"has ended"}, nil, "")
		}
	}
	texts := make(map[string]int)
	for _, e := range list {
		slices.Sort(e.ranks)
		texts[strings.Join(e.parts, "")]++
	}
	slices.SortStableFunc(list, func(x, y *sameCalls) int {
		return cmp.Or(cmp.Compare(len(y.ranks), len(x.ranks)), cmp.Compare(x.ranks[0], y.ranks[0]))
	})
	for i, e := range list {
		if i == maxGroups {
			sum.lines = append(sum.lines, fmt.Sprintf("… and %s more that do other things", plural(len(list)-i, "group")))
			break
		}
		line := e.ranksText() + ": " + e.callsText()
		if texts[strings.Join(e.parts, "")] > 1 && e.seqs != "" {
			line += ", " + e.seqs
		}
		sum.lines = append(sum.lines, line)
	}
	for _, l := range w.lateCalls() {
		sum.lines = append(sum.lines, l.String())
		sum.late = append(sum.late, ui.Late{
			Group: of.id, Op: l.call.Name, Comm: l.call.Comm, Seq: l.call.Seq,
			Ranks: namesOf(of, l.late), Silent: namesOf(of, l.silent),
		})
	}
	sum.deadlocks = w.deadlocks()
	sum.lines = append(sum.lines, sum.deadlocks...)
	return sum
}

// namesOf returns ranks of a group as text, such as "rank 3" or "ranks 3-5, 7", in a spawned group with
// the number of the group. It returns "" if there are none.
func namesOf(g *group, ranks []int) string {
	switch {
	case len(ranks) == 0:
		return ""
	case g.id > 0:
		return fmt.Sprintf("%s of group %d", rankWords(ranks), g.id)
	}
	return rankWords(ranks)
}
