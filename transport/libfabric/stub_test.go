//go:build !libfabric

package libfabric

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

func TestStub(t *testing.T) {
	_, err := New().Open(transport.Config{Size: 1})
	require.ErrorIs(t, err, transport.ErrNotSupported)
	require.ErrorContains(t, err, "-tags libfabric")
}
