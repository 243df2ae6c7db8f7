package tcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport"
)

// backlog is how many connections may wait to be accepted; the kernel has its
// own limit.
const backlog = 4096

// inherit makes a listener of a socket that is bound and may already listen.
// The file stays its owner's.
func inherit(f *os.File) (*net.TCPListener, error) {
	var err error
	raw, rerr := f.SyscallConn()
	if rerr != nil {
		return nil, fmt.Errorf("inherited listener: %w", rerr)
	}
	if cerr := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), backlog) }); cerr != nil {
		return nil, fmt.Errorf("inherited listener: %w", cerr)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on inherited socket: %w", err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("inherited listener: %w", err)
	}
	t, ok := l.(*net.TCPListener)
	if !ok {
		_ = l.Close()
		return nil, fmt.Errorf("inherited listener is for %s, not tcp: %w", l.Addr().Network(), transport.ErrAddress)
	}
	return t, nil
}

// listen binds a socket of our own.
func listen(which string, oneHost bool) (*net.TCPListener, error) {
	ips, err := localAddrs(which, oneHost)
	if err != nil {
		return nil, err
	}
	for _, ip := range ips {
		var l net.Listener
		l, err = (&net.ListenConfig{KeepAlive: -1}).Listen(context.Background(), "tcp", netip.AddrPortFrom(ip, 0).String())
		if err == nil {
			return l.(*net.TCPListener), nil
		}
	}
	return nil, fmt.Errorf("listen: %w", err)
}

// localAddrs returns the addresses to listen on, best first: those of an
// interface, an address, a subnet; without a choice, loopback within one host,
// else the first routable.
func localAddrs(which string, oneHost bool) ([]netip.Addr, error) {
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
		return nil, fmt.Errorf("transport.tcp.interface: no address of this host is in %s: %w", which, transport.ErrAddress)
	case found:
		return nil, fmt.Errorf("transport.tcp.interface: %s is down or has no address: %w", which, transport.ErrAddress)
	}
	return nil, fmt.Errorf("transport.tcp.interface: %q is no interface, address or subnet of this host: %w", which, transport.ErrAddress)
}

// reachable is what peers call the listener. One that listens everywhere is
// called by an address chosen as for a listener of our own.
func reachable(l *net.TCPListener, which string, oneHost bool) (transport.Address, error) {
	a := l.Addr().(*net.TCPAddr)
	ip, _ := netip.AddrFromSlice(a.IP)
	ip = ip.Unmap()
	if a.IP == nil || ip.IsUnspecified() {
		ips, err := localAddrs(which, oneHost)
		if err != nil {
			return "", err
		}
		ip = ips[0]
	}
	return transport.Address(net.JoinHostPort(ip.String(), strconv.Itoa(a.Port))), nil
}
