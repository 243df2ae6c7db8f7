package rma

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// A board is as large as it says, and a line begins where it should.
func TestBoardLayout(t *testing.T) {
	require.EqualValues(t, boardHeadSize, unsafe.Sizeof(boardHead{}))
	require.EqualValues(t, boardAlign, unsafe.Offsetof(boardHead{}.tickets))
	b := boardOf(alignedBytes(boardSize(5)), 5)
	require.Len(t, b.stands, 5)
	require.Panics(t, func() { boardOf(alignedBytes(boardSize(5)-1), 5) })
}
