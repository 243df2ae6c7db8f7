//go:build linux

package procs

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestLayout(t *testing.T) {
	const np = 16
	var many []*layout
	for range 8 { // all layouts are open at the same time, so each must get ports of its own
		base := BasePort(np, 0, 0)
		require.GreaterOrEqual(t, base, firstPort)
		require.Less(t, base+np-1, ephemeralFloor())
		l, err := newLayout("127.0.0.1", base, np, portRange{}, len(many)%2 == 0)
		require.NoError(t, err)
		require.Len(t, l.fds, np)
		require.Len(t, l.ports, np)
		many = append(many, l)
	}
	for _, l := range many {
		l.close()
		l.close()
	}
	require.Zero(t, BasePort(60_000, 0, 0), "there are not as many below the ephemeral range")
}

// TestLayoutWhereAPortIsTaken checks that newLayout uses other ports if one of the ports from base
// on is in use.
func TestLayoutWhereAPortIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, text, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	port, err := strconv.Atoi(text)
	require.NoError(t, err)
	l, err := newLayout("127.0.0.1", port-1, 3, portRange{}, true)
	require.NoError(t, err)
	defer l.close()
	require.Zero(t, l.base)
	require.Len(t, l.ports, 3)
	require.NotContains(t, l.ports, port)
	_, err = newLayout("192.0.2.1", port, 1, portRange{}, false)
	require.Error(t, err, "not an address of this host")
}

// takenUDPPort returns a number such that this test uses the UDP port of that number and the TCP
// port of that number is free.
func takenUDPPort(t *testing.T, addr netip.Addr) int {
	t.Helper()
	for {
		fd, port, err := bind(addr, unix.SOCK_DGRAM, 0)
		require.NoError(t, err)
		l := &layout{}
		err = l.listen(addr, 1, false, func(int) int { return port })
		l.close()
		if errors.Is(err, unix.EADDRINUSE) { // another process uses the TCP port
			require.NoError(t, unix.Close(fd))
			continue
		}
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
		return port
	}
}

// TestLayoutLeavesDatagrams checks that with datagrams set no rank gets a TCP port if the UDP port
// of the same number is in use.
func TestLayoutLeavesDatagrams(t *testing.T) {
	loopback := netip.MustParseAddr("127.0.0.1")
	port := takenUDPPort(t, loopback)
	l := &layout{}
	err := l.listen(loopback, 1, true, func(int) int { return port })
	l.close()
	require.ErrorIs(t, err, unix.EADDRINUSE)
	for _, base := range []int{0, BasePort(8, 0, 0)} {
		l, err := newLayout("127.0.0.1", base, 8, portRange{}, true)
		require.NoError(t, err)
		for _, port := range l.ports {
			fd, _, err := bind(loopback, unix.SOCK_DGRAM, port)
			require.NoError(t, err)
			require.NoError(t, unix.Close(fd))
		}
		l.close()
	}
}

// TestLayoutWithinARange checks that newLayout uses all ports of a range and no others.
func TestLayoutWithinARange(t *testing.T) {
	for range 100 {
		require.Contains(t, []int{20_000, 20_001}, BasePort(3, 20_000, 20_003))
	}
	require.Zero(t, BasePort(5, 20_000, 20_003))
	base := BasePort(8, 0, 0) // these ports are usually free
	may := portRange{base, base + 3}
	l, err := newLayout("127.0.0.1", base+2, 2, may, false)
	require.NoError(t, err)
	defer l.close()
	m, err := newLayout("127.0.0.1", base+1, 2, may, true)
	require.NoError(t, err)
	defer m.close()
	require.Zero(t, m.base)
	require.Equal(t, []int{base, base + 1}, m.ports)
	_, err = newLayout("127.0.0.1", base, 1, may, false)
	require.ErrorContains(t, err, "0 are free, and 1 are needed")
}
