package rma

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestLockTableLayout checks the size of the head, and that the counts begin a cache line.
func TestLockTableLayout(t *testing.T) {
	require.EqualValues(t, lockTableHeadSize, unsafe.Sizeof(lockTableHead{}))
	require.EqualValues(t, lockTableAlign, unsafe.Offsetof(lockTableHead{}.tickets))
	b := lockTableOf(alignedBytes(lockTableSize(5)), 5)
	require.Len(t, b.states, 5)
	require.Panics(t, func() { lockTableOf(alignedBytes(lockTableSize(5)-1), 5) })
}
