package place

import (
	"container/heap"
	"fmt"
	"slices"
	"sort"

	"github.com/weft-hpc/weft/launcher/internal/place/mapby"
)

// What these functions return is the host of each rank, in the order of ranks
// before they are numbered anew.

// bySlot fills host after host up to its slots; ranks that are left go around
// the hosts a second time, each of which takes the share of its slots.
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
		return nil, m.full()
	}
	for h, n := range more {
		hosts = append(hosts, slices.Repeat([]int{h}, n)...)
	}
	return hosts, nil
}

// spread shares out n ranks among hosts whose slots are taken: each rank goes
// where ranks per slot are the fewest with it, so the load is as even as the
// hosts' limits leave it.
//
// Below a load that all hosts may have, no rank has to be looked at: each host
// has as many as its slots times that load. The few above it go one by one.
func (m *mapper) spread(n int) (more []int, ok bool) {
	const fine = 1 << 10 // parts of a rank per slot, in which load is counted
	more = make([]int, len(m.machines))
	give := func(load int) (given int) {
		for h := range more {
			more[h] = min(m.slots[h]*load/fine, m.machines[h].limit()-m.slots[h])
			given += more[h]
		}
		return given
	}
	tooMuch := sort.Search(n*fine, func(load int) bool { return give(load) > n })
	n -= give(max(tooMuch-1, 0))
	var q loads
	for h := range m.machines {
		if m.machines[h].limit()-m.slots[h] > more[h] {
			q = append(q, load{host: h, ranks: more[h] + 1, slots: m.slots[h]})
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

// load is a host, and the ranks beyond its slots that it would have with one
// more.
type load struct{ host, ranks, slots int }

// loads is a heap with the host on top that is to take the next rank.
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

// byNode gives a rank to each host in turn, as long as it has slots left, and
// when none has, as long as it takes more.
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
		return nil, m.full()
	}
	return hosts, nil
}

// perUnit gives host after host as many ranks as the rule wants to have on
// each.
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
			return nil, fmt.Errorf("%s: nothing is known of the cores of %s", m.rule, mc.Name)
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
