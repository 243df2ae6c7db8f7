package tree

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// group is what a node knows about one group of the job's ranks: the phase that it has reached, and
// the answers that the subtrees still owe. Group 0 exists as long as the node. Any other group
// exists from its Prepare until all its ranks here and below have ended, or until Dismiss.
type group struct {
	id    int
	first int // number in the job of the group's rank 0
	stage stage
	// shares has the part of the group in each subtree, in the order of Node.subtrees.
	shares []share
	ranks  bool // the plans put at least one rank here or below
	merges
}

// share is the part of a group in one subtree.
type share struct {
	owes  [phases]bool        // by phase: the subtree must still answer
	ranks int                 // number of ranks on the subtree's hosts
	needs map[string]struct{} // hashes of the files that hosts of the subtree lack
}

func newGroup(id, subtrees int) *group { return &group{id: id, shares: make([]share, subtrees)} }

// of returns the share of a subtree.
func (g *group) of(m *subtree) *share { return &g.shares[m.index] }

// in reports whether the subtree takes part in the group. All subtrees take part in group 0.
func (g *group) in(m *subtree) bool { return g.id == 0 || g.of(m).ranks > 0 }

// find returns a group; nil: the group does not exist yet or any more.
func (n *Node) find(id int) *group {
	if i, found := slices.BinarySearchFunc(n.groups, id, func(g *group, id int) int { return cmp.Compare(g.id, id) }); found {
		return n.groups[i]
	}
	return nil
}

// wanted returns the group that a message from above is about. g is nil if the group has ended
// here, and the message must be ignored. It returns an error if the group has never existed.
func (n *Node) wanted(m proto.Message, id int) (g *group, err error) {
	if g = n.find(id); g == nil && (id < 0 || id > n.lastGroup) {
		return nil, fmt.Errorf("%w: %T of group %d", proto.ErrFrame, m, id)
	}
	return g, nil
}

// remove makes the node forget a group whose ranks here and below have ended, or do not start. It
// does nothing for group 0.
func (n *Node) remove(g *group) {
	if g.id == 0 {
		return
	}
	n.groups = slices.DeleteFunc(n.groups, func(o *group) bool { return o == g })
	n.runs = slices.DeleteFunc(n.runs, func(r route) bool { return r.group == g })
	for _, m := range n.subtrees {
		m.ranks -= g.of(m).ranks
	}
}

// toGroup sends a message from above to the subtrees that take part in a group. If the group has
// ended here, it does nothing.
func (n *Node) toGroup(m proto.Message, id int) error {
	g, err := n.wanted(m, id)
	if g != nil {
		n.sendTo(m, g.in)
	}
	return err
}

// dismiss makes the node and the subtrees forget a group that does not start.
func (n *Node) dismiss(d proto.Dismiss) error {
	g, err := n.wanted(d, d.Group)
	if g == nil {
		return err
	}
	if g.id == 0 || g.stage != stagePrepared {
		return n.wrongTime(d)
	}
	n.sendTo(d, g.in)
	n.remove(g)
	return nil
}

// allEnded reports whether no ranks run here and below, as far as the node knows, and Ended was
// sent for all groups.
func (n *Node) allEnded() bool {
	return !slices.ContainsFunc(n.groups, func(g *group) bool {
		return g.stage == stageStarted && (!g.merge[phaseEnd].sent || g.endHeld != nil)
	})
}

// hold makes Ended of a group wait until all Output that waits now is passed on.
func (n *Node) hold(g *group) {
	g.endHeld = make([]int64, len(n.subtrees))
	for i, m := range n.subtrees {
		g.endHeld[i] = m.source.queued
	}
}

// passed reports whether the Output for which Ended of a group waits is passed on.
func (n *Node) passed(g *group) bool {
	for i, m := range n.subtrees {
		if m.source.passed < g.endHeld[i] {
			return false
		}
	}
	return true
}
