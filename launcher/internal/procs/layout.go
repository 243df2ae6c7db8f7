package procs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/sys"
	"golang.org/x/sys/unix"
)

const (
	// firstPort is the lowest port that BasePort chooses if the user gives no range. The highest
	// lies below the ephemeral range, so the kernel chooses none of these ports for an outgoing
	// connection.
	firstPort = 10000
	// layoutTry is the number of attempts to get ports that the kernel chooses. An attempt fails if
	// the UDP port of the same number must be free, too, and is in use.
	layoutTry = 16
	backlog   = 1024 // argument of listen(2)
)

// layout holds a listening TCP socket for each rank of this host. The sockets listen before any
// rank of the job starts, so a rank can connect to another one that has not started yet.
type layout struct {
	base  int   // local rank i has port base+i; 0: any ports, see ports
	ports []int // by local rank: its port
	fds   []int // by local rank: its listening socket; -1: the rank has it, and it is closed here
}

// portRange is the range of ports that ranks may use, from low to high inclusive. If low is 0, they
// may use any ports.
type portRange struct{ low, high int }

// BasePort returns the first of n consecutive ports that are probably free on all hosts. It chooses
// them at random in the range from low to high inclusive. If low is 0, the range is from firstPort
// to the last port below the ephemeral range of this host. If the range has fewer than n ports,
// BasePort returns 0.
func BasePort(n, low, high int) int {
	if low == 0 {
		low, high = firstPort, ephemeralFloor()-1
	}
	room := high + 1 - low - n
	if room < 0 {
		return 0
	}
	return low + rand.IntN(room+1)
}

// newLayout listens on np TCP ports of an address. It uses the ports from base on. If base is 0, or
// if another process uses one of these ports or the kernel refuses it, newLayout uses any np ports
// of the range may, and the layout's base is 0. If datagrams is set, it uses only ports whose UDP
// ports of the same numbers are free, too, because some libfabric providers bind those.
func newLayout(address string, base, np int, may portRange, datagrams bool) (*layout, error) {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return nil, err
	}
	if base > 0 {
		l := &layout{base: base}
		err := l.listen(ip, np, datagrams, func(i int) int { return base + i })
		if err == nil {
			return l, nil
		}
		l.close()
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EACCES) {
			return nil, err
		}
	}
	if may.low > 0 {
		return scanLayout(ip, np, may, datagrams)
	}
	for range layoutTry {
		l := &layout{}
		if err = l.listen(ip, np, datagrams, func(int) int { return 0 }); err == nil {
			return l, nil
		}
		l.close()
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, err
}

// scanLayout listens on the first np free ports of the range may. datagrams is as in newLayout.
func scanLayout(ip netip.Addr, np int, may portRange, datagrams bool) (*layout, error) {
	l := &layout{}
	for port := may.low; port <= may.high && len(l.fds) < np; port++ {
		one := &layout{}
		err := one.listen(ip, 1, datagrams, func(int) int { return port })
		if err == nil {
			l.fds, l.ports = append(l.fds, one.fds[0]), append(l.ports, port)
			continue
		}
		one.close()
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EACCES) {
			l.close()
			return nil, err
		}
	}
	if len(l.fds) < np {
		l.close()
		return nil, fmt.Errorf("ports %d-%d: %d are free, and %d are needed", may.low, may.high, len(l.fds), np)
	}
	return l, nil
}

// listen listens on np ports. port returns the number of the i-th port. If it is 0, the kernel
// chooses the port. If listen fails, the caller must close l.
func (l *layout) listen(ip netip.Addr, np int, datagrams bool, port func(int) int) error {
	l.fds, l.ports = make([]int, 0, np), make([]int, 0, np)
	for i := range np {
		fd, bound, err := bind(ip, unix.SOCK_STREAM, port(i))
		if err != nil {
			return err
		}
		l.fds, l.ports = append(l.fds, fd), append(l.ports, bound)
		if err := unix.Listen(fd, backlog); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		if datagrams {
			probe, _, err := bind(ip, unix.SOCK_DGRAM, bound)
			if err != nil {
				return err
			}
			_ = unix.Close(probe)
		}
	}
	return nil
}

// bind makes a socket bound to a port of an address. It returns the port that the socket has.
func bind(ip netip.Addr, kind, port int) (fd, bound int, err error) {
	family := unix.AF_INET6
	var sa unix.Sockaddr
	if ip.Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: ip.As4()}
	} else {
		sa = &unix.SockaddrInet6{Port: port, Addr: ip.As16()}
	}
	if fd, err = sys.Socket(family, kind); err != nil {
		return -1, 0, fmt.Errorf("socket: %w", err)
	}
	// Connections of an earlier job may be in TIME_WAIT on the port. And a rank that uses libfabric binds it
	// again while other processes still have this socket.
	if kind == unix.SOCK_STREAM {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err = unix.Bind(fd, sa); err != nil {
		_ = unix.Close(fd)
		return -1, 0, fmt.Errorf("bind: %w", err)
	}
	got, err := unix.Getsockname(fd)
	switch got := got.(type) {
	case *unix.SockaddrInet4:
		return fd, got.Port, nil
	case *unix.SockaddrInet6:
		return fd, got.Port, nil
	}
	_ = unix.Close(fd)
	return -1, 0, fmt.Errorf("getsockname: %w", err)
}

func (l *layout) close() {
	for i := range l.fds {
		l.release(i)
	}
}

// release closes this process's copy of a rank's socket. rank is the rank's local number.
func (l *layout) release(rank int) {
	if l.fds[rank] >= 0 {
		_ = unix.Close(l.fds[rank])
		l.fds[rank] = -1
	}
}

func ephemeralFloor() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		if f := strings.Fields(string(text)); len(f) == 2 {
			if n, err := strconv.Atoi(f[0]); err == nil && n > 0 {
				return min(n, 65536)
			}
		}
	}
	return 32768
}
