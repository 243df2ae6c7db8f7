// Package mapby parses the rules by which ranks are placed on hosts. It is not part of package
// place, because package job needs it, and place imports job.
package mapby

import (
	"fmt"
	"strconv"
	"strings"
)

// Unit is the part of a host to which a rule assigns ranks.
type Unit string

// The units.
const (
	Slot Unit = "slot" // room for one rank; a rule ppr:N:UNIT cannot have this unit
	Node Unit = "node" // a whole host
	Core Unit = "core"
	NUMA Unit = "numa" // a NUMA node
)

// Rule is a rule by which ranks are placed on hosts: see place.Policy.MapBy.
type Rule struct {
	Unit Unit
	// Per is the number of ranks on each unit: the N of a rule ppr:N:UNIT. It is 0 for another
	// rule; the slots of the hosts then give the number.
	Per int
}

// Expected lists the rules in the form that users write, for messages.
const Expected = "slot, node, core, numa or ppr:N:node|numa|core"

// limit is the largest number of ranks on a unit. It equals job.MaxRanks, which this package cannot
// import.
const limit = 1 << 16

// Parse parses "slot", "node", "core", "numa", or a rule such as "ppr:2:numa", which is two ranks per
// NUMA node.
func Parse(text string) (Rule, error) {
	switch u := Unit(text); u {
	case Slot, Node, Core, NUMA:
		return Rule{Unit: u}, nil
	}
	wrong := fmt.Errorf("expected %s, found %s", Expected, quote(text))
	rest, ok := strings.CutPrefix(text, "ppr:")
	if !ok {
		return Rule{}, wrong
	}
	number, unit, _ := strings.Cut(rest, ":")
	switch u := Unit(unit); u {
	case Node, Core, NUMA:
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > limit || strings.HasPrefix(number, "+") {
			return Rule{}, fmt.Errorf("expected from 1 to %d ranks per %s, found %s", limit, u, quote(text))
		}
		return Rule{u, n}, nil
	case Slot: // not valid, because a slot has room for only one rank
	}
	return Rule{}, wrong
}

// String returns the rule in the form that Parse parses.
func (r Rule) String() string {
	if r.Per == 0 {
		return string(r.Unit)
	}
	return "ppr:" + strconv.Itoa(r.Per) + ":" + string(r.Unit)
}

// quote returns the beginning of a text in quotes, so that an error with the text of a user fits in a
// line.
func quote(text string) string {
	const most = 60
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}
