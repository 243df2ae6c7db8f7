package hosts

import (
	"fmt"
	"net/netip"
	"strings"
)

// ParseList parses a list of hosts as users of mpiexec write it after -host, such as
// "a:4,b,node[1-3]:2,user@c". Its entries are [USER@]HOST[:SLOTS], with commas between them. HOST
// may have brackets as in Expand; then each of the hosts has SLOTS slots. An IPv6 address with
// slots must be in brackets. A host that is named several times has one entry in the result: see
// Set.
func ParseList(text string) ([]Host, error) {
	var s Set
	room := Limit
	for _, e := range split(text) {
		list, err := parseEntry(e, text, &room)
		if err != nil {
			return nil, err
		}
		for _, h := range list {
			if err := s.Add(h); err != nil {
				return nil, err
			}
		}
	}
	return s.Hosts(), nil
}

// parseEntry returns the hosts that entry e of a list describes, and subtracts their number from
// room. It returns an error if there are more than room hosts. list is the whole list, for errors.
func parseEntry(e, list string, room *int) ([]Host, error) {
	if e == "" {
		return nil, fmt.Errorf("expected HOST[:SLOTS] separated by commas, found %s", quote(list))
	}
	var h Host
	name := e
	if i := strings.LastIndexByte(e, '@'); i >= 0 {
		h.User, name = e[:i], e[i+1:]
		if err := CheckUser(h.User); err != nil {
			return nil, err
		}
	}
	name, count, counted := cutSlots(name)
	if name == "" || counted && count == "" {
		return nil, fmt.Errorf("expected HOST[:SLOTS], found %s", quote(e))
	}
	if counted {
		var ok bool
		if h.Slots, ok = parseCount(count, Limit); !ok {
			return nil, fmt.Errorf("expected HOST[:SLOTS] with from 1 to %d slots, found %s", Limit, quote(e))
		}
	}
	names, err := expandOne(name, list, *room)
	if err != nil {
		return nil, err
	}
	*room -= len(names)
	hosts := make([]Host, len(names))
	for i, n := range names {
		hosts[i] = h
		hosts[i].Name = n
	}
	return hosts, nil
}

// cutSlots splits HOST:SLOTS at its last colon. counted is false if there is no such colon, or if
// it belongs to an IPv6 address.
func cutSlots(text string) (name, count string, counted bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Is6() {
		return text, "", false
	}
	i := strings.LastIndexByte(text, ':')
	// The text has no slots if it has no colon, or if the colon is inside of brackets such as
	// [::1].
	if open := strings.LastIndexByte(text, '['); i < 0 || open >= 0 && strings.LastIndexByte(text[:i], ']') < open {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}
