package place

import (
	"github.com/weft-hpc/weft/launcher/job"
	"github.com/weft-hpc/weft/launcher/place/mapby"
)

// bindAll gives each rank the hardware threads that it is bound to.
func (m *mapper) bindAll(ranks []Rank, counts []int) {
	if m.bind != job.BindCore && m.bind != job.BindNUMA {
		return
	}
	binders := make([]func(local int) []int, len(m.machines))
	for i := range ranks {
		r := &ranks[i]
		if binders[r.Host] == nil {
			binders[r.Host] = m.binder(&m.machines[r.Host].Topology, counts[r.Host])
		}
		r.CPUs = binders[r.Host](r.Local)
	}
}

// binder returns what a host's n ranks are bound to, by their local number.
func (m *mapper) binder(t *Topology, n int) func(local int) []int {
	units := t.Cores
	switch m.rule.Unit {
	case mapby.Core:
	case mapby.NUMA:
		units = t.NUMA
	case mapby.Slot, mapby.Node:
		return func(local int) []int { return t.Place(m.bind, local, n) }
	default:
	}
	if len(units) == 0 {
		return func(int) []int { return nil }
	}
	// A unit's ranks are numbered through, as a host's are.
	unit, within, members := make([]int, n), make([]int, n), make([]int, len(units))
	for i := range n {
		u := i % len(units)
		if m.rule.Per > 0 {
			u = i / m.rule.Per
		}
		unit[i], within[i] = u, members[u]
		members[u]++
	}
	node := indexUnits(t.NUMA)
	cores := make([][][]int, len(t.NUMA)) // of each NUMA node
	for _, core := range t.Cores {
		if u, ok := node[core[0]]; ok {
			cores[u] = append(cores[u], core)
		}
	}
	return func(local int) []int {
		u := unit[local]
		switch {
		case m.rule.Unit == mapby.Core && m.bind == job.BindNUMA:
			if k, ok := node[units[u][0]]; ok {
				return t.NUMA[k]
			}
		case m.rule.Unit == mapby.NUMA && m.bind == job.BindCore && len(cores[u]) > 0:
			return share(cores[u], within[local], members[u])
		}
		return units[u]
	}
}
