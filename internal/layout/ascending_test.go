package layout

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAscending compares Ascending, Before, At and Cut of random layouts with their type maps.
func TestAscending(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	ascending := 0
	for range 8_000 {
		l, n, how := random(r, r.IntN(5))
		strictly := true
		for i := 1; i < len(n.offs); i++ {
			strictly = strictly && n.offs[i] > n.offs[i-1]
		}
		require.Equal(t, strictly, l.Ascending(), how)
		if strictly {
			blocks := 0
			for i, off := range n.offs {
				if i == 0 || n.offs[i-1]+1 != off {
					blocks++
				}
			}
			require.GreaterOrEqual(t, l.Blocks(), blocks, how)
			require.LessOrEqual(t, l.Blocks(), len(n.offs), how)
		}
		for i := 0; i < len(n.offs); i += 1 + r.IntN(4) {
			require.Equal(t, n.offs[i], l.At(i), "%s at %d", how, i)
		}
		if k := len(n.offs); k > 0 {
			from := r.IntN(k)
			to := from + 1 + r.IntN(k-from)
			part := naive{offs: n.offs[from:to]}
			low, high := part.span()
			part.lb, part.ub = low, high
			check(t, r, l.Cut(from, to), part, how)
		}
		require.Equal(t, Layout{}, l.Cut(0, 0), how)
		if !strictly || len(n.offs) == 0 {
			continue
		}
		ascending++
		for off := n.offs[0] - 2; off < n.offs[len(n.offs)-1]+3; off += 1 + r.IntN(3) {
			want, _ := slices.BinarySearch(n.offs, off)
			require.Equal(t, want, l.Before(off), "%s before %d", how, off)
		}
	}
	require.Greater(t, ascending, 500)
	require.True(t, Layout{}.Ascending())
	require.Zero(t, Layout{}.Before(7))
}

// TestEncoding checks that the encoding of a random layout becomes the same layout again.
func TestEncoding(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	for range 8_000 {
		l, n, how := random(r, r.IntN(5))
		b := l.Append(nil)
		again, err := Parse(b)
		require.NoError(t, err, how)
		require.Equal(t, b, again.Append(nil), how)
		check(t, r, again, n, how)
		if len(b) > 0 {
			_, err = Parse(b[:len(b)-1])
			require.ErrorIs(t, err, ErrLayout, how)
		}
	}
}

// FuzzParse parses arbitrary bytes as a layout. Where Parse succeeds, the encoding of the layout
// must parse again, and walks of the layout must stay in its span.
func FuzzParse(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 1))
	for range 20 {
		l, _, _ := random(r, 4)
		f.Add(l.Append(nil))
	}
	f.Add(varints(nil, 0, 0, 0, loopNode, math.MaxInt, math.MaxInt, blockNode, math.MaxInt))
	f.Add(varints(nil, math.MaxInt, 0, 0, sequenceNode, 2, math.MinInt, blockNode, 1, math.MaxInt, sameNode))
	// The offsets are the multiples of the second one only because the products overflow.
	const third = math.MaxUint64/3 + 2 // 3*third is 5 in an int
	f.Add(varints(nil, 0, 0, 6, sequenceNode, 4, 0, blockNode, 1, third, sameNode, 2*third-1<<64, sameNode, 5, sameNode))
	// The distance of the items fits into an int, but not the offset after the second one.
	f.Add(varints(nil, 0, 0, 6, sequenceNode, 2, -5, blockNode, 1, math.MaxInt-5, sameNode))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse(b)
		if err != nil {
			require.ErrorIs(t, err, ErrLayout)
			return
		}
		again, err := Parse(l.Append(nil))
		require.NoError(t, err)
		require.Equal(t, l.Append(nil), again.Append(nil))
		low, high := l.Span()
		if l.Size() == 0 {
			return
		}
		for _, p := range []int{0, l.Size() / 2, l.Size() - 1} {
			require.GreaterOrEqual(t, l.At(p), low)
			require.Less(t, l.At(p), high)
			if l.Ascending() {
				require.Equal(t, p, l.Before(l.At(p)))
			}
		}
	})
}

// TestLoopBeyondInt nests loops whose rounds continue each other only because a product overflows. They
// must not become one loop, whose span and order would be wrong.
func TestLoopBeyondInt(t *testing.T) {
	const stride = 3 << 61
	l := HVector(2, 1, math.MinInt/2, HVector(2, 1, stride, Bytes(1))) // 2*stride is math.MinInt/2 in an int
	require.NoError(t, l.Err())
	require.False(t, l.Ascending())
	low, high := l.Span()
	for p := range l.Size() {
		require.GreaterOrEqual(t, l.At(p), low)
		require.Less(t, l.At(p), high)
	}
	parsed, err := Parse(Resized(0, 1, l).Append(nil))
	require.NoError(t, err)
	require.False(t, parsed.Ascending())
}
