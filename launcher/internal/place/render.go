package place

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Render prints where ranks run, for gorun -dry-run. Similar ranks and hosts share a line, so that
// a large job takes few lines. Render returns the error of w, or an error if r has a rank on a
// machine that does not exist.
//
//	RANKS     HOST         SLOTS  PER HOST           BINDING
//	0-15      node[1-2]    8      8                  cpus 0 | 1 | … | 7
//	16-19     node[3-4]    8      2, 1 at a time     cpus 0-3 | 4-7
//	-         node[5-6]    8      0                  -
//
// PER HOST is the number of the line's ranks on each host. In the first line, ranks 0 to 7 are on
// node1; in the second, ranks 16 and 18 are on node3. BINDING lists the hardware threads of the
// ranks of one host, in their order. If an app other than app 0 has ranks, there is a column APP
// after RANKS.
func Render(w io.Writer, machines []Machine, r *Result) error {
	rows, err := fold(machines, r)
	if err != nil {
		return err
	}
	apps := slices.ContainsFunc(rows, func(b *block) bool { return b.app > 0 })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	cells := []string{"RANKS", "APP", "HOST", "SLOTS", "PER HOST", "BINDING"}
	for i := -1; i < len(rows); i++ {
		if i >= 0 {
			cells = rows[i].cells(machines)
		}
		if !apps {
			cells = slices.Delete(cells, 1, 2)
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// block is a row of the table. It describes consecutive ranks of one app: a number of ranks, the
// field each, on the first host, the same number on the second host, and so on. Later ranks may
// repeat that on the same hosts. For example, if ranks 0 and 1 are on node1, 2 and 3 on node2, 4
// and 5 on node1, and 6 and 7 on node2, that is one block with each 2 and starts 0 and 4.
type block struct {
	starts []int     // the first rank of each repetition; empty: the hosts have no ranks
	app    int       // number of the app
	hosts  []int     // indexes of the hosts, ascending
	each   int       // number of ranks on each host in one repetition
	slots  slotCount // the same for each host
	// binding has the hardware threads of each rank of one host, in all repetitions. The other
	// hosts have equal ones.
	binding [][]int
}

// slotCount holds the number of slots of a host, and in most its MaxSlots.
type slotCount struct{ slots, most int }

func slotsOf(m *Machine) slotCount { return slotCount{m.slots(), m.MaxSlots} }

// width returns the number of ranks in one repetition.
func (row *block) width() int { return len(row.hosts) * row.each }

// fold returns the rows of the table: first those with ranks, and then those of hosts without
// ranks. It returns an error if r has a rank on a host whose index is not valid in machines.
func fold(machines []Machine, r *Result) ([]*block, error) {
	var rows []*block
	// latest has the latest row, which the next block may repeat, by the row's app, first and last
	// host, number of hosts, and number of ranks on each host.
	latest := make(map[[5]int]*block)
	used := make([]bool, len(machines))
	add := func(b *block) {
		key := [5]int{b.app, b.hosts[0], b.hosts[len(b.hosts)-1], len(b.hosts), b.each}
		if old := latest[key]; old != nil && old.repeatedBy(b) {
			old.starts = append(old.starts, b.starts[0])
			old.binding = append(old.binding, b.binding...)
			return
		}
		rows = append(rows, b)
		latest[key] = b
	}
	var b *block
	for i := 0; i < len(r.Ranks); {
		h, app := r.Ranks[i].Host, r.Ranks[i].App
		if h < 0 || h >= len(machines) {
			return nil, fmt.Errorf("rank %d is on host %d of %d", i, h, len(machines))
		}
		used[h] = true
		k := i
		var binding [][]int
		for ; k < len(r.Ranks) && r.Ranks[k].Host == h && r.Ranks[k].App == app; k++ {
			binding = append(binding, r.Ranks[k].CPUs)
		}
		slots := slotsOf(&machines[h])
		if b != nil && b.app == app && b.each == k-i && b.slots == slots && h > b.hosts[len(b.hosts)-1] && sameBinding(b.binding, binding) {
			b.hosts = append(b.hosts, h)
		} else {
			if b != nil {
				add(b)
			}
			b = &block{starts: []int{i}, app: app, hosts: []int{h}, each: k - i, slots: slots, binding: binding}
		}
		i = k
	}
	if b != nil {
		add(b)
	}
	var idle *block
	for h := range machines {
		if slots := slotsOf(&machines[h]); used[h] {
			idle = nil
		} else if idle == nil || idle.slots != slots {
			idle = &block{hosts: []int{h}, slots: slots}
			rows = append(rows, idle)
		} else {
			idle.hosts = append(idle.hosts, h)
		}
	}
	return rows, nil
}

// repeatedBy reports whether b is the next repetition of row: it has the same hosts, and the first
// ranks of the repetitions have equal distances. The caller has compared the other properties.
func (row *block) repeatedBy(b *block) bool {
	n := len(row.starts)
	return slices.Equal(row.hosts, b.hosts) && (n == 1 || b.starts[0]-row.starts[n-1] == row.starts[1]-row.starts[0])
}

func sameBinding(a, b [][]int) bool { return slices.EqualFunc(a, b, slices.Equal[[]int]) }

// cells returns the cells of a row, in the order of the columns.
func (row *block) cells(machines []Machine) []string {
	slots := strconv.Itoa(row.slots.slots)
	if row.slots.most > row.slots.slots {
		slots += fmt.Sprintf(", at most %d", row.slots.most)
	}
	n := len(row.starts)
	ranks, app, perHost, binding := "-", "-", strconv.Itoa(n*row.each), "-"
	switch {
	case n == 0:
	case n > 1 && row.starts[1]-row.starts[0] == row.width():
		ranks = span(row.starts[0], row.starts[n-1]+row.width()-1)
		if len(row.hosts) > 1 {
			perHost += fmt.Sprintf(", %d at a time", row.each)
		}
	default:
		ranks = ranges(row.starts, row.width())
		if n > 1 && len(row.hosts) > 1 {
			perHost += fmt.Sprintf(", %d at a time", row.each)
		}
	}
	if n > 0 {
		app, binding = strconv.Itoa(row.app), bindingText(row.binding)
	}
	names := make([]string, len(row.hosts))
	for i, h := range row.hosts {
		names[i] = oneLine.Replace(machines[h].Name)
	}
	return []string{ranks, app, foldNames(names), slots, perHost, binding}
}

// oneLine escapes the characters in a name of a host that would end the cell or the row of the
// table.
var oneLine = strings.NewReplacer("\t", `\t`, "\n", `\n`, "\v", `\v`, "\f", `\f`, "\r", `\r`)

// bindingText returns the bindings of ranks as text, such as "cpus 0-3 | 4-7", or "none". If there
// are more than four, and they are not all the same, it shows only the first two and the last.
func bindingText(sets [][]int) string {
	const shown = 4
	same := true
	for _, s := range sets {
		same = same && slices.Equal(s, sets[0])
	}
	if same {
		sets = sets[:1]
	}
	texts := make([]string, 0, shown)
	for i, s := range sets {
		switch {
		case len(sets) > shown && i == shown-2:
			texts = append(texts, "…")
		case len(sets) > shown && i > shown-2 && i < len(sets)-1:
		case len(s) == 0:
			texts = append(texts, "none")
		default:
			texts = append(texts, FormatCPUs(s))
		}
	}
	text := strings.Join(texts, " | ")
	if same && text == "none" {
		return text
	}
	return "cpus " + text
}
