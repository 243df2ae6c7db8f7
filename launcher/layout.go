package launcher

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/weft-hpc/weft/internal/params"
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
	ports []int    // of each rank
	fds   []int    // listening sockets; -1 once handed over
}

// sharesMemory says whether shared memory comes first among the transports. It
// reaches every rank of a job on one host, so that none needs a port.
func sharesMemory(s *params.Set) bool {
	use := s.List("transport.use")
	return len(use) > 0 && use[0] == "shm"
}

// newLayout listens on np ports in a row, or, where there are none, on any np.
// With datagrams the UDP ports of these numbers are free too: a libfabric
// provider binds the one or the other.
func newLayout(np int, datagrams bool) (*layout, error) {
	top := ephemeralFloor()
	for range layoutTry {
		room := top - firstPort - np
		if room <= 0 {
			break
		}
		base := firstPort + rand.IntN(room)
		l := &layout{base: base}
		err := l.listen(np, datagrams, func(i int) int { return base + i })
		if err == nil {
			return l, nil
		}
		l.close()
		if !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EACCES) {
			return nil, err
		}
	}
	return scatteredLayout(np, datagrams)
}

// scatteredLayout listens on any np ports.
func scatteredLayout(np int, datagrams bool) (*layout, error) {
	var err error
	for range layoutTry {
		l := &layout{}
		if err = l.listen(np, datagrams, func(int) int { return 0 }); err == nil {
			for _, port := range l.ports {
				l.addrs = append(l.addrs, net.JoinHostPort(layoutHost, strconv.Itoa(port)))
			}
			return l, nil
		}
		l.close()
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, err
}

// listen binds the ports, of which 0 is any.
func (l *layout) listen(np int, datagrams bool, port func(int) int) error {
	l.fds, l.ports = make([]int, 0, np), make([]int, 0, np)
	for i := range np {
		fd, bound, err := bind(unix.SOCK_STREAM, port(i))
		if err != nil {
			return err
		}
		l.fds, l.ports = append(l.fds, fd), append(l.ports, bound)
		if err := unix.Listen(fd, backlog); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		if datagrams {
			probe, _, err := bind(unix.SOCK_DGRAM, bound)
			if err != nil {
				return err
			}
			_ = unix.Close(probe)
		}
	}
	return nil
}

// bind makes a socket on a port of layoutHost and returns the port that it has.
func bind(kind, port int) (fd, bound int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, 0, fmt.Errorf("socket: %w", err)
	}
	if kind == unix.SOCK_STREAM { // connections of an earlier job may linger on the port
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		_ = unix.Close(fd)
		return -1, 0, fmt.Errorf("bind: %w", err)
	}
	sa, err := unix.Getsockname(fd)
	in, ok := sa.(*unix.SockaddrInet4)
	if err != nil || !ok {
		_ = unix.Close(fd)
		return -1, 0, fmt.Errorf("getsockname: %w", err)
	}
	return fd, in.Port, nil
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
