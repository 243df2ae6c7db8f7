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

// inspectLimit bounds the time that gorun waits for the hosts' answers about their ranks. A host
// waits one second for its ranks.
const inspectLimit = 3 * time.Second

// The bounds of an inspection.
const (
	inspectRounds = 5
	inspectRepeat = 4 * time.Second // after its begin; no further round begins after that
	inspectTime   = inspectRepeat + inspectLimit + stacksTime
)

// inspectRequest asks what the ranks do. control calls then with the answer.
type inspectRequest struct {
	stacks bool   // also write the ranks' stacks to files
	dir    string // for these files; "": a new temporary directory
	then   func(a inspected)
}

// inspected is the answer to an inspectRequest.
type inspected struct {
	lines []string
	weft  bool // at least one rank is a weft program that has called Init
}

// inspection finds out what the ranks do, in one or more rounds. It serves all requests that waited
// when it began. So a request waits for at most one other inspection, regardless of how many
// processes ask. If ranks seem to be in a deadlock, gorun asks all ranks again: see deadlock.go.
type inspection struct {
	requests []inspectRequest

	n      int // number of the Inspect of this round
	first  int // number of the Inspect of the first round, which asks for the stacks
	rounds int
	until  time.Time               // no round begins after that
	before *round                  // the answers of the round before
	known  map[int]*wire.RankState // by rank: the last state that it has sent in an earlier round
	silent map[int]bool            // hosts that have not answered for their ranks
	groups []proto.Group
	files  map[string]*stackFiles // by directory; empty: no stacks are wanted
}

// lateInspection reports that the time for answers to Inspect n is over.
type lateInspection struct{ n int }

// filesWritten reports that gorun has written the stacks in one directory, or has failed to. It
// holds the requests for them, and their answer.
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

func (r *run) refuseInspection(q inspectRequest) {
	q.then(inspected{lines: []string{"no rank runs" + r.during()}})
}

// askHosts begins a round of an inspection. The first one asks for the stacks.
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

// stacksOf passes the stacks of a rank to the files of the inspection under way. Stacks that come
// too late for the first round may come during a later one.
func (r *run) stacksOf(m proto.Stacks) {
	if a := r.inspecting; a != nil && m.N == a.first {
		for _, f := range a.files {
			f.add(m)
		}
	}
}

// hostInspected handles a host's answer about its ranks.
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

// endRound begins another round, or answers the requests. A request for stacks gets its answer when
// its files are written. The next inspection begins when all files of this one are written, because
// its files may have the same names.
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
		r.background.Go(func() { // ends when the files are written, or after stacksTime; close waits for it
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

// stacksWritten answers requests whose stacks were written, and begins the next inspection if
// no other files are being written.
func (r *run) stacksWritten(m filesWritten) {
	r.writing--
	for _, q := range m.requests {
		q.then(m.answer)
	}
	r.nextInspection()
}

// nextInspection begins an inspection for all requests that wait, unless one is under way or
// its files are being written. If no rank runs any more, it answers the requests.
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

// dropInspections answers all requests when the run is over and its background goroutines have
// ended.
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

// printInspected writes what the ranks do to stderr, in one piece.
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
	maxGroups = 40
	maxRuns   = 8 // runs of consecutive ranks
	maxPeers  = 4
	maxLate   = 8
)

// sameCalls is a set of ranks whose calls differ only in their peers.
type sameCalls struct {
	ranks []int
	parts []string   // text of the calls, without the peers between the parts
	peers [][]string // by index in ranks, then by place between parts
	seqs  string     // identifies the collectives
}

// summary returns what the ranks do, in lines: one line for ranks that do the same, then the
// collectives that wait for ranks, then the deadlocks. If a rank has answered in an earlier round
// but not in the last one, its line has the earlier answer, too.
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

// ranksText returns the ranks as text: "rank 3", or "4 ranks (0-2, 7)".
func (e *sameCalls) ranksText() string {
	if len(e.ranks) == 1 {
		return fmt.Sprintf("rank %d", e.ranks[0])
	}
	return fmt.Sprintf("%d ranks (%s)", len(e.ranks), rankList(e.ranks))
}

// rankList returns sorted ranks as text, such as "0-2, 7". Of many runs it returns the
// first ones.
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

// callsText returns the calls as text, with the peers of all ranks.
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

// groupText returns what the ranks of a group do. The peers belong between the parts.
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

// callArguments writes the arguments of a call with say, and returns the ranks that the
// call receives from or sends to. place begins a new part after each of these. They are
// ranks of the communicator; callArguments adds the world's rank if it differs.
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
