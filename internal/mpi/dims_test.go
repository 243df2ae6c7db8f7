package mpi_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/comm"
)

func TestDims(t *testing.T) {
	for _, x := range []struct {
		ranks      int
		dims, want []int
	}{
		{12, []int{0, 0}, []int{4, 3}},
		{6, []int{0, 0, 0}, []int{3, 2, 1}},
		{36, []int{0, 0, 0}, []int{4, 3, 3}},
		{7, []int{0, 0}, []int{7, 1}},
		{1, []int{0, 0}, []int{1, 1}},
		{24, []int{0, 2, 0}, []int{4, 2, 3}},
		{24, []int{4, 6}, []int{4, 6}},
		{30, []int{0}, []int{30}},
		{1, nil, []int{}},
		{1 << 20, []int{0, 0, 0}, []int{128, 128, 64}},
		{math.MaxInt32, []int{0, 0}, []int{math.MaxInt32, 1}}, // a prime number
	} {
		got, err := comm.Dims(x.ranks, x.dims...)
		require.NoError(t, err)
		require.Equal(t, x.want, got, "%d ranks in %v", x.ranks, x.dims)
	}
	for _, x := range []struct {
		ranks int
		dims  []int
	}{{0, []int{0}}, {math.MaxInt32 + 1, []int{0}}, {-1, []int{0}}, {4, []int{-1, 0}}, {5, []int{2, 0}}, {6, []int{2, 2}}, {2, nil}, {4, []int{3}}} {
		_, err := comm.Dims(x.ranks, x.dims...)
		require.ErrorIs(t, err, comm.ErrArg, "%d ranks in %v", x.ranks, x.dims)
		require.ErrorContains(t, err, "Dims")
	}
}
