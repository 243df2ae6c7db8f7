//go:build libfabric

package libfabric

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/params"
	"github.com/weft-hpc/weft/transport"
	"github.com/weft-hpc/weft/transport/transporttest"
)

// through is the provider with its parameter set.
type through struct {
	transport.Provider
	set *params.Set
}

func (p through) Open(cfg transport.Config) (transport.Domain, error) {
	cfg.Params = p.set
	return p.Provider.Open(cfg)
}

func over(t testing.TB, prov string) transport.Provider {
	t.Helper()
	set := &params.Set{}
	require.NoError(t, set.Set("transport.libfabric.provider", prov, params.FromFlag))
	return through{New(), set}
}

func conform(t *testing.T, prov string, opts ...transporttest.Option) {
	t.Helper()
	transporttest.Run(t, transporttest.OpenWith(func(t testing.TB) (transport.Provider, func(int)) {
		t.Helper()
		return over(t, prov), nil
	}), opts...)
}

func TestConformance(t *testing.T) {
	for _, prov := range []string{"tcp;ofi_rxm", "net", "shm", "udp;ofi_rxd", "sockets"} {
		t.Run(prov, func(t *testing.T) { conform(t, prov, transporttest.WithRanks(1, 2, 3)) })
	}
}
