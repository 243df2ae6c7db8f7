//go:build cgo && linux

package cuda

// #cgo LDFLAGS: -ldl
// #include "driver.h"
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/weft-hpc/weft/comm"
)

// GPU is a GPU of this host. Goroutines may call its methods concurrently.
type GPU struct {
	*comm.Device
	ctx    C.CUcontext
	mu     sync.Mutex // one copy uses the stream at a time
	stream C.CUstream
}

// load loads the driver's library and initialises it.
var load = sync.OnceValue(func() error {
	var text [256]C.char
	if C.weft_cuda_load(&text[0], C.size_t(len(text))) != 0 {
		return fmt.Errorf("%w: load the CUDA driver: %s", comm.ErrNotSupported, C.GoString(&text[0]))
	}
	return check("cuInit", C.weft_cuda_init())
})

// Count returns the number of GPUs that the process may use (cuDeviceGetCount). If the host has no CUDA
// driver, the error is comm.ErrNotSupported.
func Count() (int, error) {
	if err := load(); err != nil {
		return 0, err
	}
	var n C.int
	err := check("cuDeviceGetCount", C.weft_cuda_count(&n))
	return int(n), err
}

// Open returns the GPU with this number, from 0 to Count()-1. It retains the device's primary context, which
// CUDA's runtime uses, too, until the process ends. If the host has no CUDA driver, the error is
// comm.ErrNotSupported.
func Open(ordinal int) (*GPU, error) {
	if err := load(); err != nil {
		return nil, err
	}
	g := &GPU{}
	if err := check(fmt.Sprintf("open GPU %d", ordinal), C.weft_cuda_open(C.int(ordinal), &g.ctx, &g.stream)); err != nil {
		return nil, err
	}
	g.Device = comm.NewDevice("cuda", ordinal, g)
	return g, nil
}

// Alloc allocates n bytes of the GPU's memory (cuMemAlloc), and returns their address.
func (g *GPU) Alloc(n int) (uintptr, error) {
	var at C.uintptr_t
	err := check(fmt.Sprintf("cuMemAlloc of %d bytes", n), C.weft_cuda_alloc(g.ctx, &at, C.size_t(n)))
	return uintptr(at), err
}

// Free frees memory that Alloc returned (cuMemFree). No call or request may still use the memory. With
// transport.libfabric.hmem the memory may stay in use after that: see [comm.OnDevice].
func (g *GPU) Free(addr uintptr) error {
	return check("cuMemFree", C.weft_cuda_free(g.ctx, C.uintptr_t(addr)))
}

// ToHost implements [comm.DeviceCopier]. The copy does not wait for work in other streams.
func (g *GPU) ToHost(dst []byte, src uintptr) error { return g.copy("device to host", dst, src, 0) }

// ToDevice implements [comm.DeviceCopier]. The copy does not wait for work in other streams.
func (g *GPU) ToDevice(dst uintptr, src []byte) error { return g.copy("host to device", src, dst, 1) }

// AllocationID implements [comm.DeviceIdentifier] for memory of cuMemAlloc and cudaMalloc
// (cuPointerGetAttribute, CU_POINTER_ATTRIBUTE_BUFFER_ID). For other memory it returns 0.
func (g *GPU) AllocationID(addr uintptr, n int) uint64 {
	return uint64(C.weft_cuda_allocation(g.ctx, C.uintptr_t(addr), C.size_t(n)))
}

func (g *GPU) copy(what string, host []byte, device uintptr, toDevice C.int) error {
	if len(host) == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	rc := C.weft_cuda_copy(g.ctx, g.stream, unsafe.Pointer(unsafe.SliceData(host)), C.uintptr_t(device), C.size_t(len(host)), toDevice)
	return check(what, rc)
}

// check returns the error for the result of a call.
func check(what string, rc C.CUresult) error {
	if rc == 0 {
		return nil
	}
	var text [256]C.char
	C.weft_cuda_error(rc, &text[0], C.size_t(len(text)))
	return fmt.Errorf("cuda: %s: %s", what, C.GoString(&text[0]))
}
