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
// A host may have several adapters that one provider drives. Each rank uses one or several of them, with
// addresses of the adapters' own: the network by which the launcher reaches the host does not matter.
//
//	first usable info ── its provider and fabric ──► its adapters, without those whose link is down
//	                                                      │
//	                       near the cores of the rank, if there are any (local_cpulist in sysfs)
//	                                                      │
//	                          the ranks of the host share them by turns, each one or several

// isAdapter reports whether i belongs to an adapter on the PCI bus that its provider drives itself.
// Providers over sockets name no bus.
func isAdapter(i *fi.Info) bool { return i.NIC != nil && i.NIC.Bus.Type == fi.BusPCI }

// adapters returns the infos of the adapters that this rank uses, the main one first, or nil if infos
// has no usable info of an adapter that h permits. If the links of all adapters are down, adapters returns
// the first one, and the provider reports the link.
func (h *hints) adapters(infos []*fi.Info) []*fi.Info {
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
		same := sameKind(i, first) && i.Fabric.Name == first.Fabric.Name
		if !same || i.NIC.Link.State == fi.LinkDown || seen[i.Domain.Name] { // an adapter may have several infos, the best first
			continue
		}
		seen[i.Domain.Name] = true
		up = append(up, i)
		if isNear(i.NIC.Bus) {
			near = append(near, i)
		}
	}
	each := 1
	if h.sharers > 0 {
		each = max(len(up)/h.sharers, 1)
	}
	if len(near) > 0 {
		up = near
	}
	if len(up) == 0 && first != nil {
		return []*fi.Info{first}
	}
	// The ranks of a host take turns, so that each adapter has about as many ranks.
	var own []*fi.Info
	each = h.lanes(up, each)
	for k := range each {
		own = append(own, up[(h.turn*each+k)%len(up)])
	}
	return own
}

// lanes returns how many NICs of the list a rank uses: h.nics, or each if h.nics is 0.
func (h *hints) lanes(list []*fi.Info, each int) int {
	if len(list) == 0 {
		return 0
	}
	if h.nics > 0 {
		each = h.nics
	}
	each = min(each, len(list), maxLanes)
	if d := list[0].Domain; d.MRMode&fi.MRProvKey != 0 {
		each = min(each, max(8/max(d.MRKeySize, 1), 1)) // the keys of a region must fit into 8 bytes
	}
	return each
}

// sameKind reports whether one rank may use the NICs of both infos.
func sameKind(a, b *fi.Info) bool { return kindOf(a) == kindOf(b) }

// kindOf returns a text with what must be the same for all NICs of a rank.
func kindOf(i *fi.Info) string {
	d := &i.Domain
	return fmt.Sprintf("%s with %v, mr_mode %v, keys of %d bytes, %v, %v, %v, %v", i.Fabric.ProvName, i.AddrFormat, d.MRMode, d.MRKeySize,
		d.AVType, d.DataProgress, d.Threading, i.Caps&capsRMA)
}

// domainNames returns the names of the domains.
func domainNames(infos []*fi.Info) string {
	names := make([]string, len(infos))
	for i, info := range infos {
		names[i] = info.Domain.Name
	}
	return strings.Join(names, ",")
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
