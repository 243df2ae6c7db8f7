//go:build libfabric

package fi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShmFiles checks that TestMain would find the files of an endpoint of shm that is not closed.
func TestShmFiles(t *testing.T) {
	before := len(shmFiles())
	t.Run("open", func(t *testing.T) {
		openPair(t, setup{prov: "shm"})
		require.Equal(t, before+2, len(shmFiles()))
	})
	require.Len(t, shmFiles(), before)
}
