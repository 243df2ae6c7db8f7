package elem

import (
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"sync"
	"unsafe"

	"github.com/weft-hpc/weft/internal/layout"
)

// ErrDevice means that memory of a device could not be copied, or a call does not accept memory of a device.
var ErrDevice = errors.New("device memory")

// Copier copies between host memory and the memory of a device; comm.DeviceCopier documents its methods.
type Copier interface {
	ToHost(dst []byte, src uintptr) error
	ToDevice(dst uintptr, src []byte) error
}

// Identifier is implemented by a Copier that numbers allocations; comm.DeviceIdentifier documents its method.
type Identifier interface {
	AllocationID(addr uintptr, n int) uint64
}

// Device stands for the memory of a device, which the processor cannot access. A slice of bytes with an
// address of the device stands for a buffer there. Go code may calculate with the address and the length of
// the slice, but must not read or write its bytes. Goroutines may share a Device.
type Device struct {
	kind    string // in libfabric's terms, such as "cuda"
	ordinal int    // number of the device among those of its kind
	copier  Copier
	types   sync.Map // the *Type of elements in the memory of the device, by the *Type of the elements
}

var _ layout.Form = (*Device)(nil)

// NewDevice returns a Device.
func NewDevice(kind string, ordinal int, c Copier) *Device {
	return &Device{kind: kind, ordinal: ordinal, copier: c}
}

// String returns the name of the device for errors, such as "cuda:0".
func (d *Device) String() string { return fmt.Sprintf("%s:%d", d.kind, d.ordinal) }

// lowest is the lowest address of a device that a Buffer accepts. Go's runtime panics if it finds a smaller
// value in a pointer.
const lowest = 4096

// ViewOn returns a Buffer for n elements of type T at an address of a device. If the device cannot have these
// elements, the Type of the Buffer has an error.
//
// Hot path: no allocation after the first call for a type T, except for an error.
func ViewOn[T any](d *Device, addr uintptr, n int) Buffer {
	t := Of[T]()
	b := Buffer{Type: t}
	switch {
	case d == nil || d.copier == nil:
		return b.broken(fmt.Errorf("%w: the Device is nil or has no DeviceCopier; pass one to NewDevice", ErrDevice))
	case d.kind == "":
		return b.broken(fmt.Errorf("%w: the Device has an empty kind", ErrDevice))
	case n < 0 || t.Size > 0 && n > math.MaxInt/t.Size:
		return b.broken(fmt.Errorf("%w: %d elements", ErrCount, n))
	case n == 0:
		addr = lowest // nil is fine for an empty view
	case addr < lowest || uintptr(n*t.Size) > -addr:
		return b.broken(fmt.Errorf("%w: %s has no %d bytes at address %#x", ErrDevice, d, n*t.Size, addr))
	}
	// Read addr as a pointer instead of converting it: go vet rejects a conversion from uintptr, because it
	// assumes an address of Go's memory.
	return Buffer{*(**byte)(unsafe.Pointer(&addr)), n, d.of(t)}
}

// of returns the Type for elements of type t in the memory of the device.
func (d *Device) of(t *Type) *Type {
	if have, ok := d.types.Load(t); ok {
		return have.(*Type)
	}
	derived := *t
	derived.Form, derived.of = d, t
	have, _ := d.types.LoadOrStore(t, &derived)
	return have.(*Type)
}

// HostErr returns the error of a call with a buffer of type t that must be host memory; nil: it is
// host memory that can be sent.
func (t *Type) HostErr() error {
	if d, ok := t.Form.(*Device); ok && t.Err == nil {
		return fmt.Errorf("%w: the call needs host memory, and the view is in memory of %s", ErrDevice, d)
	}
	return t.Err
}

// Memory says which device it is, for a transport that registers memory of devices.
func (d *Device) Memory() (kind string, ordinal int) { return d.kind, d.ordinal }

// Allocation returns the number of the allocation that contains buf; 0: it is unknown.
func (d *Device) Allocation(buf []byte) (id uint64) {
	known, ok := d.copier.(Identifier)
	if !ok {
		return 0
	}
	defer func() {
		if recover() != nil { // the caller may hold a lock
			id = 0
		}
	}()
	return known.AllocationID(address(buf), len(buf))
}

// DataSize implements [layout.Form].
func (d *Device) DataSize(buf []byte) int { return len(buf) }

// Gather implements [layout.Form].
func (d *Device) Gather(dst, buf []byte, from int) error {
	n := min(len(dst), len(buf)-from)
	if n <= 0 {
		return nil
	}
	return d.copy("from", func() error { return d.copier.ToHost(dst[:n], address(buf)+uintptr(from)) })
}

// Scatter implements [layout.Form].
func (d *Device) Scatter(buf, src []byte, from int) error {
	n := min(len(src), len(buf)-from)
	if n <= 0 {
		return nil
	}
	return d.copy("to", func() error { return d.copier.ToDevice(address(buf)+uintptr(from), src[:n]) })
}

func address(buf []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(buf))) }

// copy runs f, a copy from or to the device, and returns its error. If f panics, the panic is the error,
// because the caller may hold a lock.
func (d *Device) copy(way string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: copy %s %s: panic: %v\n%s", ErrDevice, way, d, p, debug.Stack())
		}
	}()
	if err := f(); err != nil {
		return fmt.Errorf("%w: copy %s %s: %w", ErrDevice, way, d, err)
	}
	return nil
}
