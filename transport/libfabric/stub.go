//go:build !libfabric

package libfabric

import (
	"fmt"

	"github.com/weft-hpc/weft/transport"
)

type provider struct{}

// New returns the provider "libfabric", which cannot be opened in this build.
func New() transport.Provider { return provider{} }

func (provider) Name() string { return "libfabric" }

// Open returns ErrNotSupported with a text that says how to build a program with libfabric.
func (provider) Open(transport.Config) (transport.Domain, error) {
	return nil, fmt.Errorf("libfabric: open: %w: this program was built without libfabric; "+
		"build it with -tags libfabric (Debian package libfabric-dev)", transport.ErrNotSupported)
}
