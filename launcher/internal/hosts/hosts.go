// Package hosts finds out which machines a job may use. It reads lists of hosts, hostfiles, and the
// environment variables of resource managers. It starts no process and uses no name server.
package hosts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Limit is the largest number of hosts of a job, and the largest number of slots of a host. It bounds
// the memory that any input can take.
const Limit = 1 << 16

// Host is a machine that a job may use.
type Host struct {
	Name     string // the name for ssh or the resource manager, without user and port
	User     string // user for ssh; empty: as ssh is configured
	Port     int    // port for ssh; 0: as ssh is configured
	Slots    int    // number of ranks that it should run; 0: its number of cores
	MaxSlots int    // largest number of ranks that it may run; 0: no limit
	Address  string // address that its ranks listen on; empty: the user has not given one
}

// Set collects hosts in the order in which they are first named, one entry for each. The zero Set is
// empty.
//
// If a host is named several times, its slots add up, and a name without slots counts as one slot. So
// a list with one line for each slot, as PBS writes it, gives one slot to a host that it names once. If
// no host is named twice without slots, a host without slots keeps Slots 0.
type Set struct {
	entries []entry
	at      map[string]int // index of an entry, by key
	repeats bool           // at least one host was named twice without slots
}

type entry struct {
	Host              // Slots is the sum of the given slots
	withoutSlots int  // number of mentions without slots
	limit        int  // sum over all mentions of MaxSlots, or of the slots if a mention has no MaxSlots
	limited      bool // at least one mention has MaxSlots
}

// key returns the same string for all spellings of a host's name or address. It does not resolve names.
func key(name string) string {
	if a, err := netip.ParseAddr(name); err == nil {
		return a.String()
	}
	return strings.ToLower(name)
}

// Add adds a mention of a host. It returns an error if an earlier mention gives another user, port or
// address.
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
	if err := e.update(h); err != nil {
		return err
	}
	slots := h.Slots
	if slots == 0 {
		slots = 1
		e.withoutSlots++
		s.repeats = s.repeats || e.withoutSlots > 1
	}
	e.Slots += h.Slots
	e.limited = e.limited || h.MaxSlots > 0
	if h.MaxSlots > 0 {
		slots = h.MaxSlots
	}
	e.limit += slots
	return nil
}

// update takes over user, port and address from h, and returns an error if e has other ones.
func (e *entry) update(h Host) error {
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

// with returns h with the user, port and address of over, where over has them.
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

// Hosts returns the hosts; nil: there are none.
func (s *Set) Hosts() []Host {
	var list []Host
	for _, e := range s.entries {
		h := e.Host
		if e.Slots > 0 || s.repeats {
			h.Slots = min(e.Slots+e.withoutSlots, Limit)
		}
		if e.limited {
			h.MaxSlots = min(e.limit, Limit)
		}
		list = append(list, h)
	}
	return list
}

// Merge returns one entry for each host of list, in the order of their first mention, with the sum of
// the slots; see Set. If mentions differ in user, port or address, the first counts.
func Merge(list []Host) []Host {
	var s Set
	for _, h := range list {
		if err := s.Add(h); err != nil {
			i, known := s.at[key(h.Name)]
			if !known {
				break // more than Limit hosts
			}
			_ = s.Add(h.with(s.entries[i].Host)) // differs no more
		}
	}
	return s.Hosts()
}

// Restrict returns the hosts of all that some names, in the order of some. Values that some gives for a
// host replace those of all. Any name of this machine in some means the host of all that is this
// machine. Restrict returns an error if some names a host that is not in all, or gives more slots than
// all permits. The error calls all by the name where.
func Restrict(all, some []Host, where string) ([]Host, error) {
	return pick(all, some, where, true)
}

// Override is Restrict, except that it adds hosts of some that are not in all.
func Override(all, some []Host, where string) ([]Host, error) {
	return pick(all, some, where, false)
}

// pick is Restrict if strict is set, and Override otherwise.
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
