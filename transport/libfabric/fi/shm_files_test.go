//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShmFiles checks that shmFiles finds the files of open endpoints of shm, so that TestMain
// would find those of endpoints that a test does not close.
func TestShmFiles(t *testing.T) {
	before := len(shmFiles())
	t.Run("open", func(t *testing.T) {
		openPair(t, setup{prov: "shm"})
		require.Equal(t, before+2, len(shmFiles()))
	})
	require.Len(t, shmFiles(), before)
}
