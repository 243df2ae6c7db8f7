package mpi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLargeClasses checks that the slices of the class for n bytes have at least n bytes, and at
// most a quarter more.
func TestLargeClasses(t *testing.T) {
	for _, n := range []int{scratchKept + 1, 1<<17 - 1, 1 << 17, 1<<17 + 1, 1<<20 + 5, 5 << 28, 7<<38 + 1} {
		size, class := largeClass(n)
		require.GreaterOrEqual(t, size, n)
		require.LessOrEqual(t, size, n+n/4)
		again, same := largeClass(size)
		require.Equal(t, size, again)
		require.Equal(t, class, same)
		_, next := largeClass(size + 1)
		require.Equal(t, class+1, next)
	}
}
