package comm

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

type (
	celsius float64
	point   struct {
		X, Y float64
		ID   int32
		Tags [3]uint8
		None [0]func()
	}
	named struct {
		A int
		B struct{ Name string }
	}
)

func TestTypesThatCannotBeSent(t *testing.T) {
	for _, c := range []struct {
		info *typeInfo
		text string
	}{
		{infoOf[string](), ": string holds pointers"},
		{infoOf[*int](), "*int holds pointers"},
		{infoOf[named](), "comm.named.B.Name is a string"},
		{infoOf[[2][]byte](), "[2][]uint8[0] is a slice"},
		{infoOf[any](), "interface {} holds pointers"},
		{infoOf[map[int]int](), "map[int]int holds pointers"},
		{infoOf[chan int](), "chan int holds pointers"},
		{infoOf[func()](), "func() holds pointers"},
		{infoOf[unsafe.Pointer](), "unsafe.Pointer holds pointers"},
		{infoOf[struct{ P [1]struct{ Q error } }](), ".P[0].Q is a interface"},
	} {
		require.ErrorIs(t, c.info.err, ErrType)
		require.ErrorContains(t, c.info.err, c.text)
	}
	for _, info := range []*typeInfo{
		infoOf[celsius](), infoOf[point](), infoOf[struct{}](), infoOf[bool](), infoOf[complex64](), infoOf[uintptr](),
		infoOf[[4]point](), infoOf[int8](), infoOf[Loc[float64]](),
	} {
		require.NoError(t, info.err)
	}
}

func TestTypesAllocateNothing(t *testing.T) {
	buf, odd := make([]float64, 8), make([]point, 8)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _, _ = view(buf)
		_, _, _ = view(odd)
	}))
}

func TestViews(t *testing.T) {
	p := make([]point, 3)
	b := bytesView(p)
	require.Len(t, b, 3*int(unsafe.Sizeof(point{})))
	require.Len(t, elemsView[point](b), 3)
	require.Empty(t, bytesView([]struct{}{{}, {}}))
	require.Empty(t, elemsView[struct{}](b))
	require.Empty(t, bytesView([]int(nil)))

	x := make([]byte, 10)
	require.True(t, overlap(x[:5], x[4:]))
	require.False(t, overlap(x[:5], x[5:]))
	require.False(t, overlap(x[:0], x))
	require.True(t, sameStart(x[:2], x))
	require.False(t, sameStart(x[1:], x))

	for n := range 200 {
		a := alignedBytes(n)
		require.Len(t, a, n)
		require.Equal(t, n, cap(a))
		if n > 0 {
			require.Zero(t, uintptr(unsafe.Pointer(&a[0]))%64)
		}
	}
}
