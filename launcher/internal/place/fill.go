package place

import (
	"container/heap"
	"fmt"
	"slices"
	"sort"

	"github.com/weft-hpc/weft/launcher/internal/place/mapby"
)

// bySlot, byNode and perUnit return the index of the machine of each rank, by the number of the
// rank. [mapper.renumber] may change the order later. They return an error if the ranks do not fit.

// bySlot gives each host, one after the other, as many ranks as it has slots. If ranks are left,
// spread decides how many of them each host gets, and bySlot again gives them to one host after the
// other.
func (m *mapper) bySlot() ([]int, error) {
	hosts := make([]int, 0, m.np)
	for h, n := range m.slots {
		n = min(n, m.np-len(hosts))
		hosts = append(hosts, slices.Repeat([]int{h}, n)...)
	}
	if len(hosts) == m.np {
		return hosts, nil
	}
	more, ok := m.spread(m.np - len(hosts))
	if !ok {
		return nil, m.limitError()
	}
	for h, n := range more {
		hosts = append(hosts, slices.Repeat([]int{h}, n)...)
	}
	return hosts, nil
}

// spread distributes n ranks among hosts whose slots are all used. more holds the number of ranks
// that each host gets. The load of a host is this number divided by the number of its slots. Each
// rank goes to the host whose load with this rank is the lowest, so the loads are as even as the
// MaxSlots of the hosts allow. ok is false if they do not allow so many ranks.
//
// First spread finds by bisection the largest load that needs at most n ranks if all hosts have
// this load, and gives each host its slots times this load. Then it places the few other ranks one
// by one.
func (m *mapper) spread(n int) (more []int, ok bool) {
	const fine = 1 << 10 // loads are integers, in units of 1/fine ranks per slot
	more = make([]int, len(m.machines))
	give := func(load int) (given int) {
		for h := range more {
			more[h] = min(m.weights[h]*load/fine, m.machines[h].limit()-m.slots[h])
			given += more[h]
		}
		return given
	}
	tooMuch := sort.Search(n*fine, func(load int) bool { return give(load) > n })
	n -= give(max(tooMuch-1, 0))
	var q loads
	for h := range m.machines {
		if m.machines[h].limit()-m.slots[h] > more[h] {
			q = append(q, load{host: h, ranks: more[h] + 1, slots: m.weights[h]})
		}
	}
	heap.Init(&q)
	for ; n > 0; n-- {
		if len(q) == 0 {
			return nil, false
		}
		h := q[0].host
		more[h]++
		q[0].ranks++
		if m.slots[h]+more[h] < m.machines[h].limit() {
			heap.Fix(&q, 0)
		} else {
			heap.Pop(&q)
		}
	}
	return more, true
}

// load is the load that a host would have with one more rank: ranks divided by slots. ranks is the
// number of its ranks beyond its slots, with that rank, and slots is the number of its slots.
type load struct{ host, ranks, slots int }

// loads is a heap of hosts that may get more ranks. On top is the host with the lowest load, which
// gets the next rank. Of hosts with equal loads, that with the lowest index is on top.
type loads []load

func (q loads) Len() int      { return len(q) }
func (q loads) Swap(i, k int) { q[i], q[k] = q[k], q[i] }
func (q loads) Less(i, k int) bool {
	a, b := q[i].ranks*q[k].slots, q[k].ranks*q[i].slots
	return a < b || a == b && q[i].host < q[k].host
}
func (q *loads) Push(any) { panic("place: no host is added to those that take ranks") }
func (q *loads) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}

// byNode gives one rank at a time to each host that has free slots, in turn. When no host has free
// slots any more, it continues with all hosts, as long as their MaxSlots allow.
func (m *mapper) byNode() ([]int, error) {
	hosts := make([]int, 0, m.np)
	counts := make([]int, len(m.machines))
	limits := make([]int, len(m.machines))
	for h := range m.machines {
		limits[h] = m.machines[h].limit()
	}
	around := make([]int, 0, len(m.machines))
	for _, most := range [][]int{m.slots, limits} {
		around = around[:0]
		for h, n := range counts {
			if n < most[h] {
				around = append(around, h)
			}
		}
		for len(around) > 0 {
			kept := around[:0]
			for _, h := range around {
				if len(hosts) == m.np {
					return hosts, nil
				}
				hosts = append(hosts, h)
				if counts[h]++; counts[h] < most[h] {
					kept = append(kept, h)
				}
			}
			around = kept
		}
	}
	if len(hosts) < m.np {
		return nil, m.limitError()
	}
	return hosts, nil
}

// perUnit applies a rule ppr:N:UNIT: it gives each host, one after the other, N ranks for each UNIT
// that it has, until no ranks are left. Slots do not matter.
func (m *mapper) perUnit() ([]int, error) {
	hosts := make([]int, 0, m.np)
	units := 0
	for h := range m.machines {
		mc := &m.machines[h]
		n, left := 1, m.np-len(hosts)
		switch m.rule.Unit {
		case mapby.Core:
			n = len(mc.Topology.Cores)
		case mapby.NUMA:
			n = len(mc.Topology.NUMA)
		case mapby.Node, mapby.Slot:
		default:
		}
		if left > 0 && n == 0 {
			return nil, fmt.Errorf("%s: the cores of %s are not known", m.rule, mc.Name)
		}
		units += n
		n = min(n*m.rule.Per, left)
		if n > mc.limit() {
			return nil, fmt.Errorf("%s puts %s on %s, which takes at most %d", m.rule, plural(n, "rank"), mc.Name, mc.MaxSlots)
		}
		hosts = append(hosts, slices.Repeat([]int{h}, n)...)
	}
	if left := m.np - len(hosts); left > 0 {
		what := map[mapby.Unit]string{mapby.Core: "core", mapby.NUMA: "NUMA node"}[m.rule.Unit]
		on := fmt.Sprintf("the %s of %s", plural(units, what), plural(len(m.machines), "host"))
		if m.rule.Unit == mapby.Node {
			what, on = "host", plural(len(m.machines), "host")
		}
		missing := (left + m.rule.Per - 1) / m.rule.Per
		verb := "is"
		if missing > 1 {
			what, verb = what+"s", "are"
		}
		return nil, fmt.Errorf("%s puts %d of %s on %s: %d more %s %s needed", m.rule, len(hosts), plural(m.np, "rank"), on, missing, what, verb)
	}
	return hosts, nil
}
