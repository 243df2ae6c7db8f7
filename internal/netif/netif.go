// Package netif finds the addresses of this host that ranks listen on.
package netif

import (
	"fmt"
	"net"
	"net/netip"
)

// Addrs returns the addresses to listen on, best first. which names an interface, an
// address or a subnet of this host. It may be empty: then Addrs returns the loopback's
// addresses if oneHost is set, else the addresses that other hosts can reach or, if there
// are none, the loopback's. If which is an address, Addrs returns it even if this host does
// not have it. IPv4 addresses come before IPv6 addresses. If there is no address, Addrs
// returns an error.
func Addrs(which string, oneHost bool) ([]netip.Addr, error) {
	lo := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	if which == "" && oneHost {
		return lo, nil
	}
	if ip, err := netip.ParseAddr(which); err == nil {
		return []netip.Addr{ip}, nil
	}
	subnet, err := netip.ParsePrefix(which)
	isSubnet := err == nil
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var v4, v6 []netip.Addr
	found := false
	for _, i := range ifs {
		if !isSubnet && which != "" {
			if i.Name != which {
				continue
			}
			found = true
		}
		addrs, err := i.Addrs()
		if err != nil || i.Flags&net.FlagUp == 0 {
			continue
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, ok := netip.AddrFromSlice(n.IP)
			if !ok {
				continue
			}
			ip = ip.Unmap()
			switch {
			case isSubnet && !subnet.Contains(ip), which == "" && ip.IsLoopback(), ip.IsLinkLocalUnicast():
			case ip.Is4():
				v4 = append(v4, ip)
			default:
				v6 = append(v6, ip)
			}
		}
	}
	all := append(v4, v6...)
	switch {
	case len(all) > 0:
		return all, nil
	case which == "":
		return lo, nil // a host without a network
	case isSubnet:
		return nil, fmt.Errorf("no address of this host is in %s", which)
	case found:
		return nil, fmt.Errorf("%s is down or has no address", which)
	}
	return nil, fmt.Errorf("%q is no interface, address or subnet of this host", which)
}

// Check returns an error if ranks can listen on none of the addresses that [Addrs] returns for
// which and oneHost = false. It binds a port for a moment.
func Check(which string) error {
	ips, err := Addrs(which, false)
	if err != nil {
		return err
	}
	for _, ip := range ips {
		var l *net.TCPListener
		if l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))); err == nil {
			return l.Close()
		}
	}
	return err
}
