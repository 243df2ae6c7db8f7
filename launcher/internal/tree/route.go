package tree

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// routes records which ranks belong to which subtree, so that messages that go down find their way.
type routes struct {
	runs    []route // which ranks belong to which subtree, in ascending order of ranks
	perRank bool    // Prepare.PerRank: each Output holds the bytes of one rank
	tee     bool    // Prepare.Tee: there is also Output with the lines of several ranks
	stdin   stdin
}

// route is a range of consecutive ranks of a group that belong to one subtree.
type route struct {
	first, count int // numbers in the job
	m            *subtree
	group        *group
}

// stdin counts bytes of standard input. For each subtree m that reads standard input (a reader),
// given <= m.taken <= sent. sent-given is at most proto.Window.
type stdin struct {
	sent  int64 // bytes sent to each reader
	given int64 // bytes for which this node has sent credit upward: all readers have taken them
	slow  int   // number of readers m with m.taken == given
}

// down handles a message that goes down the tree: from gorun at the root, from the parent at an
// agent. An error means that the message is invalid.
func (n *Node) down(m proto.Message) error {
	if n.closing {
		return nil
	}
	if n.ending {
		return n.downLast(m)
	}
	switch m := m.(type) {
	case proto.Prepare:
		return n.prepare(m)
	case proto.FilePart:
		return n.filePart(m)
	case proto.Start:
		return n.start(m)
	case proto.Release:
		return n.release(m)
	case proto.Reply:
		if to := n.rankOf(m.Rank); to != nil && to.live() {
			to.budget++ // the rank may send another Request
			to.send(m)
		}
	case proto.Credit:
		return n.credits(m)
	case proto.OutputClosed:
		n.closeOutput(m)
		n.sendAll(m)
	case proto.Stdin:
		return n.input(m)
	case proto.Inspect:
		return n.ask(m, m.Stacks)
	case proto.Measure:
		return n.ask(m, false)
	case proto.Capture:
		return n.ask(m, false)
	case proto.Fetch:
		return n.fetch(m)
	case proto.AskTime:
		return n.askTime(m)
	case proto.Watch:
		return n.toGroup(m, m.Group)
	case proto.RanksFailed:
		return n.toGroup(m, m.Group)
	case proto.End:
		if m.Only > 0 {
			return n.toGroup(m, m.Only)
		}
		n.sendAll(m)
	case proto.Dismiss:
		return n.dismiss(m)
	case proto.Signal:
		n.sendAll(m)
	case proto.Bye:
		n.shutDown()
	default:
		return fmt.Errorf("%w: %T from above", proto.ErrFrame, m)
	}
	return nil
}

// downLast does the work of down while the agent ends its ranks and the parent still runs.
func (n *Node) downLast(m proto.Message) error {
	switch m := m.(type) {
	case proto.Credit:
		return n.credits(m)
	case proto.OutputClosed:
		n.closeOutput(m)
		n.sendAll(m)
	case proto.Signal:
		n.sendAll(m)
	case proto.End: // a second End may shorten the grace period
		if m.Only > 0 {
			return nil // all groups are ending
		}
		n.sendAll(m)
		n.after(min(max(m.Grace, 0), time.Hour)+endLimit, n.shutDown)
	case proto.Bye:
		n.shutDown()
	}
	return nil
}

// credits handles credit from the parent: this node may send it c.Bytes more bytes of output.
func (n *Node) credits(c proto.Credit) error {
	if n.parent == nil || c.Bytes <= 0 || c.Bytes > proto.Window-n.credit {
		return fmt.Errorf("%w: credit for %d bytes", proto.ErrFrame, c.Bytes)
	}
	n.credit += c.Bytes
	return nil
}

// sendAll sends a message to all live subtrees.
func (n *Node) sendAll(m proto.Message) {
	n.sendTo(m, func(*subtree) bool { return true })
}

// sendTo sends a message to the live subtrees for which selects returns true.
func (n *Node) sendTo(m proto.Message, selects func(*subtree) bool) {
	f := &frame{m: m, shared: true}
	for _, to := range n.subtrees {
		switch {
		case !to.live() || !selects(to):
		case to.procs != nil:
			if p, ok := m.(proto.FilePart); ok {
				n.stored.add(n.flowControl, len(p.Data))
			}
			to.procs.Do(m)
		default:
			to.link.sendFrame(f)
		}
	}
}

func (n *Node) wrongTime(m proto.Message) error {
	return fmt.Errorf("%w: %T at the wrong time", proto.ErrFrame, m)
}

// prepare makes a group: it records which ranks run where, and sends each subtree that takes part a
// Prepare with only its own plans.
func (n *Node) prepare(p proto.Prepare) error {
	g := n.world
	switch id := p.Card.Group; {
	case id == 0 && g.stage == stageUp:
	case id > n.lastGroup && g.stage == stageStarted:
		g = newGroup(id, len(n.subtrees))
	default:
		return n.wrongTime(p)
	}
	for i, plan := range p.Plans {
		if n.subtreeOf(plan.Index) == nil || i > 0 && p.Plans[i-1].Index >= plan.Index {
			return fmt.Errorf("%w: plan of host %d", proto.ErrFrame, plan.Index)
		}
	}
	if err := n.setRoutes(g, p.Plans); err != nil {
		return err
	}
	g.stage, g.first = stagePrepared, p.First
	if g == n.world {
		n.grace, n.perRank, n.tee = min(max(p.Grace, 0), time.Hour), p.PerRank, p.Tee
	} else {
		n.groups, n.lastGroup = append(n.groups, g), g.id
	}
	zero := n.rankOf(0)
	plans := make([][]proto.Plan, len(n.subtrees))
	rest := p.Plans
	for i, m := range n.subtrees {
		k := slices.IndexFunc(rest, func(plan proto.Plan) bool { return plan.Index >= m.hi })
		if k < 0 {
			k = len(rest)
		}
		plans[i] = slices.DeleteFunc(slices.Clone(rest[:k]), func(plan proto.Plan) bool { return plan.Index < m.head })
		rest = rest[k:]
		for _, plan := range plans[i] {
			g.shares[i].ranks += len(plan.Ranks)
			if g != n.world && !m.live() && len(plan.Ranks) > 0 {
				g.prepared.Failed = append(g.prepared.Failed, proto.HostError{Index: plan.Index, Cause: "the connection with the host is lost"})
			}
		}
	}
	n.begin(g, phasePrepare, g.in)
	for i, m := range n.subtrees {
		ranks := g.shares[i].ranks
		m.ranks += ranks
		m.budget += budgetPerRank * ranks
		if g == n.world {
			if m.readsStdin = m.live() && ranks > 0 && (p.Stdin == "all" || p.Stdin == "rank0" && m == zero); m.readsStdin {
				n.stdin.slow++
			}
		}
		if !m.live() || !g.in(m) {
			continue
		}
		if m.procs != nil && len(plans[i]) == 0 {
			plans[i] = []proto.Plan{{Index: n.l.Index}}
		}
		own := p
		own.Plans = plans[i]
		m.send(own)
	}
	return nil
}

// setRoutes adds the routes of a group.
func (n *Node) setRoutes(g *group, plans []proto.Plan) error {
	var all []route
	for _, plan := range plans {
		m := n.subtreeOf(plan.Index)
		for _, r := range plan.Ranks {
			if k := len(all) - 1; k >= 0 && all[k].m == m && all[k].first+all[k].count == r.Rank {
				all[k].count++
				continue
			}
			all = append(all, route{r.Rank, 1, m, g})
		}
	}
	slices.SortFunc(all, func(a, b route) int { return cmp.Compare(a.first, b.first) })
	runs := all[:0]
	next := 0 // lowest number that a rank of the group may have
	if k := len(n.runs) - 1; k >= 0 {
		next = n.runs[k].first + n.runs[k].count
	}
	for _, r := range all {
		k := len(runs) - 1
		switch {
		case r.first < next:
			return fmt.Errorf("%w: rank %d in two places, or in none", proto.ErrFrame, r.first)
		case k >= 0 && runs[k].m == r.m && runs[k].first+runs[k].count == r.first:
			runs[k].count += r.count
		default:
			runs = append(runs, r)
		}
		next = r.first + r.count
	}
	n.runs = append(n.runs, runs...)
	g.ranks = len(runs) > 0
	return nil
}

// rankOf returns the subtree in which a rank runs: that of this node's own process manager, or that
// of a child. It returns nil if the rank runs in none of them.
func (n *Node) rankOf(rank int) *subtree {
	if r := n.routeOf(rank); r != nil {
		return r.m
	}
	return nil
}

// routeOf returns the route of a rank; nil: it runs neither here nor below.
func (n *Node) routeOf(rank int) *route {
	i, found := slices.BinarySearchFunc(n.runs, rank, func(r route, rank int) int { return cmp.Compare(r.first, rank) })
	if !found {
		i--
	}
	if i < 0 || rank-n.runs[i].first >= n.runs[i].count {
		return nil
	}
	return &n.runs[i]
}

// runsIn reports whether a rank belongs to a group and runs in a subtree. rank is its number in the
// job.
func (n *Node) runsIn(m *subtree, group, rank int) bool {
	r := n.routeOf(rank)
	return r != nil && r.m == m && r.group.id == group
}

// streamIn does what runsIn does for the rank of a group.
func (n *Node) streamIn(m *subtree, group, rank int) bool {
	g := n.find(group)
	return g != nil && rank >= 0 && n.runsIn(m, group, g.first+rank)
}

// filePart sends a part of a file to the subtrees that need it. A subtree that needs only other files
// gets the last part without data, because Last ends the staging.
func (n *Node) filePart(p proto.FilePart) error {
	g, err := n.wanted(p, p.Group)
	if g == nil {
		return err
	}
	if g.stage != stagePrepared || !g.merge[phasePrepare].sent {
		return n.wrongTime(p)
	}
	if state := &g.merge[phaseStage]; !state.open && !state.sent {
		n.begin(g, phaseStage, func(m *subtree) bool { return len(g.of(m).needs) > 0 })
	}
	needs := func(m *subtree) bool {
		_, ok := g.of(m).needs[p.Hash]
		return ok
	}
	n.sendTo(p, needs)
	if p.Last {
		p.Data = nil
		n.sendTo(p, func(m *subtree) bool { return len(g.of(m).needs) > 0 && !needs(m) })
	}
	return nil
}

// ask sends a question to all subtrees. From then on each of their hosts may answer once and, if
// ranksAnswer, each of their ranks may.
func (n *Node) ask(question proto.Message, ranksAnswer bool) error {
	if n.world.stage != stageStarted {
		return n.wrongTime(question)
	}
	for _, m := range n.subtrees {
		m.budget += m.hi - m.lo
		if ranksAnswer {
			m.budget += m.ranks
		}
	}
	n.sendAll(question)
	return nil
}

// fetch passes on a Fetch to the subtree of its host. If the subtree is lost, fetch drops it: gorun
// gets Lost instead of a Part.
func (n *Node) fetch(f proto.Fetch) error {
	m := n.subtreeOf(f.Index)
	if m == nil || n.world.stage != stageStarted {
		return n.wrongTime(f)
	}
	if m.live() && f.Index >= m.head {
		m.fetching++
		m.send(f)
	}
	return nil
}

// askTime passes on an AskTime to the subtree of its host, or drops it as fetch does.
func (n *Node) askTime(a proto.AskTime) error {
	m := n.subtreeOf(a.Index)
	if m == nil || n.world.stage < stageUp {
		return n.wrongTime(a)
	}
	if m.live() && a.Index >= m.head {
		m.asked++
		m.send(a)
	}
	return nil
}

func (n *Node) start(s proto.Start) error {
	g, err := n.wanted(s, s.Group)
	if g == nil {
		return err
	}
	if g.stage != stagePrepared || !g.merge[phasePrepare].sent {
		return n.wrongTime(s)
	}
	g.stage = stageStarted
	n.begin(g, phaseStart, g.in)
	n.begin(g, phaseEnd, g.in)
	n.nextFence(g, 1)
	n.sendTo(s, g.in)
	return nil
}

func (n *Node) nextFence(g *group, number int) {
	g.fence = proto.Fence{Group: g.id, N: number}
	n.begin(g, phaseFence, func(m *subtree) bool { return g.of(m).ranks > 0 })
}

func (n *Node) release(r proto.Release) error {
	g, err := n.wanted(r, r.Group)
	if g == nil {
		return err
	}
	if g.stage != stageStarted || r.N != g.fence.N || !g.merge[phaseFence].sent {
		return n.wrongTime(r)
	}
	n.sendTo(r, func(m *subtree) bool { return g.of(m).ranks > 0 })
	n.nextFence(g, r.N+1)
	return nil
}

// input sends standard input to all subtrees that read it.
func (n *Node) input(in proto.Stdin) error {
	if n.world.stage != stageStarted || n.stdin.sent+int64(len(in.Data))-n.stdin.given > proto.Window {
		return n.wrongTime(in)
	}
	n.stdin.sent += int64(len(in.Data))
	n.sendTo(in, func(m *subtree) bool { return m.readsStdin })
	n.giveStdin()
	return nil
}

// stdinTaken handles StdinCredit of a subtree: all its ranks that read standard input have taken
// bytes more bytes.
func (n *Node) stdinTaken(m *subtree, bytes int64) error {
	if bytes <= 0 || bytes > n.stdin.sent-m.taken {
		return fmt.Errorf("%w: credit for %d bytes of standard input", proto.ErrFrame, bytes)
	}
	if m.readsStdin && m.taken == n.stdin.given {
		n.stdin.slow--
	}
	m.taken += bytes
	n.giveStdin()
	return nil
}

// leaveStdin records that a subtree no longer reads standard input, because its ranks have ended or
// it is lost.
func (n *Node) leaveStdin(m *subtree) {
	if m.readsStdin {
		if m.readsStdin = false; m.taken == n.stdin.given {
			n.stdin.slow--
		}
		n.giveStdin()
	}
}

// giveStdin sends credit upward for the bytes that all readers have taken. It searches the subtrees
// only if each reader has taken something since the last credit, so its average cost is constant.
// Afterwards n.stdin.slow is 0 only if there is no reader.
func (n *Node) giveStdin() {
	if n.stdin.slow > 0 {
		return
	}
	least := n.stdin.sent
	for _, m := range n.subtrees {
		if m.readsStdin {
			least = min(least, m.taken)
		}
	}
	more := least - n.stdin.given
	n.stdin.given = least
	for _, m := range n.subtrees {
		if m.readsStdin && m.taken == least {
			n.stdin.slow++
		}
	}
	if more > 0 {
		n.up(proto.StdinCredit{Bytes: int(more)})
	}
}
