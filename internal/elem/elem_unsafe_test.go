package elem

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
		info *Type
		text string
	}{
		{Of[string](), ": string holds pointers"},
		{Of[*int](), "*int holds pointers"},
		{Of[named](), "elem.named.B.Name is a string"},
		{Of[[2][]byte](), "[2][]uint8[0] is a slice"},
		{Of[any](), "interface {} holds pointers"},
		{Of[map[int]int](), "map[int]int holds pointers"},
		{Of[chan int](), "chan int holds pointers"},
		{Of[func()](), "func() holds pointers"},
		{Of[unsafe.Pointer](), "unsafe.Pointer holds pointers"},
		{Of[struct{ P [1]struct{ Q error } }](), ".P[0].Q is a interface"},
	} {
		require.ErrorIs(t, c.info.Err, ErrType)
		require.ErrorContains(t, c.info.Err, c.text)
	}
	for _, info := range []*Type{
		Of[celsius](), Of[point](), Of[struct{}](), Of[bool](), Of[complex64](), Of[uintptr](),
		Of[[4]point](), Of[int8](),
	} {
		require.NoError(t, info.Err)
	}
}

var sink int

func TestTypesAllocateNothing(t *testing.T) {
	buf, odd := make([]float64, 8), make([]point, 8)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		sink = Of[float64]().Size + Of[point]().Size + len(Bytes(buf)) + len(Bytes(odd))
	}))
}

func TestViews(t *testing.T) {
	p := make([]point, 3)
	b := Bytes(p)
	require.Len(t, b, 3*int(unsafe.Sizeof(point{})))
	require.Len(t, Slice[point](b), 3)
	require.Empty(t, Bytes([]struct{}{{}, {}}))
	require.Empty(t, Slice[struct{}](b))
	require.Empty(t, Bytes([]int(nil)))

	x := make([]byte, 10)
	require.True(t, Overlap(x[:5], x[4:]))
	require.False(t, Overlap(x[:5], x[5:]))
	require.False(t, Overlap(x[:0], x))
	require.True(t, SameStart(x[:2], x))
	require.False(t, SameStart(x[1:], x))

	for n := range 200 {
		a := AlignedBytes(n)
		require.Len(t, a, n)
		require.Equal(t, n, cap(a))
		if n > 0 {
			require.Zero(t, uintptr(unsafe.Pointer(&a[0]))%64)
		}
	}
}
