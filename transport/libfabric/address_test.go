//go:build libfabric

package libfabric

import (
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		format fi.AddrFormat
		text   transport.Address
		size   int
	}{
		{fi.SockaddrIn, "192.0.2.1:4000", sockaddrIn},
		{fi.SockaddrIn6, "[2001:db8::1]:4000", sockaddrIn6},
		{fi.SockaddrIn6, "[fe80::1%3]:1", sockaddrIn6},
		{fi.AddrStr, "fi_shm://4711:0:1", 18},
		{fi.AddrEFA, "hex:00ff10", 3},
	} {
		b, err := encode(c.format, c.text)
		require.NoError(t, err, c.text)
		require.Len(t, b, c.size)
		back, err := decode(c.format, b)
		require.NoError(t, err)
		require.Equal(t, c.text, back)
	}
	for _, c := range []struct {
		format fi.AddrFormat
		text   transport.Address
	}{
		{fi.SockaddrIn, "[2001:db8::1]:4000"}, {fi.SockaddrIn, "192.0.2.1:0"}, {fi.SockaddrIn, "192.0.2.1"},
		{fi.SockaddrIn6, "192.0.2.1:4000"}, {fi.SockaddrIn6, "[fe80::1%eth0]:1"},
		{fi.AddrStr, "4711"}, {fi.AddrStr, "fi_shm://4711\x00"},
		{fi.AddrEFA, "hex:"}, {fi.AddrEFA, "hex:0"}, {fi.AddrEFA, "00ff"},
	} {
		_, err := encode(c.format, c.text)
		require.ErrorIs(t, err, transport.ErrAddress, c.text)
	}
	for _, b := range [][]byte{nil, {2}, {2, 0, 1, 1, 127}, make([]byte, sockaddrIn6)} {
		_, err := decode(fi.SockaddrIn, b)
		require.ErrorIs(t, err, transport.ErrAddress)
	}
}

func TestUnknownProvider(t *testing.T) {
	_, err := withProvider(t, "no_such_provider").Open(config(0, 1))
	require.ErrorContains(t, err, `no provider "no_such_provider"`)
	require.ErrorContains(t, err, "tcp;ofi_rxm on lo")
}

func TestUnknownInterface(t *testing.T) {
	set := &params.Set{}
	require.NoError(t, set.Set("transport.libfabric.interface", "no_such0", params.FromFlag))
	_, err := withParams{New(), set}.Open(config(0, 1))
	require.ErrorContains(t, err, `"no_such0"`)
}

// TestInterface checks that the parameter transport.libfabric.interface selects a network interface
// by its name and by its IP address.
func TestInterface(t *testing.T) {
	for _, iface := range []string{"lo", "127.0.0.1"} {
		set := &params.Set{}
		require.NoError(t, set.Set("transport.libfabric.interface", iface, params.FromFlag))
		require.NoError(t, set.Set("transport.libfabric.provider", "tcp;ofi_rxm", params.FromFlag))
		cfg := config(0, 1)
		cfg.OneHost = true
		d, err := withParams{New(), set}.Open(cfg)
		require.NoError(t, err)
		require.Equal(t, "lo", d.Attr().Name)
		require.NoError(t, d.Close())
	}
}

// TestInterfaceWithoutIP checks that choose returns an error if the hints name the provider shm,
// which has no IP addresses, together with the name or the IP address of a network interface.
func TestInterfaceWithoutIP(t *testing.T) {
	for _, iface := range []string{"127.0.0.1", "lo"} {
		h := hints{provider: "shm", ifaces: []string{iface}, oneHost: true}
		_, err := h.choose()
		require.ErrorContains(t, err, `"shm" on "`+iface+`"`)
	}
}

// openAt opens a domain and an endpoint at the address of the listener f, and closes them. It returns the
// error of Open or OpenEndpoint.
func openAt(t *testing.T, provider string, f *os.File) error {
	t.Helper()
	cfg := config(0, 1)
	cfg.Listener = f
	d, err := withProvider(t, provider).Open(cfg)
	if err != nil {
		return err
	}
	defer func() { require.NoError(t, d.Close()) }()
	cq, err := d.OpenCQ()
	require.NoError(t, err)
	av, err := d.OpenAV()
	require.NoError(t, err)
	_, err = d.OpenEndpoint(av, cq)
	return err
}

// TestInheritedListener: the process that runs a rank, for example a shell, keeps the rank's listener open.
func TestInheritedListener(t *testing.T) {
	for _, provider := range []string{"tcp;ofi_rxm", libfabrictest.XNet(), "udp;ofi_rxd"} {
		t.Run(provider, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			f, err := l.(*net.TCPListener).File()
			require.NoError(t, err)
			require.NoError(t, openAt(t, provider, f))
		})
	}
}

// TestPortInUse opens a domain with a listener whose port another socket listens on, too. Open or
// OpenEndpoint must return an error that names the address.
func TestPortInUse(t *testing.T) {
	share := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) {
			require.NoError(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		})
	}}
	l, err := share.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	other, err := share.Listen(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	defer other.Close()
	f, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	err = openAt(t, "tcp;ofi_rxm", f)
	require.ErrorContains(t, err, l.Addr().String())
	require.ErrorContains(t, err, "in use")
}

func TestUnknownHook(t *testing.T) {
	if inSubprocess(t, "WEFT_LIBFABRIC_TEST_HOOK") {
		_, err := withProvider(t, "tcp;ofi_rxm;ofi_hook_nosuch").Open(transport.Config{Size: 2, OneHost: true})
		require.ErrorContains(t, err, `no hook "ofi_hook_nosuch"; libfabric has `)
		require.ErrorContains(t, err, "ofi_hook_debug")
	}
}
