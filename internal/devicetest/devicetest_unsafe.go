// Package devicetest has a device for tests, without hardware. Its memory is mapped without any access
// (PROT_NONE), so that a program which reads or writes it directly gets SIGSEGV, as with the memory of a GPU.
// The copier uses /proc/self/mem, which needs no permission of the mapping, because debuggers read and write
// memory that way.
package devicetest

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device is the device. It is a comm.DeviceIdentifier.
type Device struct {
	// Copies counts the copies.
	Copies atomic.Int64
	// If FailAt is not 0, each copy from the one with this number on fails.
	FailAt atomic.Int64

	mu   sync.Mutex
	live []allocation
}

// allocation is memory that was not freed yet.
type allocation struct {
	mem []byte
	id  uint64
}

var allocations atomic.Uint64 // number of allocations of all devices so far

// memory is open as long as the process runs, so that tests which count descriptors find no new one.
var memory, errMemory = os.OpenFile("/proc/self/mem", os.O_RDWR, 0)

// New returns a device.
func New(t testing.TB) *Device {
	t.Helper()
	if errMemory != nil {
		t.Fatal(errMemory)
	}
	return &Device{}
}

// Alloc allocates n bytes of the device's memory, and returns their address.
func (d *Device) Alloc(t testing.TB, n int) uintptr {
	t.Helper()
	return Address(d.AllocBytes(t, n))
}

// AllocBytes is Alloc, and returns a slice that stands for the memory and must not be accessed.
func (d *Device) AllocBytes(t testing.TB, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatalf("allocate %d bytes of a device: %v", n, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live = append(d.live, allocation{mem, allocations.Add(1)})
	t.Cleanup(func() { d.Free(mem) })
	return mem
}

// Free frees memory that AllocBytes has returned. A second call does nothing.
func (d *Device) Free(mem []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live = slices.DeleteFunc(d.live, func(a allocation) bool {
		found := Address(a.mem) == Address(mem)
		if found {
			_ = unix.Munmap(mem)
		}
		return found
	})
}

// AllocationID implements comm.DeviceIdentifier.
func (d *Device) AllocationID(addr uintptr) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.live {
		if off := addr - Address(a.mem); off < uintptr(len(a.mem)) {
			return a.id
		}
	}
	return 0
}

// Address returns the address of the first byte of mem.
func Address(mem []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(mem))) }

// ToHost implements comm.DeviceCopier.
func (d *Device) ToHost(dst []byte, src uintptr) error {
	if err := d.count(); err != nil {
		return err
	}
	_, err := memory.ReadAt(dst, int64(src))
	return err
}

// ToDevice implements comm.DeviceCopier.
func (d *Device) ToDevice(dst uintptr, src []byte) error {
	if err := d.count(); err != nil {
		return err
	}
	_, err := memory.WriteAt(src, int64(dst))
	return err
}

func (d *Device) count() error {
	n := d.Copies.Add(1)
	if at := d.FailAt.Load(); at > 0 && n >= at {
		return fmt.Errorf("copy %d: the device has fallen off the bus", n)
	}
	return nil
}
