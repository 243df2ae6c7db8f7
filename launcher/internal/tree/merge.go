package tree

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// phase is a step of a job in which each subtree that takes part sends one merged answer upward:
// Up, Prepared, Staged, Started, Fence or Ended, in the order of the constants.
type phase int

const (
	phaseUp phase = iota
	phasePrepare
	phaseStage
	phaseStart
	phaseFence
	phaseEnd

	phases = iota
)

// merge is the state of one phase. A subtree owes at most one answer in each phase. left is the
// number of subtrees that owe one. A lost subtree owes nothing. If the head of a subtree fails in
// phaseUp, the subtree owes an answer again, that of the next head.
//
//	idle ──begin──► open ──left == 0──► sent
//	                 ▲                    │
//	                 └────────────────────┘ phaseFence begins again after each Release
type merge struct {
	open, sent bool
	left       int
}

// merges holds the state of all phases of a group, and what the subtrees have answered in those that
// are open.
type merges struct {
	merge    [phases]merge // by phase: how many subtrees must still answer
	prepared proto.Prepared
	staged   proto.Staged
	started  proto.Started
	fence    proto.Fence
	ended    proto.Ended
	// endHeld is not nil if all subtrees have ended, and Ended must be sent when the Output before it
	// is passed on: for each subtree, when source.passed has reached this number.
	endHeld []int64
}

// begin opens a phase of a group. The live subtrees for which selects returns true owe an answer. In phaseUp,
// subtrees with which the node is not connected yet owe one, too.
func (n *Node) begin(g *group, p phase, selects func(*subtree) bool) {
	g.merge[p] = merge{open: true}
	for _, m := range n.subtrees {
		if (m.live() || p == phaseUp) && selects(m) {
			n.owe(g, m, p)
		}
	}
	// If no subtree owes an answer, the phase completes at once. A fence does so only at an agent
	// that has lost all its hosts with ranks, because the parent waits for this agent's answer. The
	// root reports no such fence: otherwise fences without ranks would follow each other without end.
	if p != phaseFence || g.ranks && n.parent != nil {
		n.finishPhase(g, p)
	}
}

// owe records that a subtree must still send its answer in phase p of a group.
func (n *Node) owe(g *group, m *subtree, p phase) {
	if s := g.of(m); !s.owes[p] {
		s.owes[p] = true
		g.merge[p].left++
	}
}

// answer records that a subtree has sent its answer in phase p of a group. If the subtree did not have to send
// one, or has sent it before, answer returns an error.
func (n *Node) answer(g *group, m *subtree, p phase) error {
	s := g.of(m)
	if !s.owes[p] {
		return fmt.Errorf("%w: an answer in phase %d that was not expected", proto.ErrFrame, p)
	}
	s.owes[p] = false
	g.merge[p].left--
	return nil
}

// cancelOwed makes the node no longer wait for the answers of a lost subtree, in all phases of all
// groups.
func (n *Node) cancelOwed(m *subtree) {
	for _, g := range slices.Clone(n.groups) {
		s := g.of(m)
		for p := range phase(phases) {
			if s.owes[p] {
				s.owes[p] = false
				g.merge[p].left--
				n.finishPhase(g, p)
			}
		}
	}
}

// finishPhase sends the merged answer of a phase of a group if all subtrees have answered.
func (n *Node) finishPhase(g *group, p phase) {
	state := &g.merge[p]
	if !state.open || state.left > 0 {
		return
	}
	state.open, state.sent = false, true
	switch p {
	case phaseUp:
		g.stage = stageUp
		n.up(n.gathered())
	case phasePrepare:
		a := g.prepared
		g.prepared = proto.Prepared{}
		a.Group = g.id
		slices.SortFunc(a.Ports, func(a, b proto.HostPorts) int { return a.Index - b.Index })
		slices.Sort(a.Need)
		a.Need = slices.Compact(a.Need)
		sortErrors(a.Failed)
		sortErrors(a.NoMemory)
		n.up(a)
	case phaseStage:
		a := g.staged
		g.staged = proto.Staged{}
		a.Group = g.id
		sortErrors(a.Failed)
		n.up(a)
	case phaseStart:
		a := g.started
		g.started = proto.Started{}
		a.Group = g.id
		slices.SortFunc(a.Ranks, func(a, b proto.StartedRank) int { return a.Rank - b.Rank })
		n.up(a)
	case phaseFence:
		a := g.fence
		g.fence.Puts, g.fence.Waiting = nil, false
		n.up(a)
	case phaseEnd:
		n.hold(g) // forward sends Ended after the queued Output
	}
}

// self returns the description of the node's own host.
func (n *Node) self() proto.Agent {
	a := n.cfg.Self
	a.Index = n.l.Index
	return a
}

// gathered returns the merged answers of the subtrees to Launch, and frees their memory.
func (n *Node) gathered() proto.Up {
	var all proto.Up
	if n.cfg.Procs != nil {
		all.Agents = append(all.Agents, n.self())
	}
	for _, m := range n.subtrees {
		all.Agents = append(all.Agents, m.up.Agents...)
		all.Failed = append(append(all.Failed, m.failed...), m.up.Failed...)
		m.up, m.failed = proto.Up{}, nil
	}
	slices.SortFunc(all.Agents, func(a, b proto.Agent) int { return a.Index - b.Index })
	sortErrors(all.Failed)
	return all
}

func sortErrors(list []proto.HostError) {
	slices.SortStableFunc(list, func(a, b proto.HostError) int { return a.Index - b.Index })
}

// fromBelow handles a message from a subtree. An error means that the message is invalid; then the
// caller ends the subtree's link, or, for the own process manager, sends a Log.
func (n *Node) fromBelow(m *subtree, msg proto.Message) error {
	if err := n.check(m, msg); err != nil {
		return err
	}
	switch msg := clean(msg).(type) {
	case proto.Up:
		return n.childUp(m, msg)
	case proto.Prepared:
		g := n.find(msg.Group)
		if err := n.answer(g, m, phasePrepare); err != nil {
			return err
		}
		needs := make(map[string]struct{}, len(msg.Need))
		for _, hash := range msg.Need {
			needs[hash] = struct{}{}
		}
		g.of(m).needs = needs
		a := &g.prepared
		a.Ports, a.Need, a.Failed = append(a.Ports, msg.Ports...), append(a.Need, msg.Need...), append(a.Failed, msg.Failed...)
		a.NoMemory = append(a.NoMemory, msg.NoMemory...)
		n.finishPhase(g, phasePrepare)
	case proto.Staged:
		g := n.find(msg.Group)
		if err := n.answer(g, m, phaseStage); err != nil {
			return err
		}
		g.staged.Failed = append(g.staged.Failed, msg.Failed...)
		n.finishPhase(g, phaseStage)
	case proto.Started:
		g := n.find(msg.Group)
		if err := n.answer(g, m, phaseStart); err != nil {
			return err
		}
		a := &g.started
		a.Ranks = append(a.Ranks, msg.Ranks...)
		if f := msg.Failed; f != nil && (a.Failed == nil || f.Rank < a.Failed.Rank) {
			a.Failed = f
		}
		n.finishPhase(g, phaseStart)
	case proto.Fence:
		g := n.find(msg.Group)
		if msg.N != g.fence.N {
			return fmt.Errorf("%w: fence %d during fence %d", proto.ErrFrame, msg.N, g.fence.N)
		}
		if _, releases := m.unread(msg.Group); releases > 0 {
			return fmt.Errorf("%w: in fence %d before it has read the release of the fence before", proto.ErrFrame, msg.N)
		}
		if err := n.answer(g, m, phaseFence); err != nil {
			return err
		}
		g.fence.Waiting = g.fence.Waiting || msg.Waiting
		if g.fence.Puts == nil {
			g.fence.Puts = msg.Puts
		} else {
			maps.Copy(g.fence.Puts, msg.Puts)
		}
		n.finishPhase(g, phaseFence)
	case proto.Ended:
		g := n.find(msg.Group)
		if err := n.answer(g, m, phaseEnd); err != nil {
			return err
		}
		a := &g.ended
		a.Exits, a.Tails, a.Figures = append(a.Exits, msg.Exits...), append(a.Tails, msg.Tails...), append(a.Figures, msg.Figures...)
		if g == n.world {
			n.leaveStdin(m) // other groups read no input
		}
		n.finishPhase(g, phaseEnd)
	case proto.StdinCredit:
		return n.stdinTaken(m, int64(msg.Bytes))
	case proto.Output:
		return n.take(m, msg)
	case proto.Part:
		if m.fetching == 0 {
			return fmt.Errorf("%w: part of a file that nobody has asked for", proto.ErrFrame)
		}
		m.fetching--
		n.up(msg)
	case proto.Time:
		if m.asked == 0 {
			return fmt.Errorf("%w: a time that nobody has asked for", proto.ErrFrame)
		}
		m.asked--
		n.up(msg)
	case proto.State: // links keep only the newest State of each host, so there is no limit
		n.up(msg)
	case proto.Request, proto.Spawn:
		if replies, _ := m.unread(0); replies >= m.ranks {
			return fmt.Errorf("%w: it sends requests without reading the replies", proto.ErrFrame)
		}
		return n.relay(m, msg)
	case proto.Lost:
		if n.world.stage == stageLaunch {
			m.dropAgents(msg)
			return nil
		}
		return n.relay(m, msg)
	case proto.Aborted, proto.Exited, proto.Log, proto.Stacks, proto.Inspected, proto.Measured, proto.Captured:
		return n.relay(m, msg)
	default:
		return fmt.Errorf("%w: %T from a child", proto.ErrFrame, msg)
	}
	return nil
}

// Limits of the messages that relay passes on. For each host come at most one Lost and a few Logs.
// Each rank causes at most an Aborted, an Exited, and one Request or Spawn at a time. Each Inspect,
// Measure and Capture adds to the limits. The limit of a subtree is the sum of the limits of its
// hosts and ranks. So a node that only passes on what comes from below it never exceeds the limit that
// its parent sets for it.
const (
	budgetPerHost = 16
	budgetPerRank = 3
)

// relay passes on a message of a subtree that is not merged, such as Exited, and takes it from the
// subtree's budget. When only one message of the budget is left, relay returns an error. The last
// one is for the node's own report of this error.
func (n *Node) relay(m *subtree, msg proto.Message) error {
	if m.budget <= 1 {
		return fmt.Errorf("%w: it sends more messages than its hosts and ranks can cause", proto.ErrFrame)
	}
	m.budget--
	n.up(msg)
	return nil
}

// unread returns how many Replies, and how many Releases of a group, a subtree cannot have read yet,
// because they wait in the link's queue. For the own process manager it returns 0.
func (m *subtree) unread(group int) (replies, releases int) {
	if m.link == nil {
		return 0, 0
	}
	return m.link.unread(group)
}

// sendEnded sends Ended: all ranks of a group here and below have ended. The caller has passed on
// their output. If the node is ending and no other ranks run, sendEnded also shuts it down.
func (n *Node) sendEnded(g *group) {
	g.endHeld = nil
	a := g.ended
	g.ended = proto.Ended{}
	a.Group = g.id
	slices.SortFunc(a.Exits, func(a, b proto.Exit) int { return cmp.Compare(a.Rank, b.Rank) })
	slices.SortFunc(a.Tails, func(a, b proto.Tail) int { return cmp.Compare(a.Rank, b.Rank) })
	n.up(a)
	n.remove(g)
	if n.ending && n.allEnded() {
		n.shutDown()
	}
}

// childUp handles a child's answer to Launch. The answer must contain each host of the child's
// subtree once, from the head on. If it reports the head itself as failed, childUp returns a
// *hostError.
func (n *Node) childUp(m *subtree, up proto.Up) error {
	for _, f := range up.Failed {
		if f.Index == m.head {
			return &hostError{f}
		}
	}
	seen := make([]bool, m.hi-m.head)
	count := 0
	note := func(index int) bool {
		if !m.has(index, 1) || seen[index-m.head] {
			return false
		}
		seen[index-m.head] = true
		count++
		return true
	}
	for _, a := range up.Agents {
		if !note(a.Index) {
			return fmt.Errorf("%w: Up with host %d", proto.ErrFrame, a.Index)
		}
	}
	for _, f := range up.Failed {
		if !note(f.Index) {
			return fmt.Errorf("%w: Up with host %d", proto.ErrFrame, f.Index)
		}
	}
	if count != len(seen) {
		return fmt.Errorf("%w: Up with %d hosts instead of %d", proto.ErrFrame, count, len(seen))
	}
	if err := n.answer(n.world, m, phaseUp); err != nil {
		return err
	}
	m.up = up
	n.partialUp(up)
	n.finishPhase(n.world, phaseUp)
	return nil
}

// partialUp passes hosts that have answered Launch or have failed to Config.OnPartialUp.
func (n *Node) partialUp(some proto.Up) {
	if n.cfg.OnPartialUp != nil {
		n.cfg.OnPartialUp(some)
	}
}

// dropAgents handles a Lost from a child that has sent its Up, before this node has sent its own:
// the lost hosts become failed ones in Up, because gorun does not know of them yet.
func (m *subtree) dropAgents(lost proto.Lost) {
	m.up.Agents = slices.DeleteFunc(m.up.Agents, func(a proto.Agent) bool {
		gone := a.Index >= lost.First && a.Index-lost.First < lost.Count
		if gone {
			m.up.Failed = append(m.up.Failed, proto.HostError{Index: a.Index, Cause: lost.Cause})
		}
		return gone
	})
}

// subtreeLost reports that a subtree is lost, and continues without it.
func (n *Node) subtreeLost(m *subtree, cause error) {
	n.up(proto.Lost{First: m.head, Count: m.hi - m.head, Cause: n.named(m.head, cause)})
	n.leaveStdin(m)
	n.cancelOwed(m)
}

// check returns an error for a message about hosts, groups or ranks of another subtree, or at the
// wrong time.
func (n *Node) check(m *subtree, msg proto.Message) error {
	ok, at, group := true, stageUp, 0
	switch msg := msg.(type) {
	case proto.Up:
		at = stageLaunch
	case proto.Log:
		ok, at = m.has(msg.Index, 1), stageLaunch
	case proto.Lost:
		// The loss of m.head is the loss of the link, so the head cannot report it.
		ok, at = m.procs == nil && msg.First > m.head && m.has(msg.First, msg.Count) && !n.world.of(m).owes[phaseUp], stageLaunch
	case proto.Prepared:
		at, group = stagePrepared, msg.Group
		for _, p := range msg.Ports {
			ok = ok && m.has(p.Index, 1)
		}
		ok = ok && m.hasErrors(msg.Failed) && m.hasErrors(msg.NoMemory)
	case proto.Staged:
		ok, at, group = m.hasErrors(msg.Failed), stagePrepared, msg.Group
	case proto.Started:
		at, group = stageStarted, msg.Group
		for _, r := range msg.Ranks {
			ok = ok && n.runsIn(m, group, r.Rank)
		}
		ok = ok && (msg.Failed == nil || n.runsIn(m, group, msg.Failed.Rank))
	case proto.Ended:
		at, group = stageStarted, msg.Group
		for _, e := range msg.Exits {
			ok = ok && n.runsIn(m, group, e.Rank)
		}
		for _, t := range msg.Tails {
			ok = ok && n.runsIn(m, group, t.Rank)
		}
		for i := range msg.Figures {
			ok = ok && n.runsIn(m, group, msg.Figures[i].Rank)
		}
	case proto.Output:
		at, group = stageStarted, msg.Group
		ok = m.has(msg.Index, 1) && n.mayStream(m, group, msg.Stream)
	case proto.State:
		ok, at, group = m.has(msg.Index, 1), stageStarted, msg.Group
		for _, r := range []int{msg.Left, msg.Absent} {
			ok = ok && (r == -1 || n.runsIn(m, group, r))
		}
	case proto.Request:
		ok, at = n.rankOf(msg.Rank) == m && len(msg.Line) <= wire.PMIMaxLine, stageStarted
	case proto.Spawn:
		ok, at = n.rankOf(msg.Rank) == m, stageStarted
	case proto.Stacks:
		ok, at = n.rankOf(msg.Rank) == m && len(msg.Data) <= wire.InspectMaxStacks, stageStarted
	case proto.Part:
		ok, at = m.has(msg.Index, 1) && len(msg.Data) <= proto.MaxPart, stageStarted
	case proto.Time:
		ok = m.has(msg.Index, 1)
	case proto.Inspected:
		ok, at = m.has(msg.Index, 1) && n.hasGroups(m, msg.Groups), stageStarted
		for _, l := range msg.Last {
			ok = ok && n.rankOf(l.Rank) == m
		}
	case proto.Measured:
		ok, at = m.has(msg.Index, 1), stageStarted
		for i := range msg.Figures {
			ok = ok && n.rankOf(msg.Figures[i].Rank) == m
		}
	case proto.Captured:
		ok, at = m.has(msg.Index, 1), stageStarted
	case proto.Aborted:
		ok, at = n.rankOf(msg.Rank) == m, stageStarted
	case proto.Exited:
		ok, at = n.rankOf(msg.Rank) == m, stageStarted
	case proto.Fence:
		at, group = stageStarted, msg.Group
	case proto.StdinCredit:
		at = stageStarted
	}
	if g := n.find(group); !ok || g == nil || g.stage < at || !g.in(m) {
		return fmt.Errorf("%w: %T at the wrong time, or about hosts, groups or ranks of another subtree", proto.ErrFrame, msg)
	}
	return nil
}

// mayStream reports whether a subtree may send Output of the stream, which is that of a rank of a group or
// proto.Merged.
func (n *Node) mayStream(m *subtree, group, stream int) bool {
	if stream == proto.Merged {
		return !n.perRank || n.tee
	}
	return n.perRank && n.streamIn(m, group, stream)
}

// hasGroups reports whether groups contain only ranks of the subtree, each at most once, and no
// group is empty.
func (n *Node) hasGroups(m *subtree, groups []proto.Group) bool {
	seen := make(map[int]bool)
	for _, g := range groups {
		if len(g.Ranks) == 0 {
			return false
		}
		for _, r := range g.Ranks {
			if seen[r] || n.rankOf(r) != m {
				return false
			}
			seen[r] = true
		}
	}
	return true
}

func (m *subtree) hasErrors(list []proto.HostError) bool {
	return !slices.ContainsFunc(list, func(e proto.HostError) bool { return !m.has(e.Index, 1) })
}
