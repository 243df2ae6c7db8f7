package launcher

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/launcher/internal/hosts"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// universe returns the number of ranks that the hosts of the job have room for: the number of their
// slots or, if more ranks run, the number of ranks of group 0.
func (r *run) universe() (n int) {
	for _, m := range r.machines() {
		n += m.AllSlots()
	}
	return max(n, r.size)
}

// load is what runs on a host.
type load struct {
	ranks int
	cpus  map[int]bool // hardware threads to which ranks are bound
}

func (l *load) add(cpus []int) {
	l.ranks++
	if l.cpus == nil {
		l.cpus = make(map[int]bool)
	}
	for _, c := range cpus {
		l.cpus[c] = true
	}
}

// loads returns what runs on each host, by index in r.hosts. It includes groups that are about to
// start.
func (r *run) loads() []load {
	list := make([]load, len(r.hosts))
	for _, g := range r.groups {
		if g.over {
			continue
		}
		for i, p := range g.plans {
			for _, rk := range p.Ranks {
				if r.ranks[rk.Rank].exit != nil {
					continue
				}
				cpus := rk.CPUs
				if moved := r.ranks[rk.Rank].cpus; moved != nil {
					cpus = moved
				}
				list[i].add(cpus)
			}
		}
	}
	return list
}

// place places the ranks of a command on the hosts of the job: on free slots and free cores first.
// loads is what runs on each host; place adds the new ranks to it. place returns the index in
// r.hosts and the hardware threads of each rank. If the command has the info key soft, there may be
// fewer ranks than the command asks for.
func (r *run) placeCommand(a *spawnApp, loads []load) (ranks []place.Rank, err error) {
	policy := place.Policy{MapBy: r.job.MapBy, RankBy: r.job.RankBy, Bind: r.job.Bind, Strict: r.job.StrictSlot}
	if a.mapBy != "" {
		policy.MapBy = a.mapBy
	}
	if a.rankBy != "" {
		policy.RankBy = a.rankBy
	}
	if a.bind != "" {
		policy.Bind = job.Bind(a.bind)
	}
	if err := place.ParseMapBy(policy.MapBy); err != nil && policy.MapBy != "" {
		return nil, fmt.Errorf("map_by: %w", err)
	}
	order, slots, err := r.hostsOf(a.hosts)
	if err != nil {
		return nil, err
	}
	for _, h := range a.added {
		if r.indexOfHost(h.Name) < 0 {
			return nil, fmt.Errorf("add-host: gorun adds no hosts to a job that runs; name host %s when the job starts", h.Name)
		}
	}
	var machines []place.Machine
	all := r.machines()
	room, free := 0, 0
	for k, i := range order {
		at := slices.Index(r.hostOrder, i)
		m := all[at]
		if slots[k] > 0 {
			m.Slots = slots[k]
		}
		m.Slots = m.AllSlots()
		m.Used = loads[i].ranks
		m.Topology = m.Topology.Without(loads[i].cpus)
		machines = append(machines, m)
		room = min(room+m.Room(policy.Strict), job.MaxRanks)
		free += m.Room(true)
	}
	n := a.procs
	if a.soft != "" && n > room {
		if n, err = softAtMost(a.soft, room); err != nil {
			return nil, err
		}
		if n == 0 {
			return nil, fmt.Errorf("there is room for %s, and soft=%s allows no such number of processes", plural(room, "rank"), a.soft)
		}
	}
	placed, err := place.Map(machines, []int{n}, policy)
	if err != nil {
		return nil, err
	}
	if n > free && r.epoch == 0 && !r.warnedSpawn {
		r.warnedSpawn = true
		r.printLine(fmt.Sprintf("warning: %s that ranks have spawned share %s with others: they take turns", plural(n, "rank"), plural(free, "free slot")))
	}
	for _, p := range placed.Ranks {
		p.Host = order[p.Host]
		loads[p.Host].add(p.CPUs)
		ranks = append(ranks, p)
	}
	return ranks, nil
}

// hostsOf returns the indexes in r.hosts of the hosts in list, in the order of the job, and the slots
// that the list gives them; 0: those of the job. If list is empty, it returns all hosts that have not
// failed.
func (r *run) hostsOf(list []hosts.Host) (order, slots []int, err error) {
	named := make(map[int]int) // by index: slots
	for _, h := range list {
		i := r.indexOfHost(h.Name)
		if i < 0 {
			return nil, nil, fmt.Errorf("host %s is not a host of the job", h.Name)
		}
		named[i] = h.Slots
	}
	for _, i := range r.hostOrder {
		n, ok := named[i]
		if len(list) > 0 && !ok {
			continue
		}
		if r.hosts[i].state != hostUp {
			if len(list) > 0 {
				return nil, nil, fmt.Errorf("host %s: %s", r.hosts[i].Name, r.hosts[i].cause)
			}
			continue
		}
		order, slots = append(order, i), append(slots, n)
	}
	if len(order) == 0 {
		return nil, nil, fmt.Errorf("there is no host for the ranks")
	}
	return order, slots, nil
}

// indexOfHost returns the index in r.hosts of the host with a name or address, or -1.
func (r *run) indexOfHost(name string) int {
	return slices.IndexFunc(r.hosts, func(o host) bool { return r.isHost(o, name) })
}

// isHost reports whether a host of the job has this name or address.
func (r *run) isHost(h host, name string) bool {
	return name == h.Name || name == h.agent.Hostname || name == h.Address || hosts.IsLocal(h.Name) && hosts.IsLocal(name)
}

// softAtMost returns the largest number of a set that is at most limit, or 0 if there is none. soft
// is the set in the form of MPI's info key soft: numbers a, ranges a:b and a:b:step, with commas
// between them. A step may be negative.
func softAtMost(soft string, limit int) (most int, err error) {
	for part := range strings.SplitSeq(soft, ",") {
		var n [3]int
		fields := strings.Split(strings.TrimSpace(part), ":")
		for i, f := range fields {
			if i < len(n) {
				n[i], err = strconv.Atoi(strings.TrimSpace(f))
			}
			if i >= len(n) || err != nil {
				return 0, fmt.Errorf("soft: expected numbers, a:b or a:b:step separated by commas, found %q", soft)
			}
		}
		first, last, step := n[0], n[0], 1
		if len(fields) > 1 {
			last = n[1]
		}
		if len(fields) > 2 {
			step = n[2]
		}
		if step == 0 {
			return 0, fmt.Errorf("soft: a step of 0 in %q", soft)
		}
		if step < 0 { // the same numbers in ascending order
			if last > first {
				continue
			}
			first, last, step = first-(first-last)/(-step)*(-step), first, -step
		}
		if top := min(last, limit); top >= first {
			most = max(most, first+(top-first)/step*step)
		}
	}
	return most, nil
}

// newSpawned makes the group of a Spawn: it places the ranks, adds them to r.ranks, and makes the
// message that describes the group to the hosts. If it returns an error, it has changed nothing.
func (r *run) newSpawned(l located) (*group, error) {
	g := newGroup(len(r.groups), bootstrap.NewJobID(), l.Rank)
	g.request, g.first, g.phase = l.Spawn, len(r.ranks), phasePreparing
	g.plans = make([]proto.Plan, len(r.hosts))
	for i := range g.plans {
		g.plans[i].Index = i
	}
	loads := r.loads()
	var ranks []rank
	var appNums, asked, started []int
	for app := range l.apps {
		a := &l.apps[app]
		placed, err := r.placeCommand(a, loads)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.program, err)
		}
		for _, p := range placed {
			g.plans[p.Host].Ranks = append(g.plans[p.Host].Ranks, proto.Rank{Rank: g.first + len(ranks), App: app, CPUs: p.CPUs})
			ranks, appNums = append(ranks, rank{group: g.id, app: app, host: p.Host}), append(appNums, app)
		}
		g.apps = append(g.apps, a.groupApp)
		asked, started = append(asked, a.procs), append(started, len(placed))
	}
	if len(ranks) > job.MaxRanks {
		return nil, fmt.Errorf("%d processes, more than %d", len(ranks), job.MaxRanks)
	}
	var err error
	if g.reply, err = spawnReply(asked, started); err != nil {
		return nil, fmt.Errorf("there is room for %d of %s, and the list of those that do not start would be too long", len(ranks), plural(l.Request.Procs(), "process"))
	}
	g.size, g.states = len(ranks), newStates()
	secret := bootstrap.NewSecret()
	m := *r.prep // the rules of the job
	m.First, m.Preput, m.Files, m.Apps = g.first, make(map[string]string), l.files, nil
	m.Stdin = string(job.StdinNone)
	m.BasePort, m.LowPort, m.HighPort, m.Interface = 0, 0, 0, ""
	for _, f := range l.Request.Preput {
		m.Preput[f.Key] = f.Value
	}
	for i := range l.apps {
		m.Apps = append(m.Apps, l.apps[i].proto)
	}
	m.Card = bootstrap.Card{
		JobID: g.jobID, Secret: secret[:], Size: g.size, KVSName: "kvs_" + g.jobID, Epoch: r.epoch, Group: g.id,
		AppNums: bootstrap.Runs(appNums), Slots: r.universe(), Params: bootstrap.CardParams(r.job.Params),
	}
	r.groups, r.ranks = append(r.groups, g), append(r.ranks, ranks...)
	r.assignAddresses(g, &m)
	m.Plans = slices.DeleteFunc(slices.Clone(g.plans), func(p proto.Plan) bool { return len(p.Ranks) == 0 })
	g.prep = &m
	return g, nil
}
