// Package hosts says which machines a job may use: it reads lists of hosts,
// hostfiles, and what resource managers leave in the environment. It starts
// nothing and asks no name server.
package hosts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Limit is how many hosts a job may have at most, and how many slots a host
// has at most. No input takes more memory than so many hosts need.
const Limit = 1 << 16

// Host is a machine that a job may use.
type Host struct {
	Name     string // as ssh or the resource manager knows it, without user and port
	User     string // for ssh; empty: as ssh is configured
	Port     int    // for ssh; 0: as ssh is configured
	Slots    int    // ranks that it is meant to take; 0: as many as it has cores
	MaxSlots int    // ranks that it may take at most; 0: no limit
	Address  string // that its ranks listen on, where the user names one; else empty
}

// Set gathers hosts in the order in which they are first named, one entry each.
// The zero Set is empty.
//
// Slots of a host that is named several times add up, and a name without slots
// counts as one. Only where no host is named twice without slots do those
// without slots keep the number open, so that a list with a line for each slot,
// as PBS writes it, gives one slot to a host that it names once.
type Set struct {
	entries []entry
	at      map[string]int // by key
	repeats bool           // some host was named twice without slots
}

type entry struct {
	Host         // Slots: the sum of those given
	bare    int  // how often it was named without slots
	limit   int  // the sum of each mention's MaxSlots, or else of its slots
	limited bool // a mention has MaxSlots
}

// key is the same for all spellings of a host. Names are compared as letters,
// since who resolves them is not known here.
func key(name string) string {
	if a, err := netip.ParseAddr(name); err == nil {
		return a.String()
	}
	return strings.ToLower(name)
}

// Add adds a mention of a host. It is an error if an earlier one says
// otherwise how to reach it.
func (s *Set) Add(h Host) error {
	if s.at == nil {
		s.at = make(map[string]int)
	}
	k := key(h.Name)
	i, known := s.at[k]
	if !known {
		if len(s.entries) == Limit {
			return fmt.Errorf("expected at most %d hosts, found more", Limit)
		}
		i = len(s.entries)
		s.at[k] = i
		s.entries = append(s.entries, entry{Host: h})
		s.entries[i].Slots, s.entries[i].MaxSlots = 0, 0
	}
	e := &s.entries[i]
	if err := e.agree(h); err != nil {
		return err
	}
	slots := h.Slots
	if slots == 0 {
		slots = 1
		e.bare++
		s.repeats = s.repeats || e.bare > 1
	}
	e.Slots += h.Slots
	e.limited = e.limited || h.MaxSlots > 0
	if h.MaxSlots > 0 {
		slots = h.MaxSlots
	}
	e.limit += slots
	return nil
}

// agree takes from h what is still open.
func (e *entry) agree(h Host) error {
	differ := func(what, a, b string) error {
		return fmt.Errorf("expected one %s for %s, found %s and %s", what, e.Name, a, b)
	}
	switch {
	case e.User != "" && h.User != "" && e.User != h.User:
		return differ("user", quote(e.User), quote(h.User))
	case e.Port != 0 && h.Port != 0 && e.Port != h.Port:
		return differ("port", strconv.Itoa(e.Port), strconv.Itoa(h.Port))
	case e.Address != "" && h.Address != "" && e.Address != h.Address:
		return differ("address", quote(e.Address), quote(h.Address))
	}
	e.Host = e.with(h)
	return nil
}

// with lays what h says of how to reach a host over what e says.
func (h Host) with(over Host) Host {
	if over.User != "" {
		h.User = over.User
	}
	if over.Port != 0 {
		h.Port = over.Port
	}
	if over.Address != "" {
		h.Address = over.Address
	}
	return h
}

// Hosts returns the hosts; nil where there are none.
func (s *Set) Hosts() []Host {
	var list []Host
	for _, e := range s.entries {
		h := e.Host
		if e.Slots > 0 || s.repeats {
			h.Slots = min(e.Slots+e.bare, Limit)
		}
		if e.limited {
			h.MaxSlots = min(e.limit, Limit)
		}
		list = append(list, h)
	}
	return list
}

// Merge returns one entry for each host of list, in the order of their first
// mention, with the slots of all; see Set. Where mentions differ in how to
// reach a host, the first counts.
func Merge(list []Host) []Host {
	var s Set
	for _, h := range list {
		if err := s.Add(h); err != nil {
			i, known := s.at[key(h.Name)]
			if !known {
				break // more than Limit
			}
			_ = s.Add(h.with(s.entries[i].Host)) // differs no more
		}
	}
	return s.Hosts()
}

// Restrict returns those hosts of all that some names, in the order of some.
// What some says of a host counts, and what it leaves open is as all says. Any
// name of the machine that asks stands for the host of all that is this
// machine. A host that is not among all, or more slots than all allows, is an
// error that calls all by the name where.
func Restrict(all, some []Host, where string) ([]Host, error) {
	return pick(all, some, where, true)
}

// Override is Restrict, but that hosts which are not among all are as some says.
func Override(all, some []Host, where string) ([]Host, error) {
	return pick(all, some, where, false)
}

func pick(all, some []Host, where string, strict bool) ([]Host, error) {
	var own machine
	var here *Host
	at := make(map[string]Host, len(all))
	for i, h := range all {
		at[key(h.Name)] = h
		if here == nil && own.is(h.Name) {
			here = &all[i]
		}
	}
	var list []Host
	for _, s := range Unify(some) {
		h, ok := at[key(s.Name)]
		if !ok && here != nil && own.is(s.Name) {
			h, ok = *here, true
		}
		switch {
		case !ok && strict:
			return nil, fmt.Errorf("expected a host of %s, found %s", where, quote(s.Name))
		case !ok:
			list = append(list, s)
			continue
		}
		most := h.MaxSlots
		h = h.with(s)
		if s.Slots > 0 {
			h.Slots = s.Slots
		}
		if most > 0 && h.Slots > most {
			return nil, fmt.Errorf("expected at most %d slots of %s, as %s says, found %d", most, h.Name, where, h.Slots)
		}
		if s.MaxSlots > 0 && (most == 0 || s.MaxSlots < most) {
			h.MaxSlots = s.MaxSlots
			h.Slots = min(h.Slots, s.MaxSlots)
		}
		list = append(list, h)
	}
	return list, nil
}
