package place

import (
	"github.com/weft-hpc/weft/launcher/internal/place/mapby"
	"github.com/weft-hpc/weft/launcher/job"
)

// bindAll sets Rank.CPUs, the hardware threads to which each rank is bound. counts holds the number
// of ranks of each machine. If Policy.Bind is neither core nor numa, bindAll does nothing.
func (m *mapper) bindAll(ranks []Rank, counts []int) {
	if m.bind != job.BindCore && m.bind != job.BindNUMA {
		return
	}
	tables := make([][][]int, len(m.machines))
	last := -1
	for h, n := range counts {
		if n == 0 {
			continue
		}
		// Usually a host has the same topology and number of ranks as the host with ranks before
		// it. Then both share one table, which saves time and memory.
		if last >= 0 && counts[last] == n && m.machines[last].Topology.equal(&m.machines[h].Topology) {
			tables[h] = tables[last]
		} else {
			tables[h] = m.bindings(&m.machines[h].Topology, n)
		}
		last = h
	}
	for i := range ranks {
		r := &ranks[i]
		if table := tables[r.Host]; table != nil {
			r.CPUs = table[r.Local]
		}
	}
}

// bindings returns the hardware threads to which each of the n ranks of a host is bound, by
// Rank.Local. If the cores or NUMA nodes of the host are not known, it returns nil, or nil for each
// rank.
func (m *mapper) bindings(t *Topology, n int) [][]int {
	table := make([][]int, n)
	switch m.rule.Unit {
	case mapby.Slot, mapby.Node:
		for local := range table {
			table[local] = t.Place(m.bind, local, n)
		}
	case mapby.Core:
		units := t.Cores
		if m.bind == job.BindNUMA {
			units = t.nodeOfCores()
		}
		if len(units) == 0 {
			return nil
		}
		unit, _, _ := m.distribute(n, len(units), func(int) int { return 1 })
		for local, u := range unit {
			table[local] = units[u]
		}
	case mapby.NUMA:
		if len(t.NUMA) == 0 {
			return nil
		}
		cores := t.coresOfNodes()
		unit, within, members := m.distribute(n, len(t.NUMA), func(u int) int { return max(len(cores[u]), 1) })
		for local, u := range unit {
			table[local] = t.NUMA[u]
			if m.bind == job.BindCore && len(cores[u]) > 0 {
				table[local] = share(cores[u], within[local], members[u])
			}
		}
	}
	return table
}

// distribute assigns the n ranks of a host to its units, which are cores or NUMA nodes. For each
// rank it returns the index of the unit, and the number of the rank among the ranks of that unit;
// for each unit it returns the number of its ranks. If Rule.Per is set, each unit gets that many
// ranks, one unit after the other. Otherwise the units get one rank each in turn, and no unit gets
// more than room(unit) ranks before all units are full. If ranks are left then, each unit in turn
// gets up to room(unit) more ranks, and so on.
func (m *mapper) distribute(n, units int, room func(unit int) int) (unit, within, members []int) {
	unit, within, members = make([]int, n), make([]int, n), make([]int, units)
	give := func(rank, u int) {
		unit[rank], within[rank] = u, members[u]
		members[u]++
	}
	// With Per there are enough units, because perUnit has given the host at most Per ranks for
	// each unit.
	if m.rule.Per > 0 {
		for i := range n {
			give(i, i/m.rule.Per)
		}
		return unit, within, members
	}
	around := make([]int, 0, units)
	for i, times := 0, 0; i < n; times++ {
		around = around[:0]
		for u := range units {
			around = append(around, u)
		}
		for len(around) > 0 && i < n {
			kept := around[:0]
			for _, u := range around {
				if i == n {
					break
				}
				give(i, u)
				i++
				if members[u] < (times+1)*room(u) {
					kept = append(kept, u)
				}
			}
			around = kept
		}
	}
	return unit, within, members
}

// coresOfNodes returns, for each NUMA node, a list of its cores. A core is a list of hardware
// threads. The entry of a node whose cores are not known is nil.
func (t *Topology) coresOfNodes() [][][]int {
	node, cores := t.unitOf(t.NUMA), make([][][]int, len(t.NUMA))
	for _, core := range t.Cores {
		if u := node[core[0]]; u >= 0 {
			if cores[u] == nil {
				cores[u] = make([][]int, 0, len(t.NUMA[u]))
			}
			cores[u] = append(cores[u], core)
		}
	}
	return cores
}

// nodeOfCores returns, for each core, the hardware threads of its NUMA node. For a core that is in
// no node, it returns the threads of the core.
func (t *Topology) nodeOfCores() [][]int {
	node, list := t.unitOf(t.NUMA), make([][]int, len(t.Cores))
	for i, core := range t.Cores {
		list[i] = core
		if u := node[core[0]]; u >= 0 {
			list[i] = t.NUMA[u]
		}
	}
	return list
}
