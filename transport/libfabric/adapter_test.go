//go:build libfabric

package libfabric

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// adapterInfo returns the info of an adapter with this domain and bus number.
func adapterInfo(domain string, bus uint8) *fi.Info {
	i := fi.NewInfo()
	i.EP.Type, i.Caps, i.AddrFormat = fi.EPRDM, capsMsg|fi.CapRemoteComm, fi.SockaddrIn
	i.Tx.MsgOrder, i.Rx.MsgOrder = fi.OrderSAS, fi.OrderSAS
	i.Fabric.ProvName, i.Fabric.Name, i.Domain.Name = "verbs;ofi_rxm", "fabric", domain
	i.NIC = &fi.NIC{Bus: fi.BusAttr{Type: fi.BusPCI, BusID: bus}, Link: fi.LinkAttr{State: fi.LinkUp}}
	return i
}

// TestAdapters: the ranks must take turns among the adapters that are near their cores; among all
// adapters if none is near; never one whose link is down or that is on another fabric, unless there
// is no other.
func TestAdapters(t *testing.T) {
	var own unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &own))
	mine, other := 0, 0
	for !own.IsSet(mine) {
		mine++
	}
	for other = 1000; own.IsSet(other); other++ { // no core of this process
	}
	dir := t.TempDir()
	old := sysDevices
	sysDevices = dir
	t.Cleanup(func() { sysDevices = old })
	place := func(bus int, list string) {
		device := filepath.Join(dir, fmt.Sprintf("0000:%02x:00.0", bus))
		require.NoError(t, os.MkdirAll(device, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(device, "local_cpulist"), []byte(list+"\n"), 0o600))
	}
	far, near := fmt.Sprint(other), fmt.Sprintf("%d-%d,%d", mine, mine, other+1)
	chosen := func(h hints, infos ...*fi.Info) (names []string) {
		for h.turn = range 3 {
			if own := h.adapters(infos); own != nil {
				names = append(names, domainNames(own))
			}
		}
		return names
	}
	a, b, c := adapterInfo("mlx5_0", 1), adapterInfo("mlx5_1", 2), adapterInfo("mlx5_2", 0xc3)
	again := adapterInfo("mlx5_0", 1)
	require.Equal(t, []string{"mlx5_0", "mlx5_1", "mlx5_2"}, chosen(hints{}, a, again, b, c), "nothing is known about the bus")
	place(1, far)
	place(2, near)
	place(0xc3, near)
	require.Equal(t, []string{"mlx5_1", "mlx5_2", "mlx5_1"}, chosen(hints{}, a, again, b, c))
	require.Equal(t, []string{"mlx5_0", "mlx5_0", "mlx5_0"}, chosen(hints{iface: "mlx5_0"}, a, b, c))
	require.Empty(t, chosen(hints{iface: "mlx5_9"}, a, b, c))
	require.Equal(t, []string{"mlx5_1,mlx5_2", "mlx5_1,mlx5_2", "mlx5_1,mlx5_2"}, chosen(hints{sharers: 1}, a, b, c), "all that are near")
	require.Equal(t, []string{"mlx5_1", "mlx5_2", "mlx5_1"}, chosen(hints{sharers: 2}, a, b, c))
	d := adapterInfo("mlx5_3", 0xc4)
	require.Equal(t, []string{"mlx5_1,mlx5_2", "mlx5_1,mlx5_2", "mlx5_1,mlx5_2"}, chosen(hints{sharers: 2}, a, b, c, d),
		"the other two are for the other rank, which is near these")
	require.Equal(t, []string{"mlx5_1", "mlx5_2", "mlx5_1"}, chosen(hints{sharers: 5}, a, b, c))
	require.Equal(t, []string{"mlx5_1,mlx5_2", "mlx5_1,mlx5_2", "mlx5_1,mlx5_2"}, chosen(hints{sharers: 5, nics: 3}, a, b, c))
	require.Equal(t, []string{"mlx5_1", "mlx5_2", "mlx5_1"}, chosen(hints{sharers: 1, nics: 1}, a, b, c))
	for _, i := range []*fi.Info{b, c} {
		i.Domain.MRMode, i.Domain.MRKeySize = fi.MRProvKey, 8
	}
	require.Equal(t, []string{"mlx5_1", "mlx5_2", "mlx5_1"}, chosen(hints{nics: 2}, b, c), "a region has one key of 8 bytes")
	for _, i := range []*fi.Info{a, b, c} {
		i.Domain.MRMode, i.Domain.MRKeySize = fi.MRProvKey, 4
	}
	require.Equal(t, []string{"mlx5_1,mlx5_2", "mlx5_1,mlx5_2", "mlx5_1,mlx5_2"}, chosen(hints{nics: 2}, a, b, c))
	c.NIC.Link.State = fi.LinkDown
	require.Equal(t, []string{"mlx5_1", "mlx5_1", "mlx5_1"}, chosen(hints{}, a, b, c))
	b.Fabric.Name = "another"
	require.Equal(t, []string{"mlx5_0", "mlx5_0", "mlx5_0"}, chosen(hints{}, a, b, c))
	a.NIC.Link.State = fi.LinkDown
	require.Equal(t, []string{"mlx5_0", "mlx5_0", "mlx5_0"}, chosen(hints{}, a, c))
	a.EP.Type, c.EP.Type = fi.EPMsg, fi.EPMsg
	require.Empty(t, chosen(hints{}, a, c))
	place(2, "none")
	require.False(t, isNear(b.NIC.Bus))
}

// TestAdapterAddress: an adapter must not take the address of the rank's listener, which belongs to
// the launcher's network.
func TestAdapterAddress(t *testing.T) {
	i := adapterInfo("mlx5_0", 1)
	require.False(t, takesListenerAddr(i))
	i.NIC = nil
	require.True(t, takesListenerAddr(i))
}
