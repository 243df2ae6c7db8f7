//go:build libfabric

package mpiio_test

import (
	"net"

	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport/libfabric"
)

// Tests also run over one provider of libfabric with RMA, so over windows that need no mapping.
func init() {
	const prov = "tcp;ofi_rxm"
	fabrics = append(fabrics, fabric{
		name: prov, open: libfabric.New,
		opts: []commtest.Option{
			commtest.WithParam("transport.libfabric.provider", prov), commtest.WithParam("transport.libfabric.interface", outgoing()),
		},
	})
}

// outgoing returns the address from which this host sends to other networks; empty: it has none. libfabric
// does not take the loopback address for ranks of several hosts, and other interfaces may be those of hosts that
// tests add and remove at the same time. Nothing is sent: a UDP socket only looks up the route.
func outgoing() string {
	c, err := net.Dial("udp4", "192.0.2.1:9")
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	return c.LocalAddr().(*net.UDPAddr).IP.String()
}
