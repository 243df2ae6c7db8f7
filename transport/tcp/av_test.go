package tcp

import (
	"math"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
)

func TestInsertSym(t *testing.T) {
	v := &addressVector{}
	for _, c := range []struct {
		node  string
		nodes int
		port  string
		n     int
		at    int
		want  transport.Address
	}{
		{"10.0.0.254", 4, "5000", 3, 7, "10.0.1.0:5001"},
		{"fd00::ffff", 2, "65535", 1, 1, "[fd00::1:0]:65535"},
		{"::ffff:ffff:ffff:ffff", 2, "1", 2, 3, "[0:0:0:1::]:2"},
		{"255.255.255.255", 1, "1", 65535, 65534, "255.255.255.255:65535"},
	} {
		first, err := v.InsertSym(c.node, c.nodes, c.port, c.n)
		require.NoError(t, err)
		got, err := v.Lookup(first + transport.Addr(c.at))
		require.NoError(t, err)
		require.Equal(t, c.want, got)
		require.Equal(t, int(first)+c.nodes*c.n, v.Len())
	}
	first, err := v.Insert([]transport.Address{"localhost:1", "[::1]:2"})
	require.NoError(t, err)
	require.Equal(t, v.Len()-2, int(first))
	got, err := v.Lookup(first + 1)
	require.NoError(t, err)
	require.Equal(t, transport.Address("[::1]:2"), got)
	for _, a := range []transport.Addr{-1, transport.Addr(v.Len())} {
		_, err = v.Lookup(a)
		require.ErrorIs(t, err, transport.ErrAddress)
	}
	got, err = v.Lookup(0)
	require.NoError(t, err)
	require.Equal(t, transport.Address("10.0.0.254:5000"), got)
}

func TestInsertRefused(t *testing.T) {
	v := &addressVector{}
	for _, c := range []struct {
		node  string
		nodes int
		port  string
		n     int
	}{
		{"localhost", 1, "1", 1}, {"10.0.0.1", 0, "1", 1}, {"10.0.0.1", 1, "1", 0}, {"10.0.0.1", -1, "1", 1},
		{"10.0.0.1", 1, "0", 1}, {"10.0.0.1", 1, "65536", 1}, {"10.0.0.1", 1, "65535", 2}, {"10.0.0.1", 1, "http", 1},
		{"255.255.255.255", 2, "1", 1}, {"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 2, "1", 1},
		{"::", math.MaxInt, "1", 60000}, {"10.0.0.1", 1, "1", math.MaxInt},
	} {
		_, err := v.InsertSym(c.node, c.nodes, c.port, c.n)
		require.ErrorIs(t, err, transport.ErrAddress, "%+v", c)
	}
	for _, a := range []transport.Address{"", "host", "host:", "host:0", ":1", "::1:1", "host:70000"} {
		_, err := v.Insert([]transport.Address{"10.0.0.1:1", a})
		require.ErrorIs(t, err, transport.ErrAddress, "%q", a)
	}
	require.Zero(t, v.Len())
}

func withInterface(t *testing.T, which string) func(*transport.Config) {
	t.Helper()
	p := &params.Set{}
	require.NoError(t, p.Set("transport.tcp.interface", which, params.FromFlag))
	return func(c *transport.Config) { c.Params, c.OneHost = p, false }
}

// TestSendBuffer checks that the socket's send buffer has the size of transport.tcp.send_buffer, or
// loopbackSendBuf if that is 0. The kernel doubles the size that a process sets, and reports the
// doubled size.
func TestSendBuffer(t *testing.T) {
	for text, want := range map[string]int{"0": 2 * loopbackSendBuf, "64k": 128 << 10} {
		p := &params.Set{}
		require.NoError(t, p.Set("transport.tcp.send_buffer", text, params.FromFlag))
		all := openRanks(t, 2, func(c *transport.Config) { c.Params = p })
		connected(t, all, 0, 1)
		got, err := unix.GetsockoptInt(all[0].dom.peer(1).fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestInterface(t *testing.T) {
	for which, want := range map[string]string{
		"lo": "127.0.0.1", "127.0.0.0/8": "127.0.0.1", "127.0.0.5": "127.0.0.5", "::1": "::1", "::1/128": "::1",
	} {
		all := openRanks(t, 2, withInterface(t, which))
		host, _, err := net.SplitHostPort(string(all[0].ep.Address()))
		require.NoError(t, err)
		require.Equal(t, want, host)
		connected(t, all, 0, 1)
	}
	for _, which := range []string{"nosuch0", "203.0.113.7", "203.0.113.0/24"} {
		cfg := config(0, 2)
		withInterface(t, which)(&cfg)
		_, err := New().Open(cfg)
		require.Error(t, err)
	}
	cfg := config(0, 2)
	cfg.OneHost = false // without an interface in Params, Open chooses one of this host
	d, err := New().Open(cfg)
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

func TestInheritedListener(t *testing.T) {
	f, addr := boundSocket(t)
	cfg := config(0, 1)
	cfg.Listener = f
	d, err := New().Open(cfg)
	require.NoError(t, err)
	require.Equal(t, addr, d.Attr().Name)
	require.NoError(t, d.Close())
	_, err = net.Dial("tcp", addr)
	require.Error(t, err, "no socket listens after Close, although the file is open")
}
