// Package mapby reads how ranks are laid over hosts. It is apart from package
// place for the sake of package job, which place imports.
package mapby

import (
	"fmt"
	"strconv"
	"strings"
)

// Unit is a part of the machines that ranks are laid over.
type Unit string

// The units.
const (
	Slot Unit = "slot" // only without a number per unit
	Node Unit = "node" // a host
	Core Unit = "core"
	NUMA Unit = "numa"
)

// Rule is how ranks are laid over hosts.
type Rule struct {
	Unit Unit
	Per  int // exactly so many ranks to a unit; 0: as many as there are slots
}

// Expected are the rules as their users write them.
const Expected = "slot, node, core, numa or ppr:N:node|numa|core"

// limit is job.MaxRanks.
const limit = 1 << 16

// Parse reads "slot", "node", "core", "numa", or "ppr:2:numa" for two ranks per
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
	case Slot: // it holds one rank
	}
	return Rule{}, wrong
}

// String writes what Parse reads.
func (r Rule) String() string {
	if r.Per == 0 {
		return string(r.Unit)
	}
	return "ppr:" + strconv.Itoa(r.Per) + ":" + string(r.Unit)
}

// quote keeps what a user wrote within a line.
func quote(text string) string {
	const most = 60
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}
