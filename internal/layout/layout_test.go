package layout

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// check compares a layout with its type map: its size and bounds, and whole and partial copies.
func check(t *testing.T, r *rand.Rand, l Layout, n naive, how string) {
	t.Helper()
	require.NoError(t, l.Err(), how)
	low, high := n.span()
	gotLow, gotHigh := l.Span()
	require.Equal(t, []int{len(n.offs), n.extent(), low, high}, []int{l.Size(), l.Extent(), gotLow, gotHigh}, how)
	if n.extent() != 0 {
		require.Equal(t, n.lb, l.Lower(), how)
	}
	l.root.verify(t, how)

	origin, room := -low, high-low
	require.True(t, l.Fits(room, origin), how)
	require.Equal(t, room == 0, l.Fits(room-1, origin) && l.Fits(room, origin-1), how)
	src := make([]byte, room)
	for i := range src {
		src[i] = byte(r.Uint32())
	}
	want := make([]byte, len(n.offs))
	for i, off := range n.offs {
		want[i] = src[origin+off]
	}
	got := make([]byte, len(want)+1)
	require.Equal(t, len(want), l.Pack(got, src, origin, 0), how)
	require.Equal(t, want, got[:len(want)], how)
	require.Zero(t, got[len(want)], how)

	// Copy the stream in parts of random lengths.
	parts, back, wantBack := make([]byte, 0, len(want)), make([]byte, room), make([]byte, room)
	var ranges []Range
	for pos := 0; pos < len(want); {
		k := 1 + r.IntN(len(want)-pos)
		part := make([]byte, k)
		require.Equal(t, k, l.Pack(part, src, origin, pos), how)
		parts = append(parts, part...)
		require.Equal(t, k, l.Unpack(back, part, origin, pos), how)
		list, end := l.Ranges(make([]Range, 0, 1+r.IntN(4)), pos, pos+k)
		require.LessOrEqual(t, end, pos+k, how)
		for end < pos+k { // the list was full
			require.Len(t, list, cap(list), how)
			ranges = append(ranges, list...)
			list, end = l.Ranges(list[:0], end, pos+k)
		}
		ranges = append(ranges, list...)
		pos += k
	}
	for i, off := range n.offs {
		wantBack[origin+off] = want[i]
	}
	require.Equal(t, want, parts, how)
	require.Equal(t, wantBack, back, how)
	var offs []int
	for _, x := range ranges {
		for i := range x.Len {
			offs = append(offs, x.Off+i)
		}
	}
	if len(offs) > 0 {
		require.Equal(t, offs[0], l.First(), how)
	}
	require.Equal(t, len(n.offs), len(offs), how)
	for i := range offs {
		require.Equal(t, n.offs[i], offs[i], how)
	}
	if off, ok := l.Contiguous(); ok && len(n.offs) > 0 {
		require.Equal(t, low, off, how)
		require.Equal(t, high-low, len(n.offs), how)
	}
	require.Zero(t, l.Pack(got, src, origin, l.Size()), "at the end of the stream")
}

// verify checks the invariants of the normal form.
func (n *node) verify(t *testing.T, how string) {
	t.Helper()
	switch {
	case n == nil:
	case n.isBlock():
		require.Positive(t, n.size, how)
	case n.isLoop():
		require.Greater(t, n.count, 1, how)
		require.Equal(t, n.count*n.child.size, n.size, how)
		require.False(t, n.child.isBlock() && n.child.size == n.stride, how)
		require.False(t, n.child.isLoop() && n.child.count*n.child.stride == n.stride, how)
		n.child.verify(t, how)
	default:
		require.Greater(t, len(n.items), 1, how)
		size := 0
		for _, it := range n.items {
			require.Equal(t, size, it.begin, how)
			size += it.node.size
			it.node.verify(t, how)
		}
		require.Equal(t, size, n.size, how)
	}
}

// TestAgainstTypeMaps compares random layouts, of up to four nested constructors, with their type maps.
func TestAgainstTypeMaps(t *testing.T) {
	const seed = 1
	r := rand.New(rand.NewPCG(seed, seed))
	for range 20000 {
		l, n, how := random(r, r.IntN(5))
		if len(n.offs) > 5000 {
			continue
		}
		check(t, r, l, n, how)
	}
}

// TestNormalForm checks that layouts of the same bytes have the same, short normal form.
func TestNormalForm(t *testing.T) {
	double := Bytes(8)
	for name, x := range map[string]struct {
		l          Layout
		depth      int
		contiguous bool
	}{
		"vector without gaps":             {Vector(10, 3, 3, double), 0, true},
		"indexed without gaps":            {Indexed([]int{2, 3, 1}, []int{0, 2, 5}, double), 0, true},
		"indexed with equal gaps":         {Indexed([]int{2, 2, 2}, []int{0, 5, 10}, double), 1, false},
		"indexed with gaps":               {Indexed([]int{2, 1, 2}, []int{0, 5, 10}, double), 1, false},
		"vector of a vector that fits in": {Repeat(4, Vector(5, 1, 2, Bytes(4))), 2, false},
		"the same, with its whole extent": {Repeat(4, Resized(0, 40, Vector(5, 1, 2, Bytes(4)))), 1, false},
		"a face of a cube":                {Subarray([]int{8, 8, 8}, []int{8, 1, 8}, []int{0, 3, 0}, RowMajor, double), 1, false},
		"another face":                    {Subarray([]int{8, 8, 8}, []int{8, 8, 1}, []int{0, 0, 3}, RowMajor, double), 1, false},
		"the whole cube":                  {Subarray([]int{8, 8, 8}, []int{8, 8, 8}, []int{0, 0, 0}, RowMajor, double), 0, true},
		"a struct without padding":        {Struct([]int{1, 2}, []int{0, 8}, []Layout{double, Bytes(4)}), 0, true},
		"nothing":                         {Vector(0, 3, 5, double), 0, true},
	} {
		require.NoError(t, x.l.Err(), name)
		require.Equal(t, x.depth, x.l.Depth(), name)
		_, ok := x.l.Contiguous()
		require.Equal(t, x.contiguous, ok, name)
	}
}

func TestInvalid(t *testing.T) {
	b := Bytes(8)
	for name, l := range map[string]Layout{
		"negative bytes":          Bytes(-1),
		"negative count":          Repeat(-1, b),
		"negative length":         Vector(2, -1, 3, b),
		"too many":                Repeat(math.MaxInt/8+1, b),
		"too far":                 HVector(3, 1, math.MaxInt/2, b),
		"too far down":            HVector(3, 1, math.MinInt/2, b),
		"stride":                  Vector(2, 1, math.MaxInt, b),
		"offset":                  Indexed([]int{1}, []int{math.MaxInt}, b),
		"offset in bytes":         HIndexed([]int{1}, []int{math.MaxInt - 7}, b),
		"sum of sizes":            Struct([]int{1, 1}, []int{0, 0}, []Layout{Repeat(math.MaxInt/16, b), Resized(0, 0, Repeat(math.MaxInt/8, b))}),
		"lengths":                 Indexed([]int{1, 2}, []int{0}, b),
		"layouts":                 Struct([]int{1}, []int{0}, nil),
		"extent":                  Resized(math.MaxInt, 1, b),
		"no dimension":            Subarray(nil, nil, nil, RowMajor, b),
		"dimensions":              Subarray([]int{4}, []int{1, 1}, []int{0}, RowMajor, b),
		"empty array":             Subarray([]int{0}, []int{0}, []int{0}, RowMajor, b),
		"beyond the array":        Subarray([]int{4}, []int{3}, []int{2}, RowMajor, b),
		"array too large":         Subarray([]int{1 << 31, 1 << 31}, []int{1, 1}, []int{0, 0}, RowMajor, b),
		"no process":              Darray([]Dim{{Size: 4}}, RowMajor, b),
		"no such process":         Darray([]Dim{{Size: 4, Dist: Block, Procs: 2, Coord: 2}}, RowMajor, b),
		"blocks too short":        Darray([]Dim{{Size: 9, Dist: Block, Block: 4, Procs: 2}}, RowMajor, b),
		"not distributed":         Darray([]Dim{{Size: 4, Procs: 2}}, RowMajor, b),
		"no distribution":         Darray(nil, RowMajor, b),
		"from an invalid one":     Resized(0, 8, Shift(3, Repeat(2, Bytes(-1)))),
		"unknown distribution":    Darray([]Dim{{Size: 4, Dist: Cyclic + 1, Procs: 1}}, RowMajor, b),
		"too large to scale":      Scale(16, Resized(0, math.MaxInt/8, b)),
		"negative block":          Darray([]Dim{{Size: 4, Dist: Cyclic, Block: -1, Procs: 1}}, RowMajor, b),
		"array of an invalid one": Subarray([]int{4}, []int{1}, []int{0}, RowMajor, Bytes(-1)),
	} {
		require.ErrorIs(t, l.Err(), ErrLayout, name)
	}
}

func TestNoAllocations(t *testing.T) {
	l := Struct([]int{2, 3}, []int{0, 500}, []Layout{Vector(10, 1, 2, Bytes(8)), Vector(3, 2, 3, Bytes(4))})
	require.NoError(t, l.Err())
	_, n := l.Span()
	buf, packed, list := make([]byte, n), make([]byte, l.Size()), make([]Range, 0, 8)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		l.Pack(packed, buf, 0, 0)
		l.Unpack(buf, packed[:77], 0, 33)
		l.Ranges(list, 5, 200)
	}))
}
