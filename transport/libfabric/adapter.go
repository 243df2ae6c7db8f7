//go:build libfabric

package libfabric

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// Adapters
//
// A host may have several adapters that one provider drives. Each rank uses one of them, with an
// address of the adapter's own: the network by which the launcher reaches the host does not matter.
//
//	first usable info ── its provider and fabric ──► its adapters, without those whose link is down
//	                                                      │
//	                       near the cores of the rank, if there are any (local_cpulist in sysfs)
//	                                                      │
//	                                            by turns, by the number of the rank

// isAdapter reports whether i belongs to an adapter on the PCI bus that its provider drives itself.
// Providers over sockets name no bus.
func isAdapter(i *fi.Info) bool { return i.NIC != nil && i.NIC.Bus.Type == fi.BusPCI }

// adapter returns the info of the adapter that this rank uses, or nil if infos has no usable info of
// an adapter that h permits. If the links of all adapters are down, adapter returns the first one,
// and the provider reports the link.
func (h *hints) adapter(infos []*fi.Info) *fi.Info {
	var up, near []*fi.Info
	var first *fi.Info
	seen := make(map[string]bool)
	for _, i := range infos {
		if !isAdapter(i) || !h.usable(i) || h.iface != "" && i.Domain.Name != h.iface {
			continue
		}
		if first == nil {
			first = i
		}
		same := i.Fabric.ProvName == first.Fabric.ProvName && i.Fabric.Name == first.Fabric.Name && i.AddrFormat == first.AddrFormat
		if !same || i.NIC.Link.State == fi.LinkDown || seen[i.Domain.Name] { // an adapter may have several infos, the best first
			continue
		}
		seen[i.Domain.Name] = true
		up = append(up, i)
		if isNear(i.NIC.Bus) {
			near = append(near, i)
		}
	}
	switch {
	case len(near) > 0:
		return near[h.rank%len(near)]
	case len(up) > 0:
		return up[h.rank%len(up)]
	}
	return first
}

// sysDevices is the directory in which Linux describes the devices of the PCI bus. Tests change it.
var sysDevices = "/sys/bus/pci/devices"

// isNear reports whether this process may run on a core that is near the device. If this is not
// known, isNear returns false.
func isNear(b fi.BusAttr) bool {
	name := fmt.Sprintf("%04x:%02x:%02x.%x", b.DomainID, b.BusID, b.DeviceID, b.FunctionID)
	text, err := os.ReadFile(filepath.Join(sysDevices, name, "local_cpulist"))
	if err != nil {
		return false
	}
	var own unix.CPUSet
	if err := unix.SchedGetaffinity(0, &own); err != nil {
		return false
	}
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		low, high, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(low)
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(high)
		}
		if err != nil {
			return false
		}
		for cpu := from; cpu <= to; cpu++ {
			if own.IsSet(cpu) {
				return true
			}
		}
	}
	return false
}
