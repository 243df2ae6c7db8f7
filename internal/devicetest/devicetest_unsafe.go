// Package devicetest has a device for tests, without hardware. Its memory is mapped without any access
// (PROT_NONE), so that a program which reads or writes it directly gets SIGSEGV, as with the memory of a GPU.
// The copier uses /proc/self/mem, which needs no permission of the mapping, because debuggers read and write
// memory that way.
package devicetest

import (
	"fmt"
	"os"
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

	mu  sync.Mutex
	all []*allocation
}

// allocation is memory that was allocated. It stays mapped until the test ends.
type allocation struct {
	mem []byte
	id  uint64 // 0: the memory was freed, and serves for the next allocation of this size
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
	d := &Device{}
	t.Cleanup(func() {
		for _, a := range d.all {
			_ = unix.Munmap(a.mem)
		}
	})
	return d
}

// Alloc allocates n bytes of the device's memory, and returns their address.
func (d *Device) Alloc(t testing.TB, n int) uintptr {
	t.Helper()
	return Address(d.AllocBytes(t, n))
}

// AllocBytes is Alloc, and returns a slice that stands for the memory and must not be accessed. If memory of this
// size was freed, the new one has its address.
func (d *Device) AllocBytes(t testing.TB, n int) []byte {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.all {
		if a.id == 0 && len(a.mem) == max(n, 1) {
			a.id = allocations.Add(1)
			return a.mem
		}
	}
	mem, err := unix.Mmap(-1, 0, max(n, 1), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatalf("allocate %d bytes of a device: %v", n, err)
	}
	d.all = append(d.all, &allocation{mem, allocations.Add(1)})
	return mem
}

// Free frees memory that AllocBytes has returned.
func (d *Device) Free(mem []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.all {
		if Address(a.mem) == Address(mem) {
			a.id = 0
		}
	}
}

// AllocationID implements comm.DeviceIdentifier.
func (d *Device) AllocationID(addr uintptr, n int) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.all {
		if off := addr - Address(a.mem); off < uintptr(len(a.mem)) && uintptr(n) <= uintptr(len(a.mem))-off {
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
