//go:build libfabric

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

const buildTags = "libfabric"

// TestOverLibfabric runs benchmarks of messages, one-sided transfers, atomics and reductions, which
// verify their data, over each of four providers of libfabric.
func TestOverLibfabric(t *testing.T) {
	for _, provider := range []string{"shm", "tcp;ofi_rxm", libfabrictest.XNet(), "udp;ofi_rxd"} {
		for _, b := range []*benchmark{&latency, &bw, &putBW, &getBW, &fetchOp, &allreduce} {
			t.Run(provider+"/"+b.name, func(t *testing.T) {
				t.Setenv("WEFT_TRANSPORT_USE", "libfabric")
				t.Setenv("WEFT_TRANSPORT_LIBFABRIC_PROVIDER", provider)
				args := []string{"bench", b.name, "-iters", "4", "-time", "20ms"}
				if b.sizes != "" {
					args = append(args, "-sizes", "8,100k")
				}
				code, out, errs := gorun(t, 2, args...)
				require.Zero(t, code, errs)
				require.True(t, strings.Contains(out, "transport libfabric "+provider+","), out)
			})
		}
	}
}
