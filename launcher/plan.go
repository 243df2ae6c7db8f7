package launcher

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// loopback is the address that ranks listen on if all of them run on one host and gorun chooses the
// address.
const loopback = "127.0.0.1"

// hostsUp handles Up, which comes when every host has answered or failed. If a host has failed, or
// the ranks cannot be placed, the run ends. Otherwise hostsUp places the ranks and sends Prepare,
// which describes the job to the hosts.
func (r *run) hostsUp(up proto.Up) {
	if r.phase != phaseConnecting {
		return
	}
	r.show("")
	r.recordHosts(up)
	if len(up.Failed) > 0 {
		r.failHosts(up.Failed)
		return
	}
	if r.outcome != nil {
		r.phase = phaseOver
		return
	}
	if !r.onlyThisHost() {
		r.verbose("%s up after %v", plural(len(up.Agents), "host"), r.since())
	}
	m, err := r.plan()
	if err != nil {
		r.failStart(err)
		return
	}
	if r.job.Trace != "" {
		r.compareClocks()
	}
	r.phase, r.prep = phasePreparing, m
	r.node.Do(*m)
}

// recordHosts records the states of the hosts in up, which have answered or failed.
func (r *run) recordHosts(up proto.Up) {
	for _, a := range up.Agents {
		if a.Index >= 0 && a.Index < len(r.hosts) {
			r.hosts[a.Index].agent, r.hosts[a.Index].state = a, hostUp
		}
	}
	for _, f := range up.Failed {
		r.hostFailed(f)
	}
}

// plan places the ranks, prints notes and warnings about that, and returns the message that
// describes the job to the hosts. At a restart it does not print the notes and warnings again.
func (r *run) plan() (*proto.Prepare, error) {
	placed, err := r.place(r.machines())
	if err != nil {
		return nil, err
	}
	if note := r.fillNote(placed); note != "" && r.epoch == 0 {
		r.printLine(note)
	}
	if placed.Warning != "" && r.epoch == 0 {
		r.printLine("warning: " + placed.Warning)
	}
	return r.describe(placed)
}

// fillNote returns a line with the number of ranks, if the program gets one rank for each slot and
// the user may not expect that. Otherwise it returns "", for example if the user has chosen the
// number by -n, a rankfile, or an allocation. An allocation that gorun itself has got for hosts
// that the user names does not count as the user's choice.
func (r *run) fillNote(placed *place.Result) string {
	byUser := r.allocated && (os.Getenv(envAllocated) == "" || len(r.job.Hosts) == 0)
	if !r.fillsHosts() || byUser || r.job.Rankfile != "" {
		return ""
	}
	return fmt.Sprintf("note: no number of ranks is given: %s on %s; -n N sets another number", plural(len(placed.Ranks), "rank"), plural(len(r.hostOrder), "host"))
}

// place decides which rank runs on which of the machines, and on which cores.
func (r *run) place(machines []place.Machine) (*place.Result, error) {
	policy, err := policyOf(r.job)
	var appNP []int
	if err == nil {
		appNP, err = r.appNP(machines, policy)
	}
	var placed *place.Result
	if err == nil {
		placed, err = place.Map(machines, appNP, policy)
	}
	if err != nil {
		return nil, &startError{proto.ExitUsage, err.Error()}
	}
	return placed, nil
}

// machines returns the hosts for package place, in the order of r.hostOrder.
func (r *run) machines() []place.Machine {
	var machines []place.Machine
	for _, i := range r.hostOrder {
		h := &r.hosts[i]
		machines = append(machines, place.Machine{Name: h.Name, Slots: h.Slots, MaxSlots: h.MaxSlots, Topology: h.agent.Topology})
		if r.onlyThisHost() {
			machines[0].Name = "this machine"
		}
	}
	return machines
}

// policyOf returns the rules by which a job places its ranks. It reads the rankfile, if there is
// one.
func policyOf(j *job.Job) (place.Policy, error) {
	p := place.Policy{MapBy: j.MapBy, RankBy: j.RankBy, Bind: j.Bind, Strict: j.StrictSlot}
	if j.Rankfile == "" {
		return p, nil
	}
	f, err := os.Open(j.Rankfile)
	if err != nil {
		return p, err
	}
	defer func() { _ = f.Close() }()
	p.Rankfile, err = place.ReadRankfile(j.Rankfile, f)
	return p, err
}

// fillsHosts reports whether the number of ranks follows from the hosts or the rankfile, because
// the job has one program and the user gives no number with -n. The program then gets the ranks of
// the rankfile or, without a rankfile, one rank for each slot of the named or allocated hosts.
func (r *run) fillsHosts() bool {
	j := r.job
	return !j.NPGiven && len(j.Apps) == 1 && (j.Rankfile != "" || r.allocated || len(j.Hosts) > 0)
}

// appNP returns the number of ranks of each app, by index in job.Apps.
func (r *run) appNP(machines []place.Machine, p place.Policy) ([]int, error) {
	var list []int
	for _, a := range r.job.Apps {
		list = append(list, a.NP)
	}
	if r.fillsHosts() {
		if list[0] = place.Fill(machines, p); list[0] == 0 {
			return nil, fmt.Errorf("-map-by %s: the cores of %s are not known; give the number of ranks with -n", p.MapBy, machines[0].Name)
		}
	}
	if list[0] < 1 || list[0] > job.MaxRanks {
		return nil, fmt.Errorf("expected from 1 to %d ranks, found %d", job.MaxRanks, list[0])
	}
	return list, nil
}

// describe sets r.ranks and r.plans from placed, and returns the message that describes the job to
// the hosts: which ranks of which programs run where, and how.
func (r *run) describe(placed *place.Result) (*proto.Prepare, error) {
	j := r.job
	np := len(placed.Ranks)
	r.size, r.ranks = np, make([]rank, np)
	r.plans = make([]proto.Plan, len(r.hosts))
	appNums := make([]int, np)
	for i := range r.plans {
		r.plans[i].Index = i
	}
	for i, p := range placed.Ranks {
		at := r.hostOrder[p.Host]
		r.ranks[i] = rank{app: p.App, host: at}
		appNums[i] = p.App
		r.plans[at].Ranks = append(r.plans[at].Ranks, proto.Rank{Rank: i, App: p.App, CPUs: p.CPUs})
	}
	secret := bootstrap.NewSecret()
	m := &proto.Prepare{
		Card: bootstrap.Card{
			JobID: r.id, Secret: secret[:], Size: np, KVSName: "kvs_" + r.id, Epoch: r.epoch,
			AppNums: bootstrap.Runs(appNums), Slots: r.universe(), Params: bootstrap.CardParams(j.Params),
		},
		Wrap: j.Wrap, Plans: r.plans, UDP: wantsLibfabric(j.Params), Segments: wantsLibfabric(j.Params),
		Memory: sharesMemory(j.Params), Stdin: string(j.Stdin), Tag: j.TagOutput || r.tap != nil, TagHost: j.TagOutput && !r.onlyThisHost(),
		OneSink: r.out.shared(), PerRank: r.out.dir != "", Tee: j.Tee,
		OutTerm: onTerminal(r.stdio.Out), ErrTerm: onTerminal(r.stdio.Err),
		Notify: j.OnFailure == job.FailNotify, Grace: j.Grace,
		Stats: r.wantsStats(), Detail: r.wantsStats() || j.Metrics != "" || j.Progress || j.Trace != "",
		Rebind: j.Bind == job.BindCore && j.Rankfile == "", Universe: r.universe(),
	}
	for _, kind := range j.Profile {
		m.RankFiles = append(m.RankFiles, proto.RankFile{Name: kind})
	}
	if j.Trace != "" {
		m.RankFiles = append(m.RankFiles, proto.RankFile{Name: spoolName, Large: true, Host: true})
	}
	r.assignAddresses(r.group, m)
	if err := r.describePrograms(m); err != nil {
		return nil, err
	}
	return m, r.readyIO(m)
}

// assignAddresses numbers the hosts that have ranks of a group, and chooses where ranks listen: on one address
// of each host, and if possible on consecutive ports from the same first port on each host, so that
// each rank can compute the addresses of the others. In three cases it chooses no addresses. If all
// ranks are on one host and share memory, no rank needs to listen. If the user names an interface,
// or the hosts have no network in common, ranks choose their addresses and exchange them.
func (r *run) assignAddresses(g *group, m *proto.Prepare) {
	number := make(map[int]int) // by index in r.hosts: the number of the host; only hosts that have ranks
	nodes := make([]int, g.size)
	var used []int
	most := 0
	for i := range nodes {
		h := r.ranks[g.first+i].host
		if _, ok := number[h]; !ok {
			number[h] = len(used)
			used = append(used, h)
			m.Card.Names = append(m.Card.Names, cmp.Or(r.hosts[h].agent.Hostname, r.hosts[h].Name))
			most = max(most, len(g.plans[h].Ranks))
		}
		nodes[i] = number[h]
	}
	m.Card.HostOf, g.used = bootstrap.Runs(nodes), len(used)
	params := r.job.Params
	m.Interface = tcpInterface(params, len(used) == 1 && m.Memory)
	if namesInterface(params) || len(used) == 1 && m.Memory {
		return
	}
	addrs := []string{loopback}
	if len(used) > 1 {
		if addrs = r.commonAddrs(used); addrs == nil {
			r.verbose("the hosts have no network in common, so ranks exchange their addresses")
			return
		}
		r.verbose("ranks listen on %s", strings.Join(firstFew(addrs), ", "))
	}
	for i, h := range used {
		g.plans[h].Address = addrs[i]
	}
	m.LowPort, m.HighPort = r.job.Ports.Low, r.job.Ports.High
	if m.BasePort = procs.BasePort(most, m.LowPort, m.HighPort); m.BasePort > 0 {
		m.Card.Hosts, m.Card.BasePort = addrs, m.BasePort
	}
}

// firstFew returns list if it is short, else its first three elements and an ellipsis.
func firstFew(list []string) []string {
	const most = 4
	if len(list) <= most {
		return list
	}
	return append(slices.Clone(list[:most-1]), "…")
}

// commonAddrs returns, for each host of used, the address on which the ranks of this host listen.
// used is a list of indexes in r.hosts. The address is the first of these that exists:
//
//   - the address that the user gives for the host
//   - the host's address in a network in which all hosts of used have different addresses; if there
//     are several such networks, the one that the connections between gorun and the agents use most
//   - the address at which the parent in the tree of agents has connected with the host
//
// It returns nil if a host has none of these.
func (r *run) commonAddrs(used []int) []string {
	type network struct {
		addrs map[int]string // by index in r.hosts: the host's address in this network
		// score is the number of addresses of hosts in this network that connections between gorun
		// and the agents use.
		score int
	}
	networks := make(map[netip.Prefix]*network)
	reached := make(map[string]bool)
	for i := range r.hosts {
		for _, a := range []string{r.hosts[i].agent.Reached, r.hosts[i].agent.Parent} {
			if a != "" {
				reached[a] = true
			}
		}
	}
	for _, h := range used {
		for _, a := range r.hosts[h].agent.Addrs {
			p, err := netip.ParsePrefix(a.Prefix)
			if err != nil || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
				continue
			}
			n := networks[p.Masked()]
			if n == nil {
				n = &network{addrs: make(map[int]string)}
				networks[p.Masked()] = n
			}
			if _, twice := n.addrs[h]; !twice {
				n.addrs[h] = p.Addr().String()
			}
			if reached[p.Addr().String()] {
				n.score++
			}
		}
	}
	var best *network
	for _, p := range sortedPrefixes(networks) {
		n := networks[p]
		if len(n.addrs) == len(used) && distinct(n.addrs) && (best == nil || n.score > best.score) {
			best = n
		}
	}
	addrs := make([]string, len(used))
	for i, h := range used {
		switch {
		case r.hosts[h].Address != "":
			addrs[i] = r.hosts[h].Address
		case best != nil:
			addrs[i] = best.addrs[h]
		case r.hosts[h].agent.Reached != "":
			addrs[i] = r.hosts[h].agent.Reached
		default:
			return nil
		}
	}
	return addrs
}

// distinct reports whether all hosts have different addresses; addrs has the address of each. Hosts
// can have the same address in a private network that exists on each of them, for example between
// containers.
func distinct(addrs map[int]string) bool {
	seen := make(map[string]bool, len(addrs))
	for _, a := range addrs {
		if seen[a] {
			return false
		}
		seen[a] = true
	}
	return true
}

// sortedPrefixes returns the keys of m ordered by address, IPv4 before IPv6, and then by length.
func sortedPrefixes[V any](m map[netip.Prefix]V) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(m))
	for p := range m {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b netip.Prefix) int { return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits()) })
	return list
}

// sharesMemory reports whether shared memory, "shm", is the first transport that the job may use. If
// all ranks are on one host, this transport then connects all of them, and they need no ports.
func sharesMemory(s *params.Set) bool {
	use := s.List("transport.use")
	return len(use) > 0 && use[0] == "shm"
}

// hostsPrepared handles Prepared, which comes when every host of a group is ready or has failed. If a
// host has failed, the run or the spawned group ends. Otherwise hostsPrepared makes the hosts start the
// ranks or, if hosts lack files, first sends them these files.
func (r *run) hostsPrepared(m proto.Prepared) {
	g := r.find(m.Group)
	if g == nil || r.phaseOf(g) != phasePreparing {
		return
	}
	if len(m.Failed) > 0 {
		r.failGroupHosts(g, m.Failed)
		return
	}
	for _, p := range m.Ports {
		if p.Index < 0 || p.Index >= len(g.plans) || !validPorts(&g.plans[p.Index], p.Ports) {
			r.failGroup(g, errors.New(r.nameOf(p.Index)+": its agent reports invalid ports"))
			return
		}
	}
	start := proto.Start{Group: g.id, Addrs: g.addrs(m.Ports)}
	for _, e := range m.NoMemory {
		r.verbose("%s: its ranks cannot share memory and use the next of transport.use: %s", r.nameOf(e.Index), e.Cause)
	}
	r.verbose("job %s: %s", g.jobID, g.listenText(start, len(m.NoMemory) == 0))
	if len(m.Need) == 0 {
		r.start(g, start)
		return
	}
	g.pending = start
	r.setPhase(g, phaseStaging)
	r.stage(g, m.Need)
}

// phaseOf returns how far a group has come. For group 0 that is the phase of the run.
func (r *run) phaseOf(g *group) phase {
	if g.id == 0 {
		return r.phase
	}
	return g.phase
}

func (r *run) setPhase(g *group, p phase) {
	if g.id == 0 {
		r.phase = p
	} else {
		g.phase = p
	}
}

// validPorts reports whether ports can be the ports of the ranks of plan p. The ports come from an
// agent, which may send anything.
func validPorts(p *proto.Plan, ports []int) bool {
	return p.Address != "" && len(ports) == len(p.Ranks) &&
		!slices.ContainsFunc(ports, func(port int) bool { return port < 1 || port > 65535 })
}

// addrs returns the address and port of each rank. other lists the hosts whose ranks listen on
// other ports than planned. If other is empty, addrs returns nil, because the ranks then need no
// list.
func (g *group) addrs(other []proto.HostPorts) []string {
	if len(other) == 0 {
		return nil
	}
	addrs := make([]string, g.size)
	for _, p := range g.plans {
		for i, rk := range p.Ranks {
			addrs[g.rank(rk.Rank)] = netip.AddrPortFrom(netip.MustParseAddr(p.Address), uint16(g.prep.BasePort+i)).String()
		}
	}
	for _, o := range other {
		p := g.plans[o.Index]
		for i, rk := range p.Ranks {
			addrs[g.rank(rk.Rank)] = netip.AddrPortFrom(netip.MustParseAddr(p.Address), uint16(o.Ports[i])).String()
		}
	}
	return addrs
}

// listenText returns a text for -v about where the ranks listen. memory is false if a host could
// not make the memory file that its ranks should share.
func (g *group) listenText(s proto.Start, memory bool) string {
	switch {
	case s.Addrs != nil:
		return "each rank listens on a port of its own, because planned ports are taken"
	case g.prep.Card.BasePort != 0 && len(g.prep.Card.Hosts) == 1:
		return fmt.Sprintf("rank i listens on %s, port %d+i", g.prep.Card.Hosts[0], g.prep.BasePort)
	case g.prep.Card.BasePort != 0:
		return fmt.Sprintf("the ranks of each host listen from port %d on", g.prep.BasePort)
	case memory && g.prep.Memory && g.prep.Card.HostOf[len(g.prep.Card.HostOf)-1].Value == 0:
		return "the ranks share memory"
	}
	return "the ranks choose where they listen"
}

// filesStaged handles Staged, which comes when every host of a group has its files or has failed to
// get them.
func (r *run) filesStaged(m proto.Staged) {
	g := r.find(m.Group)
	if g == nil || r.phaseOf(g) != phaseStaging {
		return
	}
	if len(m.Failed) > 0 {
		r.failGroupHosts(g, m.Failed)
		return
	}
	r.start(g, g.pending)
}

// start makes the hosts start the ranks of a group. If ranks of group 0 on other hosts read standard
// input, it begins to send it to the hosts. A spawned group does not start if the job is ending.
func (r *run) start(g *group, m proto.Start) {
	if g.id > 0 && (r.outcome != nil || r.ending) {
		r.failGroup(g, errJobEnds)
		return
	}
	g.startSent = time.Now()
	r.setPhase(g, phaseStarting)
	r.node.Do(m)
	if g.id == 0 && r.stdin != nil {
		r.stdin.begin()
	}
}
