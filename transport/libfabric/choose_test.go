//go:build libfabric

package libfabric

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// TestChooseByName checks that a provider with the whole name of the parameter is preferred to one
// whose first part has this name, although the latter offers more, and that names of libfabric 1.x
// that 2.x lacks are explained.
func TestChooseByName(t *testing.T) {
	chosen := func(provider string) string {
		h := hints{provider: provider, oneHost: true}
		infos, err := h.choose()
		require.NoError(t, err, provider)
		return infos[0].Fabric.ProvName
	}
	tcp := "tcp;ofi_rxm"
	if fi.LibraryVersion().Major() >= 2 {
		tcp = "tcp"
		h := hints{provider: "net", oneHost: true}
		_, err := h.choose()
		require.ErrorContains(t, err, `no provider "net"`)
		require.ErrorContains(t, err, "use tcp: ")
	}
	require.Equal(t, tcp, chosen("tcp"))
	require.Equal(t, tcp, chosen("TCP"))
	require.Equal(t, "tcp;ofi_rxm", chosen("tcp;ofi_rxm"))
	require.Equal(t, "udp;ofi_rxd", chosen("udp"))
	require.Equal(t, libfabrictest.XNet(), chosen(libfabrictest.XNet()))
}
