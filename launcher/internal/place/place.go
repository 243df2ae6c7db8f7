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
// It starts no process. Its results depend only on its arguments.
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
	// Slots is the number of ranks that the host should run. 0: its number of usable hardware
	// threads, or fewer if a cgroup's quota is lower. So a core with two threads has two slots;
	// Open MPI counts cores. A host whose cores are not known has one slot.
	Slots    int
	MaxSlots int // largest number of ranks that the host may run; 0: no limit
	Topology Topology
}

// slots returns the number of slots, at most MaxSlots.
func (m *Machine) slots() int {
	n := m.Slots
	if n == 0 {
		n = max(m.Topology.Usable(), 1)
	}
	return min(n, m.limit())
}

// limit returns MaxSlots, or the largest int if there is no limit.
func (m *Machine) limit() int {
	if m.MaxSlots == 0 {
		return math.MaxInt
	}
	return m.MaxSlots
}

// Policy contains the rules for the placement.
type Policy struct {
	// MapBy is a rule that ParseMapBy accepts; "": "slot".
	//
	//	slot           one host after the other, each up to its slots
	//	node           one rank to each host in turn, each up to its slots
	//	core, numa     hosts as with slot; within a host, one rank to each core or NUMA
	//	               node in turn, a node up to its cores until all nodes are full
	//	ppr:N:node     N ranks on each host, one host after the other, regardless of slots
	//	ppr:N:core     likewise, N ranks on each core or NUMA node
	//	ppr:N:numa
	//
	// If there are more ranks than slots, the others are placed in a second round. With node,
	// each host gets one rank in turn. Otherwise the load, in ranks per slot, is kept even.
	MapBy string
	// RankBy gives the order of the numbers: "slot" (or "") is the order of mapping; with
	// "node" the ranks of an app are numbered round-robin over its hosts; with "fill" they are
	// numbered host by host.
	RankBy string
	// Bind is the unit to which ranks are bound; "": none. Ranks on a host whose cores are not
	// known are not bound.
	Bind     job.Bind
	Strict   bool      // more ranks than slots, on all hosts together or on one, are an error
	Rankfile *Rankfile // replaces MapBy, RankBy and Bind; nil: none. It may contain more ranks than the job.
}

// Rank is the place of one rank of the job.
type Rank struct {
	App   int   // number of its app
	Host  int   // index of the Machine
	Local int   // its number among the ranks of the host
	CPUs  []int // hardware threads that it is bound to, ascending; nil: not bound. Read-only: other ranks and the Topology may share it
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

// Map places the ranks of apps on machines. App i has appNP[i] ranks. The ranks of an app follow those of
// the app before it. A machine may get no ranks.
//
// Map takes time and memory in proportion to the numbers of ranks and hardware threads.
func Map(machines []Machine, appNP []int, p Policy) (*Result, error) {
	return mapUpTo(job.MaxRanks, machines, appNP, p)
}

// Fill returns the number of ranks that fill machines under the policy: that of the rankfile; with ppr,
// the number for all units; otherwise the number of slots. It returns 0 if the units are not known.
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

// mapUpTo is Map for a job of at most most ranks.
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
	most     int   // largest number of ranks of a job
	slots    []int // slots of each machine, from 1 to most
	total    int   // sum of slots
	np       int
	rule     mapby.Rule
	bind     job.Bind
}

// check checks the arguments of Map and sets the other fields.
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
		n := min(mc.slots(), m.most) // avoids an overflow of the sum
		m.slots = append(m.slots, n)
		m.total += n
	}
	return nil
}

// oversubscribed returns the machines that have more ranks than slots, and the number of their
// ranks. If all slots together are too few, it returns all machines and ranks.
func (m *mapper) oversubscribed(counts []int) (ranks int, hosts []int) {
	for h, n := range counts {
		if m.np > m.total || n > m.slots[h] {
			ranks += n
			hosts = append(hosts, h)
		}
	}
	if m.np > m.total {
		ranks = m.np // the counts may not be known yet
	}
	return ranks, hosts
}

// oversubscribedWarning returns the warning about more ranks than slots. If the slots are cores, it says so.
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

// oversubscribedError returns the error for ranks that do not fit into the slots of machines.
func (m *mapper) oversubscribedError(ranks int, hosts []int) error {
	return fmt.Errorf("%d ranks do not fit into the %s", ranks, m.partsOf(hosts, "slot"))
}

// partsOf returns a text such as "8 slots of 2 hosts". It names a single host.
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

// limitError returns the error for more ranks than all machines may run.
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

// renumber changes the order of the hosts of an app's ranks. With "node" the hosts take turns, as long as
// they have ranks left. With "fill" the ranks of each host are consecutive.
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

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
