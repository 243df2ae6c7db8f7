//go:build libfabric

package mpi_test

import (
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport/libfabric"
)

// Tests over fabrics also run over providers of libfabric. Some of these providers have atomics, and
// some address remote memory by its virtual address (FI_MR_VIRT_ADDR).
func init() {
	for _, prov := range []string{"shm", "tcp;ofi_rxm", "net", "udp;ofi_rxd", "sockets"} {
		fabrics = append(fabrics, fabric{
			name: prov, open: libfabric.New, immortal: true,
			opts: []commtest.Option{commtest.WithParam("transport.libfabric.provider", prov)},
		})
	}
}
