//go:build libfabric

package libfabric

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport/libfabric/fi"
)

// TestVersions checks that headers and library are of the version in TESTED_LIBFABRIC. make fi-2x
// sets this variable. Without it headers and library must be of one major version.
func TestVersions(t *testing.T) {
	if want := os.Getenv("TESTED_LIBFABRIC"); want != "" {
		require.Equal(t, want, fi.HeaderVersion.String(), "headers")
		require.Equal(t, want, fi.LibraryVersion().String(), "library")
		return
	}
	require.Equal(t, fi.HeaderVersion.Major(), fi.LibraryVersion().Major(), "headers %v, library %v", fi.HeaderVersion, fi.LibraryVersion())
}
