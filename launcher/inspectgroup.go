package launcher

import (
	"github.com/weft-hpc/weft/internal/wire"
	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// groupAnswers holds what the ranks of one group have answered. In this file, ranks are ranks in
// the group. A call of a rank waits for ranks of the same group, so gorun looks for deadlocks in
// each group separately.
type groupAnswers struct {
	before *round // the answers of the round before; nil: this is the first round
	// known has, by rank, the last answer of the rank before the current round. A rank without an
	// answer has no entry.
	known  map[int]*wire.RankState
	silent map[int]bool  // inspection.silent
	groups []proto.Group // the answers of this round
}

// answers returns the answers of a group in this round of an inspection.
func (a *inspection) answers(g *group) *groupAnswers {
	if a.of == nil {
		a.of = make(map[int]*groupAnswers)
	}
	v := a.of[g.id]
	if v == nil {
		v = &groupAnswers{known: make(map[int]*wire.RankState)}
		a.of[g.id] = v
	}
	v.silent, v.groups = a.silent, nil
	for _, x := range a.groups {
		y := x
		y.Ranks = nil
		for _, number := range x.Ranks {
			if rank := g.rank(number); rank >= 0 && rank < g.size {
				y.Ranks = append(y.Ranks, rank)
			}
		}
		if len(y.Ranks) > 0 {
			v.groups = append(v.groups, y)
		}
	}
	return v
}

// groupWaits is what the ranks of a group wait for, by their answers in a round.
type groupWaits struct {
	group   *group
	answers *groupAnswers
	now     round
	*waits
}
