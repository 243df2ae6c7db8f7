package launcher

import (
	"time"

	"github.com/weft-hpc/weft/launcher/internal/proto"
)

// group is a group of the job's ranks. Group 0 has the ranks that gorun starts by itself. Each
// other group has processes that a rank has spawned; see spawn.go. For its ranks, a group is a job:
// it has a job id, a job card, and a key-value space of its own.
//
// The ranks of all groups are in run.ranks. The index there is the rank's number in the job. The
// ranks of a group have consecutive numbers.
type group struct {
	id    int        // number of the group
	jobID string     // job id of the group; that of group 0 is run.id
	first int        // number of the group's rank 0
	size  int        // number of ranks
	apps  []groupApp // the programs of a spawned group; those of group 0 are job.Apps

	phase phase // how far a spawned group has come; not used in group 0, whose phase is run.phase
	// broken says that a spawned group could not be started as a whole. The rank that called Spawn
	// has got an error, and gorun ignores how the ranks of the group end.
	broken bool
	early  bool // over was set before gorun began to end the job
	over   bool // all ranks have ended, or none were started
	by     int  // number of the rank that has spawned the group; -1 in group 0
	// request is the request that has made a spawned group, and reply is the answer to it if the
	// group starts.
	request proto.Spawn
	reply   []byte

	plans []proto.Plan   // the ranks of each host, by index in hosts; empty before the ranks are placed
	used  int            // number of hosts on which ranks are placed
	prep  *proto.Prepare // the message that has described the group to the hosts; nil: not sent yet
	// pending is the message that gorun sends when the hosts have the files that they lacked. It is
	// set in phaseStaging.
	pending   proto.Start
	startSent time.Time // when gorun sent Start to the hosts, by gorun's clock
	startDone time.Time // when gorun received Started, by gorun's clock; zero: not yet
	released  int       // number of the last PMI fence for which gorun has sent Release; 0: none
	states    states
}

// groupApp is a program of a group.
type groupApp struct {
	program string   // as the user, or the rank that has spawned the group, has named it
	args    []string // without argument 0
	path    string   // absolute path of the executable on gorun's host
}

func newGroup(id int, jobID string, by int) *group {
	return &group{id: id, jobID: jobID, by: by, states: newStates()}
}

// rank returns the rank in the group of the rank with this number in the job.
func (g *group) rank(number int) int { return number - g.first }

// active reports whether ranks of the group run or may run.
func (g *group) active() bool { return !g.over && (g.id == 0 || g.phase >= phaseStarting) }

// exited reports whether all ranks of the group have exited, as far as the hosts have reported.
func (g *group) exited() bool { return g.over || g.states.gone >= g.used }

// find returns the group with this number; nil: there is none.
func (r *run) find(id int) *group {
	if id < 0 || id >= len(r.groups) {
		return nil
	}
	return r.groups[id]
}

// groupOf returns the group of the rank with this number.
func (r *run) groupOf(number int) *group { return r.groups[r.ranks[number].group] }

// valid reports whether there is a rank with this number. Numbers come from agents, which may send
// anything.
func (r *run) valid(number int) bool { return number >= 0 && number < len(r.ranks) }

// programOf returns the program of the rank with this number.
func (r *run) programOf(number int) groupApp {
	g, app := r.groupOf(number), r.ranks[number].app
	if g.id > 0 {
		return g.apps[app]
	}
	p := groupApp{program: r.job.Apps[app].Program, args: r.job.Apps[app].Args}
	if app < len(r.programs) {
		p.path = r.programs[app].path
	}
	return p
}

// nameOfRank returns the name of the rank with this number, such as 3, or 1.3 for a spawned rank.
func (r *run) nameOfRank(number int) string {
	g := r.groupOf(number)
	return proto.RankName(g.id, g.rank(number))
}

// failGroup ends a group that cannot be started because of err: the run if it is group 0.
func (r *run) failGroup(g *group, err error) {
	if g.id == 0 {
		r.failStart(err)
	} else if err != nil {
		r.dismiss(g, err)
	}
}

// failGroupHosts ends a group that cannot be started because hosts have failed. failed lists these
// hosts and has at least one entry.
func (r *run) failGroupHosts(g *group, failed []proto.HostError) {
	if g.id == 0 {
		r.failHosts(failed)
		return
	}
	code := failed[0].Code
	if code == 0 {
		code = proto.ExitFailed
	}
	r.dismiss(g, &startError{code, r.hostErrorText(failed[0])})
}

// ranksOn returns the numbers of the ranks on a host, of all groups whose ranks run or may run.
func (r *run) ranksOn(host int) (ranks []int) {
	for _, g := range r.groups {
		if g.active() && host < len(g.plans) {
			for _, rk := range g.plans[host].Ranks {
				ranks = append(ranks, rk.Rank)
			}
		}
	}
	return ranks
}

// ended returns the number of ranks of the groups that had not ended when gorun began to end them.
func (r *run) ended() (n int) {
	for i := range r.ranks {
		if g := r.groupOf(i); !g.early && (g.id == 0 || g.phase >= phaseStarting) {
			n++
		}
	}
	return n
}
