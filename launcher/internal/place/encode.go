package place

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// encoded is the JSON form of a Topology. Lists of hardware threads have the form of FormatCPUs. A
// list of units, such as cores, has a semicolon between the units: "0,8;1,9".
type encoded struct {
	CPUs     string `json:"cpus"`
	Quota    int    `json:"quota,omitempty"`
	Cores    string `json:"cores,omitempty"`
	NUMA     string `json:"numa,omitempty"`
	Packages string `json:"packages,omitempty"`
}

// MarshalJSON encodes a Topology. For a host with 256 hardware threads the result has about 1 KB.
func (t Topology) MarshalJSON() ([]byte, error) {
	return json.Marshal(encoded{FormatCPUs(t.CPUs), t.Quota, formatUnits(t.Cores), formatUnits(t.NUMA), formatUnits(t.Packages)})
}

// UnmarshalJSON decodes a Topology. It sorts the cores, NUMA nodes and packages in the order that
// Topology documents. The text may come from another host, so UnmarshalJSON returns an error, and
// does not change t, if the text is invalid or Check returns an error. Regardless of the text, the
// result has at most MaxCPUs hardware threads.
func (t *Topology) UnmarshalJSON(text []byte) error {
	var e encoded
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("topology: %w", err)
	}
	read := Topology{CPUs: ParseCPUs(e.CPUs), Quota: e.Quota}
	if read.CPUs == nil && e.CPUs != "" {
		return fmt.Errorf("topology: expected a list of hardware threads, found %s", excerpt(e.CPUs))
	}
	for _, l := range []struct {
		name, text string
		units      *[][]int
	}{{"cores", e.Cores, &read.Cores}, {"numa", e.NUMA, &read.NUMA}, {"packages", e.Packages, &read.Packages}} {
		var ok bool
		if *l.units, ok = parseUnits(l.text, len(read.CPUs)); !ok {
			return fmt.Errorf("topology: %s: expected lists of hardware threads, of %d at most, found %s", l.name, len(read.CPUs), excerpt(l.text))
		}
	}
	if err := read.Check(); err != nil {
		return err
	}
	read.sort()
	*t = read
	return nil
}

// Check returns an error if a topology is invalid. In a valid one, each hardware thread is in
// exactly one core and one package, if these are known, and in at most one NUMA node. All threads
// of a core are in the same package and in the same NUMA node, or in no node. All lists of threads
// ascend, and Quota is not negative. The other functions of this package rely on that.
func (t *Topology) Check() error {
	if t.Quota < 0 {
		return fmt.Errorf("topology: expected a quota of 0 or more, found %d", t.Quota)
	}
	if c, ok := misplaced(t.CPUs); !ok {
		return fmt.Errorf("topology: expected hardware threads from 0 to %d that ascend, found %d", MaxCPUs-1, c)
	}
	for _, l := range []struct {
		name  string
		units [][]int
		all   bool
	}{{"cores", t.Cores, true}, {"numa", t.NUMA, false}, {"packages", t.Packages, true}} {
		if err := t.checkUnits(l.units, l.all); err != nil {
			return fmt.Errorf("topology: %s: %w", l.name, err)
		}
	}
	node, pkg := t.unitOf(t.NUMA), t.unitOf(t.Packages)
	for _, core := range t.Cores {
		for _, c := range core {
			if node[c] != node[core[0]] || pkg[c] != pkg[core[0]] {
				return fmt.Errorf("topology: expected nodes and packages of whole cores, found a core with hardware threads %d and %d in different ones", core[0], c)
			}
		}
	}
	return nil
}

// checkUnits returns an error unless each unit, such as a core, is a list of hardware threads of
// the host that ascend, and each thread is in at most one unit. If all is set, there must be no
// units, or they must contain all hardware threads of the host.
func (t *Topology) checkUnits(units [][]int, all bool) error {
	free := make([]bool, t.bound())
	for _, c := range t.CPUs {
		free[c] = true
	}
	n := 0
	for _, u := range units {
		if len(u) == 0 {
			return errors.New("expected hardware threads in each, found none in one")
		}
		if c, ok := misplaced(u); !ok {
			return fmt.Errorf("expected hardware threads that ascend, found %d", c)
		}
		for _, c := range u {
			if c >= len(free) || !free[c] {
				return fmt.Errorf("expected different hardware threads of the host, found %d", c)
			}
			free[c] = false
		}
		n += len(u)
	}
	if all && len(units) > 0 && n < len(t.CPUs) {
		return fmt.Errorf("expected all %s, found %d", plural(len(t.CPUs), "hardware thread"), n)
	}
	return nil
}

// misplaced returns the first number in list that is not from 0 to MaxCPUs-1, or not larger than
// the number before it. ok is true if there is no such number.
func misplaced(list []int) (c int, ok bool) {
	last := -1
	for _, c := range list {
		if c <= last || c >= MaxCPUs {
			return c, false
		}
		last = c
	}
	return 0, true
}

// formatUnits returns units, such as cores, as text, with a semicolon between them.
func formatUnits(units [][]int) string {
	texts := make([]string, len(units))
	for i, u := range units {
		texts[i] = FormatCPUs(u)
	}
	return strings.Join(texts, ";")
}

// parseUnits parses a result of formatUnits. It returns false if text is invalid, or has more than
// most hardware threads in all units together.
func parseUnits(text string, most int) (units [][]int, ok bool) {
	if text == "" {
		return nil, true
	}
	for part := range strings.SplitSeq(text, ";") {
		l := ParseCPUs(part)
		if most -= len(l); l == nil || most < 0 {
			return nil, false
		}
		units = append(units, l)
	}
	return units, true
}
