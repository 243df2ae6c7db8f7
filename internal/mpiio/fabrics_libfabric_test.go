//go:build libfabric

package mpiio_test

import (
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport/libfabric"
)

// Tests also run over one provider of libfabric with RMA, so over windows that need no mapping.
func init() {
	const prov = "tcp;ofi_rxm"
	fabrics = append(fabrics, fabric{
		name: prov, open: libfabric.New,
		opts: []commtest.Option{commtest.WithParam("transport.libfabric.provider", prov)},
	})
}
