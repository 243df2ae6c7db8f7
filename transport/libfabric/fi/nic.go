//go:build libfabric

package fi

// #include "shim.h"
//
// static struct fi_pci_attr *weft_pci(struct fi_bus_attr *a) { return &a->attr.pci; }
import "C"

// NIC describes the device of an Info (struct fid_nic, fi_nic(3)). Fields that the
// provider does not know are empty.
type NIC struct {
	Device DeviceAttr
	Bus    BusAttr
	Link   LinkAttr
}

// DeviceAttr names a device (struct fi_device_attr).
type DeviceAttr struct {
	Name          string // the operating system's name, for example "eth0"
	DeviceID      string
	DeviceVersion string
	VendorID      string
	Driver        string
	Firmware      string
}

// BusType is a kind of bus (enum fi_bus_type).
type BusType int

// The kinds of bus.
const (
	BusUnknown BusType = C.FI_BUS_UNKNOWN
	BusPCI     BusType = C.FI_BUS_PCI
)

// String returns the name of the kind.
func (b BusType) String() string { return name(int(b), "FI_BUS_UNKNOWN", "FI_BUS_PCI") }

// BusAttr is the location of a device (struct fi_bus_attr). The numbers are those of the
// PCI bus.
type BusAttr struct {
	Type       BusType
	DomainID   uint16
	BusID      uint8
	DeviceID   uint8
	FunctionID uint8
}

// LinkState is the state of a device's link (enum fi_link_state).
type LinkState int

// The states of a link.
const (
	LinkUnknown LinkState = C.FI_LINK_UNKNOWN
	LinkDown    LinkState = C.FI_LINK_DOWN
	LinkUp      LinkState = C.FI_LINK_UP
)

// String returns the name of the state.
func (s LinkState) String() string {
	return name(int(s), "FI_LINK_UNKNOWN", "FI_LINK_DOWN", "FI_LINK_UP")
}

// LinkAttr describes the link of a device (struct fi_link_attr).
type LinkAttr struct {
	Address     string // address of the link, for example a MAC address
	MTU         int    // largest packet in bytes
	Speed       int    // bits per second
	State       LinkState
	NetworkType string // for example "Ethernet"
}

func readNIC(c *C.struct_fid_nic) *NIC {
	if c == nil {
		return nil
	}
	n := new(NIC)
	if d := c.device_attr; d != nil {
		n.Device = DeviceAttr{
			Name:          goString(d.name),
			DeviceID:      goString(d.device_id),
			DeviceVersion: goString(d.device_version),
			VendorID:      goString(d.vendor_id),
			Driver:        goString(d.driver),
			Firmware:      goString(d.firmware),
		}
	}
	if b := c.bus_attr; b != nil {
		n.Bus.Type = BusType(b.bus_type)
		if n.Bus.Type == BusPCI {
			p := C.weft_pci(b)
			n.Bus.DomainID = uint16(p.domain_id)
			n.Bus.BusID = uint8(p.bus_id)
			n.Bus.DeviceID = uint8(p.device_id)
			n.Bus.FunctionID = uint8(p.function_id)
		}
	}
	if l := c.link_attr; l != nil {
		n.Link = LinkAttr{
			Address:     goString(l.address),
			MTU:         goSize(l.mtu),
			Speed:       goSize(l.speed),
			State:       LinkState(l.state),
			NetworkType: goString(l.network_type),
		}
	}
	return n
}
