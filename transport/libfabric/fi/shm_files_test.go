//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMain finds what a forgotten endpoint of shm leaves behind.
func TestShmFiles(t *testing.T) {
	before := len(shmFiles())
	t.Run("open", func(t *testing.T) {
		openPair(t, setup{prov: "shm"})
		require.Equal(t, before+2, len(shmFiles()))
	})
	require.Len(t, shmFiles(), before)
}
