//go:build !cgo || !linux

package cuda

import (
	"fmt"

	"github.com/weft-hpc/weft/comm"
)

var errStub = fmt.Errorf("%w: the program was built without cgo, or not for Linux", comm.ErrNotSupported)

// GPU is a GPU of this host.
type GPU struct{ *comm.Device }

// Count returns comm.ErrNotSupported.
func Count() (int, error) { return 0, errStub }

// Open returns comm.ErrNotSupported.
func Open(int) (*GPU, error) { return nil, errStub }

// Alloc returns comm.ErrNotSupported.
func (*GPU) Alloc(int) (uintptr, error) { return 0, errStub }

// Free returns comm.ErrNotSupported.
func (*GPU) Free(uintptr) error { return errStub }

// ToHost returns comm.ErrNotSupported.
func (*GPU) ToHost([]byte, uintptr) error { return errStub }

// ToDevice returns comm.ErrNotSupported.
func (*GPU) ToDevice(uintptr, []byte) error { return errStub }

// AllocationID returns 0.
func (*GPU) AllocationID(uintptr, int) uint64 { return 0 }
