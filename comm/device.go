package comm

import "github.com/weft-hpc/weft/internal/elem"

// Device is a device, such as a GPU, with memory of its own that the processor cannot access. [OnDevice]
// returns a [View] of elements there. Goroutines may share a Device. Package device/cuda returns Devices for
// NVIDIA GPUs.
type Device struct{ in *elem.Device }

// DeviceCopier copies between host memory and the memory of a device. Device addresses are those of the
// device's driver; they may lie inside an allocation. Both methods block until the copy is complete. The rank's
// messages make no progress during a copy, so a copy should not wait for other work on the device. Goroutines
// may call the methods concurrently. The methods must not call weft or runtime.Goexit. If a method panics, the
// panic is its error.
type DeviceCopier interface {
	// ToHost copies len(dst) bytes to dst, from the address src on.
	ToHost(dst []byte, src uintptr) error
	// ToDevice copies src to the device, from the address dst on.
	ToDevice(dst uintptr, src []byte) error
}

// DeviceIdentifier is an optional interface of a DeviceCopier. With it weft keeps the registrations of device memory
// that several messages use (transport.libfabric.hmem). The method shows weft that the program has freed the memory
// and that other memory has its address now.
type DeviceIdentifier interface {
	// AllocationID returns the number of the allocation that contains the n bytes from addr on, where n is at
	// least 1. Two allocations must not have the same number, even if one was freed before the other was made,
	// and even if two Devices of the process stand for the same device. AllocationID returns 0 if it does not know
	// the number, or if the bytes lie in several allocations; then no registration is kept.
	// Messages make no progress during the call, so it should be quick. What DeviceCopier says about
	// goroutines and weft holds here, too. If the method panics, the number is unknown.
	AllocationID(addr uintptr, n int) uint64
}

// NewDevice returns the Device of this kind with this number. kind is the name of libfabric's interface to
// such devices, in lower case: "cuda", "rocr", "ze", "neuron" or "synapseai" (fi_mr(3), iface). For a device that
// libfabric does not know, kind may be any other name that is not empty; weft then copies through c.
func NewDevice(kind string, ordinal int, c DeviceCopier) *Device {
	return &Device{elem.NewDevice(kind, ordinal, c)}
}

// String returns the kind and the number of the device, such as "cuda:0".
func (d *Device) String() string { return d.in.String() }

// OnDevice returns the View of n elements in the memory of a device, from the address addr on. The address must
// not be one of Go's heap; drivers return no such address. The first call for a device and a type T allocates;
// later calls do not. The memory must stay allocated as long as a call or a request uses the View. With
// transport.libfabric.hmem it may stay registered after that, so the driver must allow the program to free
// registered memory. If the device has a [DeviceIdentifier], freed memory may stay in use, up to
// transport.libfabric.keep_registered bytes, until other buffers replace it.
//
// These calls accept the View: sends and receives, [Pack], [Unpack], and the collectives of views except those
// of a [Neighborhood]. Windows, package comm/pio and neighbour collectives return [ErrDevice]. If a copy from or
// to the device fails, the call or its request returns ErrDevice and the error of the [DeviceCopier]. If the
// sender's copy fails after the receive has matched the message, the receive returns ErrDevice, too.
//
// The program must synchronize with the device first. Before a send, work that writes to the memory must be
// complete. Before a receive, work that uses the memory must be complete (in CUDA: cuStreamSynchronize).
//
// Without a transport that accesses device memory (transport.libfabric.hmem), weft copies messages through host
// memory by the DeviceCopier: messages sent by rendezvous in parts, others as a whole. A collective copies its
// whole data.
func OnDevice[T any](d *Device, addr uintptr, n int) View[T] {
	if d == nil {
		return View[T]{elem.ViewOn[T](nil, addr, n)}
	}
	return View[T]{elem.ViewOn[T](d.in, addr, n)}
}
