package engine

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// The credits bound memory only if a message costs what it takes.
func TestAMessageCostsWhatItTakes(t *testing.T) {
	require.LessOrEqual(t, int(unsafe.Sizeof(unexpected{}))+1<<bufferMin, messageCost)
}
