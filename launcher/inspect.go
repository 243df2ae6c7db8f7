package launcher

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// inspectLimit is how long gorun waits in one round of an inspection for the answers of the hosts.
// It is longer than the time for which a host waits for the answers of its ranks, which is one
// second.
const inspectLimit = 3 * time.Second

// The bounds of an inspection.
const (
	inspectRounds = 5                                         // rounds of one inspection
	inspectRepeat = 4 * time.Second                           // since the inspection began; after this time it begins no further round
	inspectTime   = inspectRepeat + inspectLimit + stacksTime // the longest time of an inspection, with the writing of stacks
)

// inspectRequest is a request to find out what the ranks do.
type inspectRequest struct {
	stacks bool              // also write the stacks of the ranks' goroutines to files
	dir    string            // directory for these files; "": a new temporary directory
	then   func(a inspected) // called once, with the answer, by the goroutine that owns the run; must not block
}

// inspected is the answer to an inspectRequest.
type inspected struct {
	lines []string // text for the user
	weft  bool     // at least one rank is a weft program that has called Init
}

// inspection asks all ranks what they do, in one or more rounds. In each round gorun sends the
// hosts an Inspect, and they answer with Inspected. Further rounds follow only if ranks seem to be
// in a deadlock: see deadlock.go. An inspection answers all requests that were waiting when it
// began. So a request waits for at most one other inspection, regardless of the number of requests.
type inspection struct {
	requests []inspectRequest

	n      int                     // field N of the Inspect of this round
	first  int                     // field N of the Inspect of the first round, the only one that asks for stacks
	rounds int                     // number of rounds that have begun
	until  time.Time               // no round begins after this time
	before *round                  // the answers of the round before; nil: this is the first round
	known  map[int]*wire.RankState // by rank: the last answer of the rank in an earlier round; no entry: it gave none
	silent map[int]bool            // indexes of the hosts that have not answered in this round
	groups []proto.Group           // the answers of this round
	files  map[string]*stackFiles  // files of stacks, by directory; empty: no request wants stacks
}

// lateInspection is the message of a timer to control: the time for answers to Inspect n is over.
type lateInspection struct{ n int }

// filesWritten is a message to control: gorun has written the stacks to the files in one directory,
// or has failed to do so. requests are those that asked for these files, and answer is their
// answer.
type filesWritten struct {
	requests []inspectRequest
	answer   inspected
}

// inspect begins an inspection, or queues the request if one is under way.
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

// askHosts begins a round of an inspection: it sends Inspect to all hosts. In the first round,
// Inspect also asks for stacks, if a request wants them.
func (r *run) askHosts(a *inspection) {
	r.inspectSeq++
	a.n, a.rounds, a.silent, a.groups = r.inspectSeq, a.rounds+1, make(map[int]bool), nil
	if a.rounds == 1 {
		a.first = a.n
	}
	for i, p := range r.plans {
		if len(p.Ranks) > 0 && r.hosts[i].state != hostLost {
			a.silent[i] = true
		}
	}
	r.node.Do(proto.Inspect{N: a.n, Stacks: len(a.files) > 0 && a.rounds == 1})
	late := lateInspection{a.n}
	time.AfterFunc(inspectLimit, func() { r.mail.post(late) })
}

// stacksOf handles Stacks: it passes the stacks of a rank to the files of the inspection under way.
// They answer the Inspect of the first round, but a slow rank may send them during a later round.
func (r *run) stacksOf(m proto.Stacks) {
	if a := r.inspecting; a != nil && m.N == a.first {
		for _, f := range a.files {
			f.add(m)
		}
	}
}

// hostInspected handles Inspected, the answer of a host about its ranks. When all hosts have
// answered, the round ends.
func (r *run) hostInspected(m proto.Inspected) {
	a := r.inspecting
	if a == nil || m.N != a.n || !a.silent[m.Index] {
		return
	}
	delete(a.silent, m.Index)
	a.groups = append(a.groups, m.Groups...)
	if len(a.silent) == 0 {
		r.endRound()
	}
}

// endRound ends a round. It begins another round if that can make a possible deadlock certain.
// Otherwise it ends the inspection and answers the requests, those for stacks only when their files
// are written. The next inspection begins when all files of this one are written, because the files
// of both may have the same names.
func (r *run) endRound() {
	a := r.inspecting
	now := r.observe(a)
	w := newWaits(now, a.before)
	if w.again() && a.rounds < inspectRounds && time.Now().Before(a.until) && r.phase == phaseRunning {
		a.before = &now
		for rank, s := range now.states {
			if s != nil {
				a.known[rank] = s
			}
		}
		r.askHosts(a)
		return
	}
	r.inspecting = nil
	answer := inspected{lines: r.summary(a, w), weft: len(a.known) > 0}
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
		r.background.Go(func() { // ends when the files are written, at the latest after stacksTime; run.close waits for it
			written.answer.lines = append(slices.Clone(answer.lines), f.finish())
			r.mail.post(written)
		})
	}
	for _, q := range a.requests {
		if !q.stacks {
			q.then(answer)
		}
	}
	r.nextInspection()
}

// stacksWritten handles filesWritten: it answers the requests, and begins the next inspection if no
// other files are being written.
func (r *run) stacksWritten(m filesWritten) {
	r.writing--
	for _, q := range m.requests {
		q.then(m.answer)
	}
	r.nextInspection()
}

// nextInspection begins an inspection for all requests in inspectQueue. It does nothing if an
// inspection is under way, or if files of the last one are still being written. If no rank runs any
// more, it only answers the requests.
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
	a := &inspection{requests: list, until: time.Now().Add(inspectRepeat), known: make(map[int]*wire.RankState), files: make(map[string]*stackFiles)}
	for _, q := range list {
		if q.stacks && a.files[q.dir] == nil {
			a.files[q.dir] = newStackFiles(q.dir, len(r.ranks))
		}
	}
	r.inspecting = a
	r.askHosts(a)
}

// dropInspections answers all requests that have no answer yet. run.close calls it when the run is
// over and its background goroutines have ended. After it, the mailbox takes no more requests.
func (r *run) dropInspections() {
	list := r.inspectQueue
	if a := r.inspecting; a != nil {
		list = append(a.requests, list...)
		for _, f := range a.files {
			f.abandon()
		}
	}
	r.inspecting, r.inspectQueue = nil, nil
	for _, m := range r.mail.close() {
		switch m := m.(type) {
		case filesWritten:
			for _, q := range m.requests {
				q.then(m.answer)
			}
		case inspectRequest:
			list = append(list, m)
		}
	}
	for _, q := range list {
		q.then(inspected{lines: []string{jobEnded}})
	}
}

const jobEnded = "the job has ended"

// printInspected writes title and the lines of a to stderr, with no other output between them.
func (s *session) printInspected(title string, a inspected) {
	var b strings.Builder
	b.WriteString("gorun: " + title + "\n")
	for _, l := range a.lines {
		b.WriteString("gorun:   " + l + "\n")
	}
	s.out.print(b.String())
}

// The bounds of a summary.
const (
	maxGroups = 40 // lines about sets of ranks that do the same
	maxRuns   = 8  // runs of consecutive ranks, such as 0-2, in one list of ranks
	maxPeers  = 4  // peers of a call, if several ranks make the same call with different peers
	maxLate   = 8  // lines about collectives that wait for ranks
)

// sameCalls is a set of ranks whose calls differ only in their peers, the ranks that the calls send
// to or receive from. They share one line of the summary.
type sameCalls struct {
	ranks []int      // ascending when summary has sorted them
	parts []string   // text of the calls, cut where a peer belongs; there is a peer between each two parts
	peers [][]string // for each rank, as added: its peers, in the order of their places between the parts
	seqs  string     // numbers of the collectives, such as "its collective 5"; "": none
}

// summary returns what the ranks do, in lines: first a line for each set of ranks that do the same,
// then a line for each collective that waits for ranks, then the deadlocks. If a rank has not
// answered in the last round but in an earlier one, its line has the earlier answer, too.
func (r *run) summary(a *inspection, w *waits) []string {
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
	known := make([]bool, len(r.ranks))
	slices.SortStableFunc(a.groups, func(x, y proto.Group) int { return cmp.Compare(slices.Min(x.Ranks), slices.Min(y.Ranks)) })
	for _, g := range a.groups {
		parts, peers, seqs := groupText(g)
		for _, rank := range g.Ranks {
			known[rank] = true
			add(rank, parts, peers, seqs)
		}
	}
	for rank, ok := range known {
		switch h := r.ranks[rank].host; {
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
	var lines []string
	for i, e := range list {
		if i == maxGroups {
			lines = append(lines, fmt.Sprintf("… and %s more that do other things", plural(len(list)-i, "group")))
			break
		}
		line := e.ranksText() + ": " + e.callsText()
		if texts[strings.Join(e.parts, "")] > 1 && e.seqs != "" {
			line += ", " + e.seqs
		}
		lines = append(lines, line)
	}
	lines = append(lines, w.lateLines()...)
	return append(lines, w.deadlocks()...)
}

// ranksText returns the ranks of e as text, such as "rank 3" or "4 ranks (0-2, 7)".
func (e *sameCalls) ranksText() string {
	if len(e.ranks) == 1 {
		return fmt.Sprintf("rank %d", e.ranks[0])
	}
	return fmt.Sprintf("%d ranks (%s)", len(e.ranks), rankList(e.ranks))
}

// rankList returns ascending ranks as text, such as "0-2, 7". It names at most maxRuns runs of
// consecutive ranks, and then writes an ellipsis.
func rankList(ranks []int) string {
	var runs []string
	for len(ranks) > 0 {
		if len(runs) == maxRuns {
			runs = append(runs, "…")
			break
		}
		n := 1
		for n < len(ranks) && ranks[n] == ranks[0]+n {
			n++
		}
		text := strconv.Itoa(ranks[0])
		if n > 1 {
			text += "-" + strconv.Itoa(ranks[n-1])
		}
		runs, ranks = append(runs, text), ranks[n:]
	}
	return strings.Join(runs, ", ")
}

// callsText returns the calls of e as text. In each place for a peer it lists the different peers of
// all ranks, at most maxPeers of them.
func (e *sameCalls) callsText() string {
	var b strings.Builder
	b.WriteString(e.parts[0])
	for i, part := range e.parts[1:] {
		var peers []string
		for _, p := range e.peers {
			if text := p[i]; !slices.Contains(peers, text) {
				if len(peers) == maxPeers {
					peers = append(peers, "…")
					break
				}
				peers = append(peers, text)
			}
		}
		b.WriteString(strings.Join(peers, ", ") + part)
	}
	return b.String()
}

// groupText returns what the ranks of a group do: the fields parts, peers and seqs of a sameCalls.
// peers are the same for all ranks of the group.
func groupText(g proto.Group) (parts, peers []string, seqs string) {
	parts = []string{""}
	say := func(text string) { parts[len(parts)-1] += text }
	switch s := g.State; {
	case s == nil && g.NoAnswer:
		say("does not answer: " + g.Process)
	case s == nil:
		say("not in comm: " + g.Process)
	case len(s.Calls) == 0 && s.At == "":
		say("in no call of comm")
	case len(s.Calls) == 0:
		say(s.At)
	default:
		var numbers []string
		for i, c := range s.Calls {
			if i > 0 {
				say("; ")
			}
			say("comm." + c.Name)
			if c.Comm != "" {
				say("(" + c.Comm)
				peers = append(peers, callArguments(c, say, func() { parts = append(parts, "") })...)
				say(")")
			}
			if c.Where != "" {
				say(" at " + c.Where)
			} else {
				say(" under way")
			}
			if c.Seq > 0 {
				numbers = append(numbers, fmt.Sprintf("its collective %d", c.Seq))
			}
		}
		if s.More > 0 {
			say("; and " + plural(s.More, "more goroutine"))
		}
		seqs = strings.Join(numbers, ", ")
	}
	return parts, peers, seqs
}

// callArguments appends the arguments of a send, receive or probe to the current part of a text, by
// say. Where the peer belongs, it calls place, which begins a new part, and returns the peer: its
// rank in the communicator and, if that differs, its rank in the world. If the call accepts any
// rank, callArguments returns no peer. For other calls it does nothing.
func callArguments(c wire.RankCall, say func(string), place func()) (peers []string) {
	word := ", from "
	switch c.Wait {
	case wire.WaitSend:
		word = ", to "
	case wire.WaitRecv, wire.WaitProbe:
	default:
		return nil
	}
	if c.Peer < 0 {
		say(word + "any rank")
	} else {
		say(word)
		place()
		text := strconv.Itoa(c.Peer)
		if c.World != c.Peer {
			text += fmt.Sprintf(" (rank %d of the world)", c.World)
		}
		peers = []string{text}
	}
	if c.Tag < 0 {
		say(", any tag")
	} else {
		say(fmt.Sprintf(", tag %d", c.Tag))
	}
	return peers
}
