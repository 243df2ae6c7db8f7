//go:build libfabric

package libfabric

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/devicetest"
	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
	"github.com/weft-hpc/weft/transport/transporttest"
)

// withHMEM returns the provider of this package over a libfabric provider that must have FI_HMEM.
func withHMEM(t testing.TB, prov string) transport.Provider {
	t.Helper()
	set := &params.Set{}
	require.NoError(t, set.Set("transport.libfabric.provider", prov, params.FromFlag))
	require.NoError(t, set.Set("transport.libfabric.hmem", "true", params.FromFlag))
	return withParams{New(), set}
}

// TestConformanceDevices runs conformance tests of RMA with FI_HMEM.
func TestConformanceDevices(t *testing.T) {
	for _, script := range []string{"verbs", "efa,late=100", "cxi,nics=2", "psm,eagain=30"} {
		t.Run(script, func(t *testing.T) {
			transporttest.Run(t, transporttest.OpenWith(func(t testing.TB) (transport.Provider, func(int)) {
				t.Helper()
				return libfabrictest.WithScript(withHMEM(t, libfabrictest.Name), script), nil
			}), transporttest.WithRanks(2, 3), transporttest.Only("memory of devices", "read", "write"))
		})
	}
}

// TestHMEMP2P checks that each value of transport.libfabric.hmem_p2p reaches the endpoints of all adapters, and
// that the error of a provider that refuses it says so.
func TestHMEMP2P(t *testing.T) {
	open := func(script, hmem, p2p string) (transport.Domain, error) {
		set := &params.Set{}
		require.NoError(t, set.Set("transport.libfabric.provider", libfabrictest.Name, params.FromFlag))
		require.NoError(t, set.Set("transport.libfabric.hmem", hmem, params.FromFlag))
		require.NoError(t, set.Set("transport.libfabric.hmem_p2p", p2p, params.FromFlag))
		require.NoError(t, set.Set("transport.libfabric.nics", "2", params.FromFlag))
		cfg := config(0, 1)
		cfg.OneHost, cfg.Params = true, set
		d, err := libfabrictest.WithScript(New(), script).Open(cfg)
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		cq, err := d.OpenCQ()
		require.NoError(t, err)
		av, err := d.OpenAV()
		require.NoError(t, err)
		_, err = d.OpenEndpoint(av, cq)
		return d, err
	}
	for p2p, want := range map[string]int{
		"default": -1, "enabled": fi.HMEMP2PEnabled, "preferred": fi.HMEMP2PPreferred,
		"required": fi.HMEMP2PRequired, "disabled": fi.HMEMP2PDisabled,
	} {
		d, err := open("cxi,nics=2", "true", p2p)
		require.NoError(t, err)
		require.Len(t, d.(*domain).lanes, 2)
		for _, l := range d.(*domain).lanes {
			got, err := l.fiep.GetOpt(fi.OptHMEMP2P)
			require.NoError(t, err)
			require.Equal(t, want, got, p2p)
		}
	}
	_, err := open("verbs,nop2p=1", "true", "required")
	require.ErrorContains(t, err, "libfabric testprov on verbs: FI_OPT_FI_HMEM_P2P = required: ")
	require.ErrorIs(t, err, fi.ErrNotSupp)
	_, err = open("verbs", "false", "required")
	require.ErrorContains(t, err, "transport.libfabric.hmem_p2p=required needs transport.libfabric.hmem=true")
}

// TestDevicesRefused checks the errors if memory of a device cannot be registered.
func TestDevicesRefused(t *testing.T) {
	mem := devicetest.New(t).AllocBytes(t, 100)
	n := openNode(t, libfabrictest.WithScript(withHMEM(t, libfabrictest.Name), "cxi"), config(0, 1))
	for _, dev := range []transport.DeviceMemory{{Kind: "ze"}, {Kind: "abacus"}, {}} {
		_, err := n.dom.RegisterDevice(mem, dev, transport.RemoteRead)
		require.ErrorIs(t, err, transport.ErrNotSupported)
		require.ErrorContains(t, err, "libfabric testprov on cxi: ")
	}
	_, err := n.dom.RegisterDevice(mem, transport.DeviceMemory{Kind: "cuda", Ordinal: 99}, transport.RemoteRead)
	require.ErrorContains(t, err, "libfabric testprov on cxi: memory of cuda:99: Invalid argument")

	// The struct of a region that was refused serves for host memory.
	mr, err := n.dom.RegisterMemory(make([]byte, 100), transport.RemoteRead)
	require.NoError(t, err)
	require.NoError(t, mr.Close())

	_, err = libfabrictest.WithScript(withHMEM(t, libfabrictest.Name), "cxi,hmem=0").Open(config(0, 1))
	require.ErrorContains(t, err, `no provider "testprov" that accesses device memory (FI_HMEM)`)
	require.ErrorContains(t, err, "testprov on cxi: it cannot access device memory (FI_HMEM)")
	_, err = withHMEM(t, "udp;ofi_rxd").Open(config(0, 1))
	require.ErrorContains(t, err, `no provider "udp;ofi_rxd" that accesses device memory (FI_HMEM)`)

	without := openNode(t, withScript(t, "cxi"), config(0, 1))
	require.False(t, without.dom.Attr().Caps.Has(transport.CapDevice))
}
