package tcp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/netif"
	"github.com/weft-hpc/weft/transport"
)

// backlog is the argument of listen(2): the number of connections that may wait to be accepted. The
// kernel's own limit may be lower.
const backlog = 4096

// inherit makes the socket f listen, and returns a listener for a duplicate of f. f is bound and
// may already listen. The caller still owns f.
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

// listen returns a listener on the first address of localAddrs that permits it, on a port that the
// kernel chooses.
func listen(iface string, oneHost bool) (*net.TCPListener, error) {
	ips, err := localAddrs(iface, oneHost)
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

// localAddrs returns the addresses of this host that listen may use, the preferred one first. iface
// is transport.tcp.interface. oneHost says that all ranks of the job run on this host.
func localAddrs(iface string, oneHost bool) ([]netip.Addr, error) {
	ips, err := netif.Addrs(iface, oneHost)
	if err != nil {
		return nil, fmt.Errorf("transport.tcp.interface: %w: %w", err, transport.ErrAddress)
	}
	return ips, err
}

// reachable returns the address "host:port" at which peers reach the listener. If the listener is
// bound to the unspecified address (0.0.0.0 or ::), the host is the first address of localAddrs.
func reachable(l *net.TCPListener, iface string, oneHost bool) (transport.Address, error) {
	a := l.Addr().(*net.TCPAddr)
	ip, _ := netip.AddrFromSlice(a.IP)
	ip = ip.Unmap()
	if a.IP == nil || ip.IsUnspecified() {
		ips, err := localAddrs(iface, oneHost)
		if err != nil {
			return "", err
		}
		ip = ips[0]
	}
	return transport.Address(net.JoinHostPort(ip.String(), strconv.Itoa(a.Port))), nil
}
