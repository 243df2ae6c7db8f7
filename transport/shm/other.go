//go:build !linux || portable

package shm

import (
	"fmt"
	"runtime"

	"github.com/weft-hpc/weft/transport"
)

type provider struct{}

// New returns the provider "shm". In this build its Open fails.
func New() transport.Provider { return provider{} }

func (provider) Name() string { return name }

// Open returns an error that wraps [transport.ErrUnavailable].
func (provider) Open(transport.Config) (transport.Domain, error) {
	return nil, fmt.Errorf("shm: open: %w: shared memory is not supported on %s", transport.ErrUnavailable, runtime.GOOS)
}
