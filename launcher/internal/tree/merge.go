package tree

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// phase is a message that goes up once for a whole subtree.
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

// merge counts who has still to answer. A member owes at most one answer in each
// phase, and left is how many do: who is lost owes nothing any more.
//
//	idle ──begin──► open ──left == 0──► said
//	                 ▲                    │   phaseFence begins anew with each Release,
//	                 └────────────────────┘   phaseUp where a head fails after its answer
type merge struct {
	open, said bool
	left       int
}

func (m *merge) over() bool { return m.said }

// merges is what has been gathered.
type merges struct {
	merge    [phases]merge
	prepared proto.Prepared
	staged   proto.Staged
	started  proto.Started
	fence    proto.Fence
	ended    proto.Ended
	endHeld  bool // Ended waits for the Output before it
}

// begin opens a phase for all who can answer.
func (n *Node) begin(p phase, who func(*member) bool) {
	n.merge[p] = merge{open: true}
	for _, m := range n.members {
		if (m.live() || p == phaseUp) && who(m) {
			n.owe(m, p)
		}
	}
	// A fence with nobody left to be in it is for the parent, who waits: the root
	// has nobody who does.
	if p != phaseFence || n.ranks && n.parent != nil {
		n.settle(p)
	}
}

func (n *Node) owe(m *member, p phase) {
	if !m.owes[p] {
		m.owes[p] = true
		n.merge[p].left++
	}
}

// answer takes one off. It is an error where none is owed.
func (n *Node) answer(m *member, p phase) error {
	if !m.owes[p] {
		return fmt.Errorf("%w: an answer that was not asked for (%d)", proto.ErrFrame, p)
	}
	m.owes[p] = false
	n.merge[p].left--
	return nil
}

// excuse frees a member that is lost from all that it owes.
func (n *Node) excuse(m *member) {
	for p := range phase(phases) {
		if m.owes[p] {
			m.owes[p] = false
			n.merge[p].left--
			n.settle(p)
		}
	}
}

// settle says what all have answered.
func (n *Node) settle(p phase) {
	g := &n.merge[p]
	if !g.open || g.left > 0 {
		return
	}
	g.open, g.said = false, true
	switch p {
	case phaseUp:
		n.stage = stageUp
		n.up(n.gathered())
	case phasePrepare:
		a := n.prepared
		n.prepared = proto.Prepared{}
		slices.SortFunc(a.Ports, func(a, b proto.HostPorts) int { return a.Index - b.Index })
		slices.Sort(a.Need)
		a.Need = slices.Compact(a.Need)
		sortErrors(a.Failed)
		sortErrors(a.NoMemory)
		n.up(a)
	case phaseStage:
		a := n.staged
		n.staged = proto.Staged{}
		sortErrors(a.Failed)
		n.up(a)
	case phaseStart:
		a := n.started
		n.started = proto.Started{}
		slices.SortFunc(a.Ranks, func(a, b proto.StartedRank) int { return a.Rank - b.Rank })
		n.up(a)
	case phaseFence:
		a := n.fence
		n.fence.Puts, n.fence.Waiting = nil, false
		n.up(a)
	case phaseEnd:
		n.endHeld = true // forward says it
	}
}

// self is what the node says of its own host.
func (n *Node) self() proto.Agent {
	a := n.cfg.Self
	a.Index = n.l.Index
	return a
}

// gathered makes one Up of the members'. What they said is not needed any more.
func (n *Node) gathered() proto.Up {
	var all proto.Up
	if n.cfg.Crew != nil {
		all.Agents = append(all.Agents, n.self())
	}
	for _, m := range n.members {
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

// fromBelow takes what a member says. An error means that it makes no sense: who
// speaks so is not listened to any more.
func (n *Node) fromBelow(m *member, msg proto.Message) error {
	if err := n.check(m, msg); err != nil {
		return err
	}
	switch msg := clean(msg).(type) {
	case proto.Up:
		return n.childUp(m, msg)
	case proto.Prepared:
		if err := n.answer(m, phasePrepare); err != nil {
			return err
		}
		m.needs = make(map[string]struct{}, len(msg.Need))
		for _, hash := range msg.Need {
			m.needs[hash] = struct{}{}
		}
		a := &n.prepared
		a.Ports, a.Need, a.Failed = append(a.Ports, msg.Ports...), append(a.Need, msg.Need...), append(a.Failed, msg.Failed...)
		a.NoMemory = append(a.NoMemory, msg.NoMemory...)
		n.settle(phasePrepare)
	case proto.Staged:
		if err := n.answer(m, phaseStage); err != nil {
			return err
		}
		n.staged.Failed = append(n.staged.Failed, msg.Failed...)
		n.settle(phaseStage)
	case proto.Started:
		if err := n.answer(m, phaseStart); err != nil {
			return err
		}
		a := &n.started
		a.Ranks = append(a.Ranks, msg.Ranks...)
		if f := msg.Failed; f != nil && (a.Failed == nil || f.Rank < a.Failed.Rank) {
			a.Failed = f
		}
		n.settle(phaseStart)
	case proto.Fence:
		if msg.N != n.fence.N {
			return fmt.Errorf("%w: fence %d while fence %d is on", proto.ErrFrame, msg.N, n.fence.N)
		}
		if _, releases := m.unread(); releases > 0 {
			return fmt.Errorf("%w: in fence %d before it has read that it may leave the one before", proto.ErrFrame, msg.N)
		}
		if err := n.answer(m, phaseFence); err != nil {
			return err
		}
		n.fence.Waiting = n.fence.Waiting || msg.Waiting
		if n.fence.Puts == nil {
			n.fence.Puts = msg.Puts
		} else {
			maps.Copy(n.fence.Puts, msg.Puts)
		}
		n.settle(phaseFence)
	case proto.Ended:
		if err := n.answer(m, phaseEnd); err != nil {
			return err
		}
		a := &n.ended
		a.Exits, a.Tails = append(a.Exits, msg.Exits...), append(a.Tails, msg.Tails...)
		n.leave(m)
		n.settle(phaseEnd)
	case proto.StdinCredit:
		return n.took(m, int64(msg.Bytes))
	case proto.Output:
		return n.take(m, msg)
	case proto.State: // links keep the newest alone
		n.up(msg)
	case proto.Request:
		if replies, _ := m.unread(); replies >= m.ranks {
			return fmt.Errorf("%w: it asks, and does not read what is answered", proto.ErrFrame)
		}
		return n.relay(m, msg)
	case proto.Lost:
		if n.stage == stageLaunch {
			m.dropAgents(msg)
			return nil
		}
		return n.relay(m, msg)
	case proto.Aborted, proto.Exited, proto.Log, proto.Stacks, proto.Inspected:
		return n.relay(m, msg)
	default:
		return fmt.Errorf("%w: %T from a child", proto.ErrFrame, msg)
	}
	return nil
}

// What a member may say of its own accord: of each host that it is lost, and a few words;
// of each rank that it wants the job to end, and that it has ended, and a Request at a
// time. That is no more than its hosts' and ranks' shares together, so nobody fails for
// what somebody behind it says.
const (
	mayPerHost = 16
	mayPerRank = 3
)

// relay passes on what a member says of its own accord. The last that is passed on is
// not the member's: it is what is said of it when it says more.
func (n *Node) relay(m *member, msg proto.Message) error {
	if m.may <= 1 {
		return fmt.Errorf("%w: it says more than there can be to say", proto.ErrFrame)
	}
	m.may--
	n.up(msg)
	return nil
}

// unread is how many Reply and Release a member cannot have read yet; of the own crew,
// which looks after itself, it is not known.
func (m *member) unread() (replies, releases int) {
	if m.link == nil {
		return 0, 0
	}
	return m.link.unread()
}

// sayEnded says that the subtree has ended, when all its output has been passed on.
func (n *Node) sayEnded() {
	n.endHeld = false
	a := n.ended
	n.ended = proto.Ended{}
	slices.SortFunc(a.Exits, func(a, b proto.Exit) int { return cmp.Compare(a.Rank, b.Rank) })
	slices.SortFunc(a.Tails, func(a, b proto.Tail) int { return cmp.Compare(a.Rank, b.Rank) })
	n.up(a)
	if n.orphaned {
		n.bye()
	}
}

// childUp takes a child's answer to Launch, in which each of its hosts stands once.
func (n *Node) childUp(m *member, up proto.Up) error {
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
			return fmt.Errorf("%w: Up of host %d", proto.ErrFrame, a.Index)
		}
	}
	for _, f := range up.Failed {
		if !note(f.Index) {
			return fmt.Errorf("%w: Up of host %d", proto.ErrFrame, f.Index)
		}
	}
	if count != len(seen) {
		return fmt.Errorf("%w: Up of %d hosts, not of %d", proto.ErrFrame, count, len(seen))
	}
	if err := n.answer(m, phaseUp); err != nil {
		return err
	}
	m.up = up
	n.partialUp(up)
	n.settle(phaseUp)
	return nil
}

func (n *Node) partialUp(some proto.Up) {
	if n.cfg.OnPartialUp != nil {
		n.cfg.OnPartialUp(some)
	}
}

// dropAgents makes failed hosts of lost ones before anybody has heard of them.
func (m *member) dropAgents(lost proto.Lost) {
	m.up.Agents = slices.DeleteFunc(m.up.Agents, func(a proto.Agent) bool {
		gone := a.Index >= lost.First && a.Index-lost.First < lost.Count
		if gone {
			m.up.Failed = append(m.up.Failed, proto.HostError{Index: a.Index, Cause: lost.Cause})
		}
		return gone
	})
}

// lose tells of a subtree that is lost, and goes on without it.
func (n *Node) lose(m *member, cause error) {
	n.up(proto.Lost{First: m.head, Count: m.hi - m.head, Cause: n.named(m.head, cause)})
	n.leave(m)
	n.excuse(m)
}

// check refuses what is said of others' hosts and ranks, or at the wrong time.
func (n *Node) check(m *member, msg proto.Message) error {
	ok, at := true, stageUp
	switch msg := msg.(type) {
	case proto.Up:
		at = stageLaunch
	case proto.Log:
		ok, at = m.has(msg.Index, 1), stageLaunch
	case proto.Lost:
		// The head itself does not say that it is lost.
		ok, at = m.crew == nil && msg.First > m.head && m.has(msg.First, msg.Count) && !m.owes[phaseUp], stageLaunch
	case proto.Prepared:
		at = stagePrepared
		for _, p := range msg.Ports {
			ok = ok && m.has(p.Index, 1)
		}
		ok = ok && m.hasErrors(msg.Failed) && m.hasErrors(msg.NoMemory)
	case proto.Staged:
		ok, at = m.hasErrors(msg.Failed), stagePrepared
	case proto.Started:
		at = stageStarted
		for _, r := range msg.Ranks {
			ok = ok && n.rankOf(r.Rank) == m
		}
		ok = ok && (msg.Failed == nil || n.rankOf(msg.Failed.Rank) == m)
	case proto.Ended:
		at = stageStarted
		for _, e := range msg.Exits {
			ok = ok && n.rankOf(e.Rank) == m
		}
		for _, t := range msg.Tails {
			ok = ok && n.rankOf(t.Rank) == m
		}
	case proto.Output:
		ok = m.has(msg.Index, 1) && (msg.Stream == proto.Merged) != n.perRank && (!n.perRank || n.rankOf(msg.Stream) == m)
		at = stageStarted
	case proto.State:
		ok, at = m.has(msg.Index, 1), stageStarted
		for _, r := range []int{msg.Left, msg.Absent} {
			ok = ok && (r == -1 || n.rankOf(r) == m)
		}
	case proto.Request:
		ok, at = n.rankOf(msg.Rank) == m && len(msg.Line) <= wire.PMIMaxLine, stageStarted
	case proto.Stacks:
		ok, at = n.rankOf(msg.Rank) == m && len(msg.Data) <= wire.InspectMaxStacks, stageStarted
	case proto.Inspected:
		ok, at = m.has(msg.Index, 1) && n.hasGroups(m, msg.Groups), stageStarted
	case proto.Aborted:
		ok, at = n.rankOf(msg.Rank) == m, stageStarted
	case proto.Exited:
		ok, at = n.rankOf(msg.Rank) == m, stageStarted
	case proto.Fence, proto.StdinCredit:
		at = stageStarted
	}
	if !ok || n.stage < at {
		return fmt.Errorf("%w: %T at the wrong time, or of hosts or ranks that are elsewhere", proto.ErrFrame, msg)
	}
	return nil
}

// hasGroups reports whether groups hold only a member's ranks, each at most once.
func (n *Node) hasGroups(m *member, groups []proto.Group) bool {
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

func (m *member) hasErrors(list []proto.HostError) bool {
	return !slices.ContainsFunc(list, func(e proto.HostError) bool { return !m.has(e.Index, 1) })
}
