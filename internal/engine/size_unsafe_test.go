package engine

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// TestAMessageCostsWhatItTakes: messageCost, the credit that each message takes, is at least the
// memory that an unexpected message with a buffer of the smallest size takes. Otherwise credits
// would not bound the memory.
func TestAMessageCostsWhatItTakes(t *testing.T) {
	require.LessOrEqual(t, int(unsafe.Sizeof(unexpected{}))+1<<bufferMin, messageCost)
}
