package comm

import "github.com/weft-hpc/weft/internal/elem"

// Device is a device, such as a GPU, with memory of its own that the processor cannot access. [OnDevice]
// returns a [View] of elements there. Goroutines may share a Device. Package device/cuda returns a Device for
// each GPU of NVIDIA.
type Device struct{ in *elem.Device }

// DeviceCopier copies between host memory and the memory of a device. Device addresses are those that the
// device's driver has returned. Both methods return when the copy is complete, which should not depend on work
// that the program has queued on the device: no message of the rank moves meanwhile. Several goroutines may
// call them at the same time. The methods must not call weft.
type DeviceCopier interface {
	// ToHost copies len(dst) bytes to dst, from the address src on.
	ToHost(dst []byte, src uintptr) error
	// ToDevice copies src to the device, from the address dst on.
	ToDevice(dst uintptr, src []byte) error
}

// NewDevice returns the Device with this number among those of its kind. kind is the name of libfabric's
// interface to such devices, in lower case: "cuda", "rocr", "ze", "neuron" or "synapseai" (fi_mr(3), iface).
// For other kinds any other name serves, and weft uses c only.
func NewDevice(kind string, ordinal int, c DeviceCopier) *Device {
	return &Device{elem.NewDevice(kind, ordinal, c)}
}

// String returns the kind and the number of the device, such as "cuda:0".
func (d *Device) String() string { return d.in.String() }

// OnDevice returns the View of n elements in the memory of a device, from the address addr on. The first
// call for a device and a type T allocates; later calls do not. The memory must stay allocated as long as a
// call or a request uses the View.
//
// The View may be used like one of host memory by calls that send and receive messages, by [Pack] and [Unpack],
// and by collectives, except those of a [Neighborhood]. Other calls return [ErrDevice]: those of windows and
// of package comm/pio. If a copy from or to the device fails, the call or its request returns ErrDevice and
// the error of the [DeviceCopier]. A receive whose sender fails in the middle of a message returns ErrDevice,
// too.
//
// Before a call the program waits for work on the device that writes to memory which the call sends, or uses
// memory in which the call receives (in CUDA, by cuStreamSynchronize). Without a transport that reads and
// writes the memory of devices (transport.libfabric.hmem), weft copies messages by the DeviceCopier to host
// memory and from there, in parts of 64 KiB at most. Collectives copy as a whole.
func OnDevice[T any](d *Device, addr uintptr, n int) View[T] {
	if d == nil {
		return View[T]{elem.ViewOn[T](nil, addr, n)}
	}
	return View[T]{elem.ViewOn[T](d.in, addr, n)}
}
