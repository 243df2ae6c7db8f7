package mpi

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRequestSize: a Request has four words. The compiler returns larger structs in memory, which is
// slower.
func TestRequestSize(t *testing.T) {
	require.Equal(t, uintptr(32), reflect.TypeFor[Request]().Size())
}

func TestCallOfRequest(t *testing.T) {
	for op := range callNames {
		for _, peer := range []int{0, 1, 1<<24 - 1, AnySource, ProcNull, noRank} {
			for _, tag := range []int{0, 7, MaxTag, AnyTag, noRank} {
				c := callOf(callName(op), peer, tag)
				require.Equal(t, callName(op), c.op())
				require.Equal(t, peer, c.peer())
				require.Equal(t, tag, c.tag())
			}
		}
	}
}
