package hosts

import (
	"net"
	"net/netip"
	"os"
	"strings"
)

// IsLocal says whether a name means the machine that asks: localhost, an
// address of the loopback or of another of its interfaces, or its own name,
// short or long. No name server is asked, so that another name for this
// machine counts as another machine.
func IsLocal(name string) bool {
	var m machine
	return m.is(name)
}

// Unify is Merge, but that all names of the machine that asks count as one
// host, which has the first of them.
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

// machine is this machine's names and addresses, each asked for once and not
// before it is needed, so that a long list of hosts costs no more than a short.
type machine struct {
	named   bool
	names   [2]string // long and short
	numbers []netip.Addr
	counted bool
}

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

// plain is an address without what does not tell one machine from another.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
