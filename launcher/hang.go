package launcher

import (
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// states holds the last proto.State of each host that has sent one about a group, and totals over these hosts.
// From them checkState finds out whether ranks wait for ever for a rank that has ended.
type states struct {
	of    map[int]proto.State // by index of the host: its last State
	begun int                 // number of hosts on which a running rank has called Init
	gone  int                 // number of hosts on which all ranks have ended
	// waiting has, by number of a PMI fence, how many hosts have a rank that waits in it. Fences
	// without such a host have no entry.
	waiting map[int]int
	// left has, by index of the host, a rank that has ended and was not in a fence. Hosts without
	// such a rank have no entry.
	left map[int]int
	// absent has, by index of the host, a rank that has ended and has never called Init. Hosts
	// without such a rank have no entry.
	absent map[int]int
}

func newStates() states {
	return states{of: make(map[int]proto.State), waiting: make(map[int]int), left: make(map[int]int), absent: make(map[int]int)}
}

// note replaces the last State of a host by s.
func (t *states) note(s proto.State) {
	t.count(t.of[s.Index], -1)
	t.of[s.Index] = s
	t.count(s, 1)
	delete(t.left, s.Index)
	delete(t.absent, s.Index)
	if s.Left >= 0 {
		t.left[s.Index] = s.Left
	}
	if s.Absent >= 0 {
		t.absent[s.Index] = s.Absent
	}
}

// count adds s to the totals if n is 1, and takes it out of them if n is -1.
func (t *states) count(s proto.State, n int) {
	if s.Begun {
		t.begun += n
	}
	if s.Ended {
		t.gone += n
	}
	if s.Waiting > 0 {
		if t.waiting[s.Waiting] += n; t.waiting[s.Waiting] == 0 {
			delete(t.waiting, s.Waiting)
		}
	}
}

// awaits reports whether a rank waits in a fence that gorun has not released. released is the
// number of the last fence that gorun has released.
func (t *states) awaits(released int) bool {
	// There are at most two entries, because a host enters a fence only after the release of the
	// one before.
	for fence := range t.waiting {
		if fence > released {
			return true
		}
	}
	return false
}

// lowest returns the lowest rank among the values of list, or -1 if list is empty.
func lowest(list map[int]int) int {
	rank := -1
	for _, r := range list {
		if rank < 0 || r < rank {
			rank = r
		}
	}
	return rank
}

// checkState handles State: it records the report of a host, and fails the job if ranks wait for
// ranks that have ended. A host sends its first State soon after a rank of it has ended normally,
// or all of them have ended. If this State is the first one of the group, and ranks of that host
// or of another one may still run, checkState sends Watch, which makes all hosts send State. A job
// that continues without failed ranks needs no such check, because in such a job ranks that have
// ended count as being in every fence.
func (r *run) checkState(s proto.State) {
	g := r.find(s.Group)
	if g == nil || g.over {
		return
	}
	if len(g.states.of) == 0 && r.outcome == nil && (!s.Ended || g.used > 1) && r.job.OnFailure != job.FailNotify {
		r.node.Do(proto.Watch{Group: g.id})
	}
	g.states.note(s)
	if r.outcome != nil || r.job.OnFailure == job.FailNotify || g.broken {
		return
	}
	rank, why := -1, ""
	switch {
	case g.states.begun > 0 && len(g.states.absent) > 0:
		rank, why = lowest(g.states.absent), "ended without Init, which other ranks have called"
	case len(g.states.left) > 0 && g.states.awaits(g.released):
		rank, why = lowest(g.states.left), "ended while other ranks wait for it in a fence"
	}
	if r.valid(rank) {
		r.fail(cause{rank: rank, host: r.ranks[rank].host, kind: kindNoReason}, Failure{Rank: rank, Reason: why}, proto.ExitFailed)
	}
}
