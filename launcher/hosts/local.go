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
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	switch name {
	case "localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback":
		return true
	}
	if a, err := netip.ParseAddr(name); err == nil {
		return localAddress(a)
	}
	own, err := os.Hostname()
	if err != nil || name == "" {
		return false
	}
	own = strings.ToLower(own)
	short, _, _ := strings.Cut(own, ".")
	return name == own || name == short
}

func localAddress(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if a.IsLoopback() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, own := range addrs {
		if p, err := netip.ParsePrefix(own.String()); err == nil && p.Addr().Unmap().WithZone("") == a {
			return true
		}
	}
	return false
}
