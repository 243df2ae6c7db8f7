//go:build linux && libfabric

package launcher

import (
	"errors"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/weft-hpc/weft/launcher/job"
	"github.com/weft-hpc/weft/transport/libfabric/fi"
	"github.com/weft-hpc/weft/transport/libfabric/libfabrictest"
)

// TestInfoListsProviders: gorun -info must print the table of the providers that libfabric has on
// this machine, among them those that every Linux machine has.
func TestInfoListsProviders(t *testing.T) {
	j, _, err := job.Parse([]string{"-info"}, nil)
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, WriteInfo(&b, j, nil))
	_, providers, found := strings.Cut(b.String(), "\n\nLIBFABRIC "+fi.LibraryVersion().String()+", ")
	require.True(t, found, b.String())
	blank := regexp.MustCompile(` {2,}`)
	rows := make(map[string][]string)
	for line := range strings.Lines(providers) {
		if cells := blank.Split(strings.TrimSpace(line), -1); len(cells) == offerCells+2 {
			rows[cells[0]+" "+cells[2]] = cells
		}
	}
	require.Contains(t, providers, "\nalso in the library: ")
	require.Equal(t, "DOMAINS", rows["PROVIDER ENDPOINT"][offerCells+1], providers)
	// These are providers with endpoint types that every Linux machine has.
	for _, name := range []string{"tcp;ofi_rxm rdm", "tcp msg"} {
		cells := rows[name]
		require.NotNil(t, cells, "%s in %s", name, providers)
		require.Contains(t, cells[3], "msg")
		require.Contains(t, cells[offerCells], "sockaddr_in")
		require.NotContains(t, strings.Join(cells, " "), "FI_")
	}
}

func TestProvidersWithoutOffer(t *testing.T) {
	i := fi.NewInfo()
	i.Fabric.ProvName = "tcp"
	v := fi.MakeVersion(117, 0)
	got := withoutOffer([]fi.Provider{{Name: "psm2", Version: v}, {Name: "tcp", Version: v}, {Name: "ofi_rxm", Version: v}, {Name: "ofi_hook_perf", Version: v}}, []*fi.Info{i})
	require.Equal(t, []string{"psm2 117.0 (core)", "ofi_rxm 117.0 (utility)", "ofi_hook_perf 117.0 (hook)"}, got)
}

// TestOffers: offers must merge infos that differ only in domain and address format into one row,
// and must make another row for an info with another MR mode.
func TestOffers(t *testing.T) {
	info := func(domain string, format fi.AddrFormat, mode fi.MRMode) *fi.Info {
		i := fi.NewInfo()
		i.Fabric.ProvName, i.Fabric.ProvVersion = "p", fi.MakeVersion(2, 1)
		i.Caps, i.AddrFormat = fi.CapMsg|fi.CapRMA|fi.CapAtomic, format
		i.EP.Type, i.EP.MaxMsgSize, i.Tx.InjectSize = fi.EPRDM, math.MaxInt, 64
		i.Domain.Name, i.Domain.MRMode = domain, mode
		return i
	}
	got := offers([]*fi.Info{
		info("a", fi.SockaddrIn, 0), info("a", fi.SockaddrIn6, 0), info("b", fi.SockaddrIn, 0), info("b", fi.SockaddrIn, fi.MRVirtAddr|fi.MRProvKey),
	})
	require.Len(t, got, 2)
	require.Equal(t, []string{"a", "b"}, got[0].domains)
	require.Equal(t, []string{"sockaddr_in", "sockaddr_in6"}, got[0].formats)
	require.Equal(t, []string{"p", "2.1", "rdm", "msg rma atomic", "-"}, got[0].cells[:5])
	require.Equal(t, []string{"64", "any"}, got[0].cells[8:10])
	require.Equal(t, "virt_addr prov_key", got[1].cells[4])
}

func TestInfoToABrokenPipe(t *testing.T) {
	full := errors.New("no space")
	require.ErrorIs(t, writeProviders(writerFunc(func([]byte) (int, error) { return 0, full })), full)
}

// TestInfoOfProvider: gorun -info -provider P must print how ranks use P, and nothing else.
func TestInfoOfProvider(t *testing.T) {
	xnet := libfabrictest.XNet()
	j, _, err := job.Parse([]string{"-info", "-provider", xnet}, nil)
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, WriteInfo(&b, j, nil))
	require.Regexp(t, `^provider   `+xnet+` \d+\.\d+, FI_PROTO_XNET\n`, b.String())
	require.Regexp(t, `\nlarge +rendezvous: `, b.String())
	require.NotContains(t, b.String(), "WEFT_")
	for line := range strings.Lines(b.String()) {
		require.LessOrEqual(t, len(line), useWidth+1)
	}

	j, _, err = job.Parse([]string{"-info", "-provider", "nosuch"}, nil)
	require.NoError(t, err)
	require.ErrorContains(t, WriteInfo(&b, j, nil), `no provider "nosuch"`)
}
