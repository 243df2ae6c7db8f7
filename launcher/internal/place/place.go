// Package place decides which rank runs on which host, and on which cores.
//
//	hostfile, -host, Slurm        agents, /sys
//	          │                        │
//	          └──► []Machine ◄── Topology
//	                   │
//	  []appNP, Policy ─┴─► Map:  fill hosts ─► number ranks ─► bind to cores
//	                                                               │
//	                                   Render (-dry-run) ◄── Result┘
//
// The package starts no process. The result of Map depends only on its arguments.
package place

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weft-hpc/weft/launcher/internal/place/mapby"
	"github.com/weft-hpc/weft/launcher/job"
)

// Machine is a host that ranks may run on.
type Machine struct {
	Name string
	// Slots is the number of ranks that the host should run. 0 means the number of hardware threads
	// that ranks can use at the same time: see [Topology.Usable]. So a core with two hardware
	// threads counts as two slots, whereas Open MPI counts cores. With 0, a host whose hardware is
	// not known has one slot.
	Slots    int
	MaxSlots int      // largest number of ranks that the host may run; 0: no limit
	Used     int      // number of ranks that run there already, which Map does not place
	Topology Topology // zero: the hardware of the host is not known
}

// AllSlots returns the number of slots of the machine, used ones included: Slots, or what 0 means
// there, but at most MaxSlots.
func (m *Machine) AllSlots() int {
	n := m.Slots
	if n == 0 {
		n = max(m.Topology.Usable(), 1)
	}
	if m.MaxSlots > 0 {
		n = min(n, m.MaxSlots)
	}
	return n
}

// Room returns how many more ranks may run on the machine. If strict is set, that is the number of
// free slots. Without a limit it returns the largest number of ranks of a job.
func (m *Machine) Room(strict bool) int {
	if strict {
		return m.slots()
	}
	return min(m.limit(), job.MaxRanks)
}

// slots returns the number of free slots.
func (m *Machine) slots() int { return max(m.AllSlots()-m.Used, 0) }

// limit returns how many more ranks MaxSlots allows, or the largest int if there is no limit.
func (m *Machine) limit() int {
	if m.MaxSlots == 0 {
		return math.MaxInt
	}
	return max(m.MaxSlots-m.Used, 0)
}

// Policy contains the rules by which Map places ranks.
type Policy struct {
	// MapBy is the rule by which ranks are distributed; "" means "slot". ParseMapBy accepts these:
	//
	//	slot           one host after the other, each up to its slots
	//	node           one rank to each host in turn, each up to its slots
	//	core, numa     hosts as with slot; within a host, one rank to each core or NUMA
	//	               node in turn; a NUMA node gets no more ranks than it has cores
	//	               before all NUMA nodes of the host are full
	//	ppr:N:node     N ranks on each host, one host after the other, regardless of slots
	//	ppr:N:core     N ranks on each core, likewise
	//	ppr:N:numa     N ranks on each NUMA node, likewise
	//
	// With slot, node, core and numa, there may be more ranks than slots, unless Strict is set. The
	// ranks for which there are no slots are then placed in a second round: with node, one on each
	// host in turn; otherwise so that the number of ranks per slot is as equal on all hosts as
	// possible.
	MapBy string
	// RankBy is the order in which ranks are numbered. With "slot" or "", that is the order in which
	// MapBy places them. With "node", the ranks of an app are numbered round-robin over its hosts.
	// With "fill", they are numbered host by host.
	RankBy string
	// Bind is the kind of unit, a core or a NUMA node, to which each rank is bound; "": none. Ranks on
	// a host whose hardware is not known are not bound.
	Bind   job.Bind
	Strict bool // more ranks than slots, on all hosts together or on one host, are an error
	// Rankfile gives the place of each rank, instead of MapBy, RankBy and Bind; nil: there is no
	// rankfile. It may contain more ranks than the job has.
	Rankfile *Rankfile
}

// Rank is the place of one rank of the job.
type Rank struct {
	App   int // number of the rank's app
	Host  int // index of the rank's host among the machines
	Local int // number of the rank among the ranks of the host, from 0 on
	// CPUs has the hardware threads that the rank is bound to, ascending; nil: the rank is not
	// bound. Its elements must not be changed, because other ranks and the Topology may share them.
	CPUs []int
}

// Result holds the places of all ranks of a job.
type Result struct {
	Ranks   []Rank
	Warning string // a line for the user if there are more ranks than slots (see Machine.Slots), else ""
}

// ParseMapBy returns an error if text is not a valid Policy.MapBy.
func ParseMapBy(text string) error {
	_, err := mapby.Parse(text)
	return err
}

// Map places the ranks of a job on machines. App i of the job has appNP[i] ranks, which are
// numbered after those of the apps before it. A machine may get no ranks. Map returns an error if
// the arguments are invalid, the ranks do not fit, or p.Rankfile does not fit the job. It does not
// change its arguments.
//
// Map takes time and memory in proportion to the number of ranks and to the number of hardware
// threads.
func Map(machines []Machine, appNP []int, p Policy) (*Result, error) {
	return mapUpTo(job.MaxRanks, machines, appNP, p)
}

// Fill returns the number of ranks that a job has if the user gives none. If there is a rankfile,
// that is the number of ranks in it. Otherwise, with a rule ppr:N:UNIT, it is N for each UNIT of
// all machines, and with any other rule the number of slots of all machines. A machine whose cores
// or NUMA nodes are not known counts as one without any.
func Fill(machines []Machine, p Policy) int {
	rule, err := mapby.Parse(p.MapBy)
	n := 0
	for i := range machines {
		m := &machines[i]
		switch {
		case p.Rankfile != nil:
			return p.Rankfile.NP()
		case err != nil || rule.Per == 0:
			n += m.slots()
		case rule.Unit == mapby.Core:
			n += rule.Per * len(m.Topology.Cores)
		case rule.Unit == mapby.NUMA:
			n += rule.Per * len(m.Topology.NUMA)
		default:
			n += rule.Per
		}
	}
	return n
}

// mapUpTo does what Map does, but returns an error if the job has more ranks than most.
func mapUpTo(most int, machines []Machine, appNP []int, p Policy) (*Result, error) {
	m := mapper{machines: machines, most: most, bind: p.Bind}
	if err := m.check(appNP, p); err != nil {
		return nil, err
	}
	if m.np > m.total && p.Strict {
		return nil, m.oversubscribedError(m.oversubscribed(make([]int, len(machines))))
	}
	var hosts []int
	var err error
	switch {
	case p.Rankfile != nil:
		hosts, err = p.Rankfile.hosts(machines, m.np)
	case m.rule.Per > 0:
		hosts, err = m.perUnit()
	case m.rule.Unit == mapby.Node:
		hosts, err = m.byNode()
	default:
		hosts, err = m.bySlot()
	}
	if err != nil {
		return nil, err
	}
	if p.Rankfile == nil {
		first := 0
		for _, np := range appNP {
			m.renumber(hosts[first:first+np], p.RankBy)
			first += np
		}
	}

	r := &Result{Ranks: make([]Rank, 0, m.np)}
	counts := make([]int, len(machines))
	for app, np := range appNP {
		for range np {
			h := hosts[len(r.Ranks)]
			r.Ranks = append(r.Ranks, Rank{App: app, Host: h, Local: counts[h]})
			counts[h]++
		}
	}
	if ranks, hosts := m.oversubscribed(counts); hosts != nil {
		if p.Strict {
			return nil, m.oversubscribedError(ranks, hosts)
		}
		r.Warning = m.oversubscribedWarning(ranks, hosts)
	}
	if p.Rankfile != nil {
		err = p.Rankfile.bind(machines, r.Ranks)
	} else {
		m.bindAll(r.Ranks, counts)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// mapper is the state of Map.
type mapper struct {
	machines []Machine
	most     int        // largest number of ranks that a job may have
	slots    []int      // number of free slots of each machine, at most most
	weights  []int      // number of all slots of each machine, from 1 to most
	total    int        // sum of slots
	np       int        // number of ranks of the job
	rule     mapby.Rule // Policy.MapBy
	bind     job.Bind   // Policy.Bind
}

// check returns an error if an argument of Map is invalid, except for the contents of p.Rankfile.
// Otherwise it sets slots, total, np and rule.
func (m *mapper) check(appNP []int, p Policy) (err error) {
	if p.MapBy == "" {
		p.MapBy = string(mapby.Slot)
	}
	if m.rule, err = mapby.Parse(p.MapBy); err != nil {
		return fmt.Errorf("map ranks: %w", err)
	}
	switch p.RankBy {
	case "", "slot", "node", "fill":
	default:
		return fmt.Errorf("number ranks: expected slot, node or fill, found %s", excerpt(p.RankBy))
	}
	switch p.Bind {
	case "", job.BindNone, job.BindCore, job.BindNUMA:
	default:
		return fmt.Errorf("bind ranks: expected none, core or numa, found %s", excerpt(string(p.Bind)))
	}
	for app, np := range appNP {
		switch {
		case np < 0:
			return fmt.Errorf("app %d: expected 0 ranks or more, found %d", app, np)
		case np > m.most-m.np:
			return fmt.Errorf("expected from 1 to %d ranks, found more", m.most)
		}
		m.np += np
	}
	if m.np == 0 {
		return fmt.Errorf("expected from 1 to %d ranks, found none", m.most)
	}
	if len(m.machines) == 0 {
		return fmt.Errorf("there is no host for %s", plural(m.np, "rank"))
	}
	for i := range m.machines {
		mc := &m.machines[i]
		if mc.Slots < 0 || mc.MaxSlots < 0 {
			return fmt.Errorf("%s: expected slots of 0 or more, found %d and at most %d", mc.Name, mc.Slots, mc.MaxSlots)
		}
		n := min(mc.slots(), m.most) // more slots than ranks make no difference, and their sum could overflow
		m.slots = append(m.slots, n)
		m.weights = append(m.weights, max(min(mc.AllSlots(), m.most), 1))
		m.total += n
	}
	return nil
}

// oversubscribed returns the machines that have more ranks than slots, and the number of their
// ranks. counts holds the number of ranks of each machine. If the job has more ranks than there are
// slots on all machines together, oversubscribed returns all machines and the number of all ranks,
// regardless of counts.
func (m *mapper) oversubscribed(counts []int) (ranks int, hosts []int) {
	for h, n := range counts {
		if m.np > m.total || n > m.slots[h] {
			ranks += n
			hosts = append(hosts, h)
		}
	}
	if m.np > m.total {
		ranks = m.np // not the sum of counts, because with Strict the ranks are not placed yet
	}
	return ranks, hosts
}

// oversubscribedWarning returns the warning that ranks share the slots of hosts. If the slots of
// all these hosts follow from their hardware, the warning calls them cores.
func (m *mapper) oversubscribedWarning(ranks int, hosts []int) string {
	known := func(h int) bool { return m.machines[h].Slots == 0 && m.slots[h] == m.machines[h].Topology.Usable() }
	for _, h := range hosts {
		if !known(h) {
			return fmt.Sprintf("%d ranks share the %s", ranks, m.partsOf(hosts, "slot"))
		}
	}
	if len(m.machines) == 1 {
		return fmt.Sprintf("%d ranks on %s: they take turns", ranks, plural(m.total, "core"))
	}
	return fmt.Sprintf("%d ranks on the %s: they take turns", ranks, m.partsOf(hosts, "core"))
}

// oversubscribedError returns the error that ranks do not fit into the slots of hosts.
func (m *mapper) oversubscribedError(ranks int, hosts []int) error {
	what := "slot"
	if slices.ContainsFunc(m.machines, func(mc Machine) bool { return mc.Used > 0 }) {
		what = "free slot"
	}
	return fmt.Errorf("%d ranks do not fit into the %s", ranks, m.partsOf(hosts, what))
}

// partsOf returns a text such as "8 slots of 2 hosts", or "4 slots of node1" for a single host.
// what is the word for a slot in the text.
func (m *mapper) partsOf(hosts []int, what string) string {
	n := 0
	for _, h := range hosts {
		n += m.slots[h]
	}
	if len(hosts) == 1 {
		return fmt.Sprintf("%s of %s", plural(n, what), m.machines[hosts[0]].Name)
	}
	return fmt.Sprintf("%s of %d hosts", plural(n, what), len(hosts))
}

// limitError returns the error for a job with more ranks than the MaxSlots of all machines allow.
func (m *mapper) limitError() error {
	const shown = 4
	if len(m.machines) == 1 {
		return fmt.Errorf("%d ranks do not fit onto %s, which takes at most %d", m.np, m.machines[0].Name, m.machines[0].MaxSlots)
	}
	var names []string
	for i, mc := range m.machines {
		if i == shown && len(m.machines) > shown {
			names = append(names, "…")
			break
		}
		names = append(names, fmt.Sprintf("%s %d", mc.Name, mc.MaxSlots))
	}
	return fmt.Errorf("%d ranks do not fit onto %d hosts, which take at most: %s", m.np, len(m.machines), strings.Join(names, ", "))
}

// renumber reorders hosts, the hosts of the ranks of one app, as Policy.RankBy says. With "node"
// the ranks are numbered round-robin over the hosts. With "fill" the ranks of each host get
// consecutive numbers. Otherwise the order stays.
func (m *mapper) renumber(hosts []int, by string) {
	if by != "node" && by != "fill" {
		return
	}
	left := make([]int, len(m.machines))
	for _, h := range hosts {
		left[h]++
	}
	var around []int
	for h, n := range left {
		if n > 0 {
			around = append(around, h)
		}
	}
	if by == "fill" {
		hosts = hosts[:0]
		for _, h := range around {
			hosts = append(hosts, slices.Repeat([]int{h}, left[h])...)
		}
		return
	}
	for i := 0; i < len(hosts); {
		kept := around[:0]
		for _, h := range around {
			hosts[i] = h
			i++
			if left[h]--; left[h] > 0 {
				kept = append(kept, h)
			}
		}
		around = kept
	}
}

// plural returns a number with a noun, such as "1 rank" or "2 ranks".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
