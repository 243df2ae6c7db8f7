//go:build libfabric

package mpi_test

import (
	"fmt"
	"os"

	"github.com/weft-hpc/weft/comm/commtest"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/libfabric"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// Tests over fabrics also run over providers of libfabric, and only over these if TESTED_LIBFABRIC
// is set, as make fi-2x does. Some of these providers have atomics, and some address remote memory by
// its virtual address (FI_MR_VIRT_ADDR).
func init() {
	connectOver["libfabric tcp;ofi_rxm"] = []commtest.Option{
		commtest.WithParam("transport.use", "libfabric"), commtest.WithParam("transport.libfabric.provider", "tcp;ofi_rxm"),
	}
	// Not in ranks that run a program, because addLibfabric builds testprov and calls libfabric.
	beforeTests = append(beforeTests, addLibfabric)
}

func addLibfabric() {
	libfabrictest.MustLoad()
	if os.Getenv("TESTED_LIBFABRIC") != "" {
		fabrics = nil
	}
	// The ranks of these tests are in one process. There endpoints of shm crash if another one
	// ends. With udp;ofi_rxd nothing reports the end of a rank. sockets loses the last messages of
	// a rank that ends.
	immortal := map[string]bool{"shm": true, "udp;ofi_rxd": true, "sockets": true}
	provs := []string{"tcp;ofi_rxm", libfabrictest.XNet(), "shm", "udp;ofi_rxd", "sockets"}
	if raceEnabled {
		// The others are slow, and the race detector does not see their code. Of weft's own code, the test
		// provider reaches the most.
		provs = provs[:2]
	}
	for _, prov := range provs {
		fabrics = append(fabrics, fabric{
			name: prov, open: libfabric.New, immortal: immortal[prov],
			opts: []commtest.Option{commtest.WithParam("transport.libfabric.provider", prov)},
		})
	}
	fabrics = append(fabrics, manner("verbs", false), manner("efa,nics=2", true), manner("cxi", true), manner("psm", false))
}

// manner returns testprov in the manner of a provider that needs an adapter. A rank with several NICs divides
// transfers among them. With hmem, ranks read and write memory of devices (FI_HMEM).
func manner(script string, hmem bool) fabric {
	return fabric{
		name: libfabrictest.Name + "," + script,
		open: func() transport.Provider { return libfabrictest.WithScript(libfabric.New(), script) },
		opts: []commtest.Option{
			commtest.WithParam("transport.libfabric.provider", libfabrictest.Name),
			commtest.WithParam("transport.libfabric.nics", "2"), commtest.WithParam("transport.libfabric.stripe_min", "1k"),
			commtest.WithParam("transport.libfabric.hmem", fmt.Sprint(hmem)),
		},
	}
}
