package launcher

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The ports of a symmetric layout lie below the usual ephemeral range, where no
// outgoing connection takes one away.
const (
	firstPort  = 10000
	layoutHost = "127.0.0.1"
	layoutTry  = 16 // bases to try before ports of any number will do
	backlog    = 1024
)

// layout is the tcp address of each rank, bound and listening before the ranks
// start, so that nobody can come too early.
type layout struct {
	base  int      // rank i has port base+i; 0: see addrs
	addrs []string // "host:port" of each rank
	fds   []int    // listening sockets; -1 once handed over
}

// newLayout listens on np ports in a row, or, where there are none, on any np.
func newLayout(np int) (*layout, error) {
	top := ephemeralFloor()
	for range layoutTry {
		room := top - firstPort - np
		if room <= 0 {
			break
		}
		base := firstPort + rand.IntN(room)
		l := &layout{base: base}
		err := l.listen(np, func(i int) int { return base + i })
		if err == nil {
			return l, nil
		}
		l.close()
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EACCES) {
			return nil, err
		}
	}
	return scatteredLayout(np)
}

// scatteredLayout listens on any np ports.
func scatteredLayout(np int) (*layout, error) {
	l := &layout{addrs: make([]string, 0, np)}
	if err := l.listen(np, func(int) int { return 0 }); err != nil {
		l.close()
		return nil, err
	}
	for _, fd := range l.fds {
		sa, err := unix.Getsockname(fd)
		in, ok := sa.(*unix.SockaddrInet4)
		if err != nil || !ok {
			l.close()
			return nil, fmt.Errorf("getsockname: %w", err)
		}
		l.addrs = append(l.addrs, net.JoinHostPort(layoutHost, strconv.Itoa(in.Port)))
	}
	return l, nil
}

func (l *layout) listen(np int, port func(int) int) error {
	l.fds = make([]int, 0, np)
	for i := range np {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("socket: %w", err)
		}
		l.fds = append(l.fds, fd)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) // connections of an earlier job may linger on the port
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port(i), Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
		if err := unix.Listen(fd, backlog); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	return nil
}

func (l *layout) close() {
	for i := range l.fds {
		l.release(i)
	}
}

// release closes the launcher's copy of a rank's socket.
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
