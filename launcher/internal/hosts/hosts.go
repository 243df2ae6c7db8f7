// Package hosts finds out which machines a job may use. It reads lists of hosts, hostfiles, and the
// environment variables of resource managers. It starts no process and uses no name server.
package hosts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Limit is the largest number of hosts of a job, and the largest number of slots of a host. It
// bounds the memory that a list from outside can take.
const Limit = 1 << 16

// Host is a machine that a job may use.
type Host struct {
	Name string // the name by which ssh or the resource manager knows the host, without user and port
	User string // user for ssh; empty: the user's configuration of ssh decides
	Port int    // port for ssh; 0: the user's configuration of ssh decides
	// Slots is the number of ranks that the host should run. It is 0 if no number is given; the
	// number then follows from the host's cores.
	Slots    int
	MaxSlots int    // largest number of ranks that the host may run; 0: no limit
	Address  string // address on which the host's ranks listen; empty: the user has not given one
}

// Set collects mentions of hosts. It has one entry for each host, in the order of the first
// mentions. The zero Set is empty.
//
// If a host is mentioned several times, its slots add up, and a mention without slots counts as one
// slot. In a list that has one line for each slot, as PBS writes it, that gives the right number of
// slots. If any host is mentioned more than once without slots, the list probably has one line for
// each slot. Then a host that is mentioned only once and without slots gets one slot. Otherwise the
// Slots of such a host stay 0.
type Set struct {
	entries []entry        // in the order of the first mentions of the hosts
	at      map[string]int // index in entries, by the key of the host's name
	repeats bool           // at least one host was mentioned more than once without slots
}

// entry is a host of a Set.
type entry struct {
	Host             // Slots is the sum of the slots of all mentions that have slots; MaxSlots is not used
	withoutSlots int // number of mentions without slots
	// limit is the sum of the MaxSlots of all mentions. A mention without MaxSlots counts with its
	// slots, or as 1.
	limit   int
	limited bool // at least one mention has MaxSlots
}

// key returns a string that is the same for all spellings of a name or address: upper and lower
// case, and the different forms of an IPv6 address. It does not resolve names.
func key(name string) string {
	if a, err := netip.ParseAddr(name); err == nil {
		return a.String()
	}
	return strings.ToLower(name)
}

// Add adds a mention of a host to the set. It returns an error if an earlier mention of the host
// has another user, port or address. It also returns an error, and does not add the host, if the
// set would have more than Limit hosts.
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

// update sets user, port and address of e to those of h, where h has them. It returns an error if e
// already has a different one.
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

// with returns h with user, port and address replaced by those of over, where over has them.
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

// Hosts returns the hosts of the set with the sums of their slots, at most Limit, in the order of
// the first mentions. It returns nil if there are none.
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

// Merge returns one entry for each host of list, in the order of their first mention, with the sum
// of their slots: see Set. If mentions of a host differ in user, port or address, the first mention
// that has this property counts. If the list has more than Limit hosts, Merge leaves out the rest
// of the list.
func Merge(list []Host) []Host {
	var s Set
	for _, h := range list {
		if err := s.Add(h); err != nil {
			i, known := s.at[key(h.Name)]
			if !known {
				break // more than Limit hosts
			}
			// There is no error, because user, port and address are now those in the set.
			_ = s.Add(h.with(s.entries[i].Host))
		}
	}
	return s.Hosts()
}

// Restrict returns those hosts in the list all that the list some names, in the order of some. If
// some gives slots, user, port or address of a host, they replace those in all. A MaxSlots in some
// counts only if it is lower than that in all. If some names this machine, by any of its names,
// that means the host in all that is this machine. Restrict returns an error if some names a host
// that is not in all, or gives more slots than the MaxSlots in all. where says in errors what all
// is, for example the name of a file.
func Restrict(all, some []Host, where string) ([]Host, error) {
	return pick(all, some, where, true)
}

// Override does what Restrict does, except that a host in some that is not in all is no error: the
// result has it as it is in some.
func Override(all, some []Host, where string) ([]Host, error) {
	return pick(all, some, where, false)
}

// pick does what Restrict does if strict is set, and otherwise what Override does.
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
