package mpi

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Processes of several jobs
//
// A process can be a rank of several jobs at the same time: of its own job, which its launcher has
// started, and of one job for each connection with another job; see connect.go. The groups of a
// program may have processes of all these jobs. So a group holds process numbers, which do not
// depend on a job. The number of a process of the own job is its rank in that job. The processes of
// other jobs have the next numbers, in the order in which this process meets them. The numbers have
// no meaning in other processes.
//
//	Group.ranks ── processes ──► identity: id of the process's own job, and its rank in it
//	     │
//	     └── job.ranksOf ──► ranks in a job, which the engine uses

// identity identifies a process among all processes that can meet.
type identity struct {
	job  string // World.JobID of the process's own job
	rank int    // its rank there
}

// text returns the identity as a value of the key-value space; processes.parse is the inverse.
func (id identity) text() string { return id.job + ":" + strconv.Itoa(id.rank) }

// processes numbers the processes that a process knows.
type processes struct {
	self identity // of this process
	size int      // number of processes of the own job

	mu      sync.Mutex
	foreign map[identity]int // numbers of processes of other jobs; guarded by mu
}

// parse returns the identity in a text, which comes from a process of any job.
func (p *processes) parse(text string) (identity, error) {
	at := strings.LastIndexByte(text, ':') // the id of a job may have colons
	if at < 0 {
		return identity{}, fmt.Errorf("%q does not identify a process", text)
	}
	rank, err := strconv.Atoi(text[at+1:])
	id := identity{text[:at], rank}
	if err != nil || rank < 0 || id.job == p.self.job && rank >= p.size {
		return identity{}, fmt.Errorf("%q does not identify a process", text)
	}
	return id, nil
}

// number returns the number of a process.
func (p *processes) number(id identity) int {
	if id.job == p.self.job {
		return id.rank
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.foreign[id]
	if !ok {
		if p.foreign == nil {
			p.foreign = make(map[identity]int)
		}
		n = p.size + len(p.foreign)
		p.foreign[id] = n
	}
	return n
}

// find returns the number of a process. ok is false if it has none.
func (p *processes) find(id identity) (n int, ok bool) {
	if id.job == p.self.job {
		return id.rank, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok = p.foreign[id]
	return n, ok
}

// know sets the fields of j that say which processes its ranks are. home and ids are those of
// Setup.
func (j *job) know(home *job, ids []identity) {
	if home == nil {
		j.home, j.number = j, j.world.Rank
		j.procs = &processes{self: identity{j.world.JobID, j.world.Rank}, size: j.world.Size}
		return
	}
	j.home, j.procs, j.number = home, home.procs, home.number
	j.rankOf = make(map[int]int, len(ids))
	for rank, id := range ids {
		n := j.procs.number(id)
		j.numbers = append(j.numbers, n)
		j.rankOf[n] = rank
	}
}

// groupOf returns the group of the processes with these ranks in the job.
func (j *job) groupOf(ranks []int) Group {
	g := Group{ranks: ranks, self: j.number + 1}
	if j.numbers != nil {
		g.ranks = make([]int, len(ranks))
		for i, r := range ranks {
			g.ranks[i] = j.numbers[r]
		}
	}
	return g
}

// ranksOf returns the ranks in the job of the processes of a group. All of them are in the job.
func (j *job) ranksOf(g Group) []int {
	if j.numbers == nil {
		return g.ranks
	}
	ranks := make([]int, len(g.ranks))
	for i, n := range g.ranks {
		ranks[i] = j.rankOf[n]
	}
	return ranks
}
