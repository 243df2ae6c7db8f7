package launcher

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/weft-hpc/weft/internal/bootstrap"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/launcher/internal/place"
	"github.com/weft-hpc/weft/launcher/internal/procs"
	"github.com/weft-hpc/weft/launcher/internal/proto"
	"github.com/weft-hpc/weft/launcher/job"
)

// loopback is where ranks listen that all run on one host.
const loopback = "127.0.0.1"

// hostsUp goes on when every host has answered, or has failed to.
func (r *run) hostsUp(up proto.Up) {
	if r.phase != phaseConnecting {
		return
	}
	r.show("")
	r.noteHosts(up)
	if len(up.Failed) > 0 {
		r.failHosts(up.Failed)
		return
	}
	if r.verdict != nil {
		r.phase = phaseOver
		return
	}
	if !r.alone() {
		r.verbose("%s up after %v", plural(len(up.Agents), "host"), r.since())
	}
	m, err := r.plan()
	if err != nil {
		r.refuseWith(err)
		return
	}
	r.phase, r.prep = phasePreparing, m
	r.node.Do(*m)
}

// noteHosts notes what is known of hosts.
func (r *run) noteHosts(up proto.Up) {
	for _, a := range up.Agents {
		if a.Index >= 0 && a.Index < len(r.hosts) {
			r.hosts[a.Index].agent, r.hosts[a.Index].state = a, hostUp
		}
	}
	for _, f := range up.Failed {
		r.hostFailed(f)
	}
}

// plan places the ranks and describes the job to the hosts.
func (r *run) plan() (*proto.Prepare, error) {
	placed, err := r.place(r.machines())
	if err != nil {
		return nil, err
	}
	if note := r.filled(placed); note != "" && r.epoch == 0 {
		r.tell(note)
	}
	if placed.Warning != "" && r.epoch == 0 {
		r.tell("warning: " + placed.Warning)
	}
	return r.describe(placed)
}

// filled returns a line about how many ranks the named hosts get if nothing gives the
// number. It returns "" if something does, such as an allocation, unless gorun itself has
// got the allocation, with one slot on each named host.
func (r *run) filled(placed *place.Result) string {
	byUser := r.allocated && (os.Getenv(envAllocated) == "" || len(r.job.Hosts) == 0)
	if !r.fills() || byUser || r.job.Rankfile != "" {
		return ""
	}
	return fmt.Sprintf("note: no number of ranks is given: %s on %s; -n N sets another number", plural(len(placed.Ranks), "rank"), plural(len(r.wants), "host"))
}

// place lays the ranks over machines.
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

// machines are the hosts in the order in which the user names them, which is that of
// r.wants.
func (r *run) machines() []place.Machine {
	var machines []place.Machine
	for _, i := range r.wants {
		h := &r.hosts[i]
		machines = append(machines, place.Machine{Name: h.Name, Slots: h.Slots, MaxSlots: h.MaxSlots, Topology: h.agent.Topology})
		if r.alone() {
			machines[0].Name = "this machine"
		}
	}
	return machines
}

// policyOf is what a job says of where ranks go.
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

// fills reports whether the number of ranks is not given. The program then gets as many as
// fill the named or allocated hosts, or as the rankfile has.
func (r *run) fills() bool {
	j := r.job
	return !j.NPGiven && len(j.Apps) == 1 && (j.Rankfile != "" || r.allocated || len(j.Hosts) > 0)
}

// appNP returns the number of ranks of each app.
func (r *run) appNP(machines []place.Machine, p place.Policy) ([]int, error) {
	var list []int
	for _, a := range r.job.Apps {
		list = append(list, a.NP)
	}
	if r.fills() {
		if list[0] = place.Fill(machines, p); list[0] == 0 {
			return nil, fmt.Errorf("-map-by %s: nothing is known of the cores of %s; give the number of ranks with -n", p.MapBy, machines[0].Name)
		}
	}
	if list[0] < 1 || list[0] > job.MaxRanks {
		return nil, fmt.Errorf("expected from 1 to %d ranks, found %d", job.MaxRanks, list[0])
	}
	return list, nil
}

// describe says to the hosts what runs where.
func (r *run) describe(placed *place.Result) (*proto.Prepare, error) {
	j := r.job
	np := len(placed.Ranks)
	r.ranks = make([]rank, np)
	r.plans = make([]proto.Plan, len(r.hosts))
	appNums := make([]int, np)
	for i := range r.plans {
		r.plans[i].Index = i
	}
	for i, p := range placed.Ranks {
		at := r.wants[p.Host]
		r.ranks[i] = rank{app: p.App, host: at}
		appNums[i] = p.App
		r.plans[at].Ranks = append(r.plans[at].Ranks, proto.Rank{Rank: i, App: p.App, CPUs: p.CPUs})
	}
	secret := bootstrap.NewSecret()
	m := &proto.Prepare{
		Card: bootstrap.Card{
			JobID: r.id, Secret: secret[:], Size: np, KVSName: "kvs_" + r.id, Epoch: r.epoch,
			AppNums: bootstrap.Runs(appNums), Params: bootstrap.CardParams(j.Params),
		},
		Plans: r.plans, UDP: wantsLibfabric(j.Params), Segments: wantsLibfabric(j.Params),
		Memory: sharesMemory(j.Params), Stdin: string(j.Stdin), Tag: j.TagOutput, TagHost: !r.alone(),
		OneSink: r.out.one(), PerRank: r.out.dir != "",
		OutTerm: onTerminal(r.stdio.Out), ErrTerm: onTerminal(r.stdio.Err),
		Notify: j.OnFailure == job.FailNotify, Grace: j.Grace,
		Rebind: j.Bind == job.BindCore && j.Rankfile == "",
	}
	r.addresses(m)
	if err := r.describePrograms(m); err != nil {
		return nil, err
	}
	return m, r.readyIO(m)
}

// addresses numbers the hosts that have ranks, and has the ranks listen where the
// others find them by arithmetic. Where all share memory nobody listens; where the
// user names an interface they listen there and exchange their addresses.
func (r *run) addresses(m *proto.Prepare) {
	number := make(map[int]int) // of a host, by its index
	nodes := make([]int, len(r.ranks))
	var used []int
	most := 0
	for i := range r.ranks {
		h := r.ranks[i].host
		if _, ok := number[h]; !ok {
			number[h] = len(used)
			used = append(used, h)
			most = max(most, len(r.plans[h].Ranks))
		}
		nodes[i] = number[h]
	}
	m.Card.HostOf, r.used = bootstrap.Runs(nodes), len(used)
	params := r.job.Params
	m.Interface = tcpInterface(params, len(used) == 1 && m.Memory)
	if namesInterface(params) || len(used) == 1 && m.Memory {
		return
	}
	addrs := []string{loopback}
	if len(used) > 1 {
		if addrs = r.common(used); addrs == nil {
			r.verbose("the hosts have no network in common: ranks exchange their addresses")
			return
		}
		r.verbose("ranks listen on %s", strings.Join(firstFew(addrs), ", "))
	}
	for i, h := range used {
		m.Plans[h].Address = addrs[i]
	}
	m.LowPort, m.HighPort = r.job.Ports.Low, r.job.Ports.High
	if m.BasePort = procs.BasePort(most, m.LowPort, m.HighPort); m.BasePort > 0 {
		m.Card.Hosts, m.Card.BasePort = addrs, m.BasePort
	}
}

func firstFew(list []string) []string {
	const most = 4
	if len(list) <= most {
		return list
	}
	return append(slices.Clone(list[:most-1]), "…")
}

// common picks an address of each host by which the others reach it: in a network
// that all are in, best in the one by which gorun reached them; nil: there is none.
func (r *run) common(used []int) []string {
	type network struct {
		addrs map[int]string // by host
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

// distinct says whether no two hosts have the same address, as they have in networks
// that each host has for itself, between containers for instance.
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

// sortedPrefixes puts IPv4 before IPv6, so that the choice is always the same.
func sortedPrefixes[V any](m map[netip.Prefix]V) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(m))
	for p := range m {
		list = append(list, p)
	}
	sort.Slice(list, func(i, k int) bool { return list[i].Addr().Less(list[k].Addr()) })
	return list
}

// sharesMemory says whether shared memory comes first among the transports. It
// reaches every rank of a job on one host, so that none needs a port.
func sharesMemory(s *params.Set) bool {
	use := s.List("transport.use")
	return len(use) > 0 && use[0] == "shm"
}

// hostsPrepared goes on when every host is ready.
func (r *run) hostsPrepared(m proto.Prepared) {
	if r.phase != phasePreparing {
		return
	}
	if len(m.Failed) > 0 {
		r.failHosts(m.Failed)
		return
	}
	for _, p := range m.Ports {
		if p.Index < 0 || p.Index >= len(r.plans) || !canListen(&r.plans[p.Index], p.Ports) {
			r.refuseWith(errors.New(r.nameOf(p.Index) + ": its agent tells of ports that cannot be"))
			return
		}
	}
	start := proto.Start{Addrs: r.addrs(m.Ports)}
	for _, e := range m.NoMemory {
		r.verbose("%s: its ranks cannot share memory and use the next of transport.use: %s", r.nameOf(e.Index), e.Cause)
	}
	r.verbose("job %s: %s", r.id, r.listening(start, len(m.NoMemory) == 0))
	if len(m.Need) == 0 {
		r.start(start)
		return
	}
	r.phase, r.pending = phaseStaging, start
	r.stage(m.Need)
}

// canListen says whether a host's ranks can have these ports.
func canListen(p *proto.Plan, ports []int) bool {
	return p.Address != "" && len(ports) == len(p.Ranks) &&
		!slices.ContainsFunc(ports, func(port int) bool { return port < 1 || port > 65535 })
}

// addrs is the address of each rank where not all have the ports that everybody
// expects; nil: they have.
func (r *run) addrs(other []proto.HostPorts) []string {
	if len(other) == 0 {
		return nil
	}
	addrs := make([]string, len(r.ranks))
	for _, p := range r.plans {
		for i, rk := range p.Ranks {
			addrs[rk.Rank] = netip.AddrPortFrom(netip.MustParseAddr(p.Address), uint16(r.prep.BasePort+i)).String()
		}
	}
	for _, o := range other {
		p := r.plans[o.Index]
		for i, rk := range p.Ranks {
			addrs[rk.Rank] = netip.AddrPortFrom(netip.MustParseAddr(p.Address), uint16(o.Ports[i])).String()
		}
	}
	return addrs
}

// listening says where the ranks do. memory says whether every host has a memory file
// for them, where the job wants that.
func (r *run) listening(s proto.Start, memory bool) string {
	switch {
	case s.Addrs != nil:
		return "each rank listens on a port of its own, since those in a row are taken"
	case r.prep.Card.BasePort != 0 && len(r.prep.Card.Hosts) == 1:
		return fmt.Sprintf("rank i listens on %s, port %d+i", r.prep.Card.Hosts[0], r.prep.BasePort)
	case r.prep.Card.BasePort != 0:
		return fmt.Sprintf("the ranks of each host listen from port %d on", r.prep.BasePort)
	case memory && r.prep.Memory && r.prep.Card.HostOf[len(r.prep.Card.HostOf)-1].Value == 0:
		return "the ranks share memory"
	}
	return "the ranks choose where they listen"
}

func (r *run) filesStaged(m proto.Staged) {
	if r.phase != phaseStaging {
		return
	}
	if len(m.Failed) > 0 {
		r.failHosts(m.Failed)
		return
	}
	r.start(r.pending)
}

func (r *run) start(m proto.Start) {
	r.phase, r.startSent = phaseStarting, time.Now()
	r.node.Do(m)
	if r.stdin != nil {
		r.stdin.begin()
	}
}
