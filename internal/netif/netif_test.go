package netif

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddrs(t *testing.T) {
	lo := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, which := range []string{"", "lo", "127.0.0.1", "127.0.0.0/8"} {
		ips, err := Addrs(which, true)
		require.NoError(t, err, which)
		require.Equal(t, lo, ips[0], which)
		if which != "" {
			require.NoError(t, Check(which), which)
		}
	}
	require.NoError(t, Check(""))
	for which, says := range map[string]string{
		"240.0.0.0/24": "no address of this host is in 240.0.0.0/24",
		"nosuch0":      `"nosuch0" is no interface, address or subnet of this host`,
		"240.0.0.1":    "cannot assign requested address",
	} {
		require.ErrorContains(t, Check(which), says)
	}
}
