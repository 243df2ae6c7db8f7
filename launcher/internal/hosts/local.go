package hosts

import (
	"net"
	"net/netip"
	"os"
	"strings"
)

// IsLocal reports whether a name means this machine: localhost, an address of one of its interfaces, or
// its hostname, with or without domain. It uses no name server, so any other name of this machine counts
// as another machine.
func IsLocal(name string) bool {
	var m machine
	return m.is(name)
}

// Unify is Merge, except that all names of this machine count as one host, which gets the first of these
// names.
func Unify(list []Host) []Host {
	var m machine
	first := ""
	renamed := make([]Host, len(list))
	for i, h := range list {
		if m.is(h.Name) {
			if first == "" {
				first = h.Name
			}
			h.Name = first
		}
		renamed[i] = h
	}
	return Merge(renamed)
}

// machine holds this machine's names and addresses. Each is read once, when it is first needed, so that
// a long list of hosts costs no more than a short one.
type machine struct {
	named   bool
	names   [2]string // long and short
	numbers []netip.Addr
	counted bool
}

// is reports whether a name means this machine.
func (m *machine) is(name string) bool {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	switch name {
	case "":
		return false
	case "localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback":
		return true
	}
	if a, err := netip.ParseAddr(name); err == nil {
		return m.has(plain(a))
	}
	if !m.named {
		m.named = true
		if own, err := os.Hostname(); err == nil {
			own = strings.ToLower(own)
			short, _, _ := strings.Cut(own, ".")
			m.names = [2]string{own, short}
		}
	}
	return name == m.names[0] || name == m.names[1]
}

// has reports whether a is an address of this machine.
func (m *machine) has(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	if !m.counted {
		m.counted = true
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			return false
		}
		for _, own := range addrs {
			if p, err := netip.ParsePrefix(own.String()); err == nil {
				m.numbers = append(m.numbers, plain(p.Addr()))
			}
		}
	}
	for _, own := range m.numbers {
		if own == a {
			return true
		}
	}
	return false
}

// plain returns an address in a form that can be compared: without zone, IPv4 as IPv4.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
