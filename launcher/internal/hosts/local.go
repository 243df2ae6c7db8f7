package hosts

import (
	"net"
	"net/netip"
	"os"
	"strings"
)

// IsLocal reports whether a name means this machine: localhost or a name like it, a loopback
// address, an address of one of its interfaces, or its hostname, with or without the domain.
// IsLocal uses no name server, so it returns false for any other name of this machine.
func IsLocal(name string) bool {
	var m machine
	return m.is(name)
}

// Unify does what Merge does, except that all names of this machine count as one host. The name of
// that host is the first of these names in list.
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

// machine holds the names and addresses of this machine. It reads the hostname and the addresses
// when they are first needed, and only once, so that a long list of hosts needs no more system
// calls than a short one.
type machine struct {
	named   bool         // this machine has read the hostname
	names   [2]string    // the hostname in lower case, with and without its domain
	numbers []netip.Addr // the addresses of the interfaces
	counted bool         // this machine has read the addresses
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

// plain returns an address in a form for comparisons: without a zone, and as an IPv4 address if it
// is an IPv4-mapped IPv6 address.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
