package mpi

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSizes checks that a Request and a Status have at most four words and four fields. The
// compiler keeps larger structs in memory. Copies of a Status of five words took 25 ns per small
// message.
func TestSizes(t *testing.T) {
	for _, x := range []reflect.Type{reflect.TypeFor[Request](), reflect.TypeFor[Status]()} {
		require.LessOrEqual(t, x.Size(), uintptr(32), x)
		require.LessOrEqual(t, x.NumField(), 4, x)
	}
}

func TestCallOfRequest(t *testing.T) {
	require.Less(t, int(opTask), 1<<5)
	for op := range opTask + 1 {
		for _, peer := range []int{0, 1, 1<<24 - 1, AnySource, ProcNull, noRank} {
			for _, tag := range []int{0, 7, MaxTag, AnyTag, noRank} {
				c := callOf(op, peer, tag)
				require.Equal(t, op, c.op())
				require.Equal(t, peer, c.peer())
				require.Equal(t, tag, c.tag())
			}
		}
	}
}
