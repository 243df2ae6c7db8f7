//go:build libfabric

package mpi_test

import (
	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport/libfabric"
)

// Windows over providers of libfabric, of which some have atomics and some have
// memory that is named by its virtual address.
func init() {
	for _, prov := range []string{"shm", "tcp;ofi_rxm", "net", "udp;ofi_rxd", "sockets"} {
		winFabrics = append(winFabrics, winFabric{
			name: prov, open: libfabric.New, immortal: true,
			opts: []commtest.Option{commtest.WithParam("transport.libfabric.provider", prov)},
		})
	}
}
