//go:build linux && libfabric

package examples_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/testbed"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// twoHosts returns two hosts that are connected by two networks, and a program for libfabric.
func twoHosts(t *testing.T) (c *testbed.Cluster, program string) {
	c = testbed.Up(t, 2)
	testbed.Connect(t, c.Hosts()[0], c.Hosts()[1], "eth1")
	program = filepath.Join(t.TempDir(), "allreduce")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-tags", "libfabric", "-o", program, "./allreduce").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return c, program
}

// TestHostsOverProviders runs an example on two hosts over the providers of libfabric that use IP, with one
// interface of each rank and with two.
func TestHostsOverProviders(t *testing.T) {
	c, program := twoHosts(t)
	hosts := c.Names()[0] + ":2," + c.Names()[1] + ":2"
	for _, provider := range []string{"tcp;ofi_rxm", libfabrictest.XNet(), "udp;ofi_rxd", "sockets"} {
		for _, interfaces := range []string{"", "eth0,eth1"} {
			t.Run(provider+" "+interfaces, func(t *testing.T) {
				cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "gorun"), "-ssh", c.SSH(), "-host", hosts, "-np", "4",
					"-timeout", "2m", "-v", "-transport", "libfabric", "-provider", provider, "-p", "transport.libfabric.interface="+interfaces,
					program, "-n", "30001", "-reps", "3")
				out, err := cmd.CombinedOutput()
				require.NoError(t, err, "%s", out)
				require.Contains(t, string(out), "joined by libfabric "+provider)
				require.Equal(t, interfaces != "", strings.Contains(string(out), " (eth0,eth1) to 3"), "%s", out)
				require.Contains(t, string(out), "correct")
			})
		}
	}
}

// TestTwoInterfaces runs an example on two hosts that are connected by two networks. Each must carry about
// half of the large transfers.
func TestTwoInterfaces(t *testing.T) {
	c, program := twoHosts(t)
	a, b := c.Hosts()[0], c.Hosts()[1]
	const doubles = 1 << 20
	carried := func(iface string) int {
		text, err := a.Command(t.Context(), "cat", "/proc/net/dev").Output()
		require.NoError(t, err)
		_, line, found := strings.Cut(string(text), iface+":")
		require.True(t, found, "%s", text)
		n, err := strconv.Atoi(strings.Fields(line)[8]) // bytes sent
		require.NoError(t, err)
		return n
	}
	run := func(interfaces string) (first, second int) {
		first, second = carried("eth0"), carried("eth1")
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "gorun"), "-ssh", c.SSH(), "-host", a.Name()+":1,"+b.Name()+":1", "-np", "2",
			"-timeout", "1m", "-v", "-provider", "tcp;ofi_rxm", "-p", "transport.libfabric.interface="+interfaces,
			program, "-n", fmt.Sprint(doubles), "-reps", "100")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "joined by libfabric tcp;ofi_rxm ("+interfaces+") to 1")
		require.Contains(t, string(out), "correct")
		return carried("eth0") - first, carried("eth1") - second
	}
	first, second := run("eth0,eth1")
	t.Logf("eth0 carried %d bytes, eth1 %d", first, second)
	require.Greater(t, second, 8*doubles)
	require.InEpsilon(t, first, second, 0.25) // a rank connects the second interface when it first uses it
	first, second = run("eth1")
	require.Greater(t, second, 10*first)
}
