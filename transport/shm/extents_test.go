//go:build linux && !portable

package shm

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExtents takes extents (ranges of bytes) from a free list and gives them back at random, and
// compares the list with a plain model: an array that records for each unit (a quarter of a
// window) whether it is used. An extent that take returns must have been free, must be aligned,
// must lie in one window (windowSize bytes) or begin at a window's start, and must be the first
// such extent.
func TestExtents(t *testing.T) {
	const unit = windowSize / 4
	const units = 64
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		free := extents{{0, units * unit}}
		var used [units]bool
		var taken []extent
		fits := func(at, n, align int) bool {
			if n > 4 {
				align = max(align, 4)
			}
			if at%align != 0 || at+n > units || n <= 4 && at/4 != (at+n-1)/4 {
				return false
			}
			return !slices.Contains(used[at:at+n], true)
		}
		mark := func(x extent, to bool) {
			for i := x.at / unit; i < x.end()/unit; i++ {
				if used[i] == to {
					t.Fatalf("seed %d: unit %d is taken or freed twice", seed, i)
				}
				used[i] = to
			}
		}
		for step := range 500 {
			if len(taken) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(taken))
				mark(taken[i], false)
				free.give(taken[i])
				taken = slices.Delete(taken, i, i+1)
			} else {
				n, align := 1+r.IntN(6), 1<<r.IntN(3)
				if r.IntN(10) == 0 {
					n += r.IntN(units)
				}
				want := -1
				for at := 0; at < units && want < 0; at++ {
					if fits(at, n, align) {
						want = at
					}
				}
				at, ok := free.take(int64(n)*unit, int64(align)*unit)
				require.Equal(t, want >= 0, ok, "seed %d step %d", seed, step)
				if ok {
					require.EqualValues(t, want*unit, at, "seed %d step %d", seed, step)
					x := extent{at, int64(n) * unit}
					mark(x, true)
					taken = append(taken, x)
				}
			}
			// The list must be sorted, must not have two extents that touch, and must cover
			// exactly the unused units.
			var want extents
			for u := range int64(units) {
				switch n := len(want); {
				case used[u]:
				case n > 0 && want[n-1].end() == u*unit:
					want[n-1].n += unit
				default:
					want = append(want, extent{u * unit, unit})
				}
			}
			require.True(t, slices.Equal(want, free), "seed %d step %d: %v", seed, step, free)
		}
		for _, x := range taken {
			free.give(x)
		}
		require.Equal(t, extents{{0, units * unit}}, free)
	}
}

func TestExtentsOfPages(t *testing.T) {
	free := extents{{0, windowSize + 8192}}
	at, ok := free.take(4096, 4096)
	require.True(t, ok)
	require.Zero(t, at)
	at, ok = free.take(heapAlign, heapAlign)
	require.True(t, ok)
	require.EqualValues(t, heapAlign, at)
	at, ok = free.take(8192, 4096) // there is room between the first two extents
	require.True(t, ok)
	require.EqualValues(t, 4096, at)
	_, ok = free.take(windowSize+4096, 4096)
	require.False(t, ok)
	at, ok = free.take(windowSize-2*heapAlign, 4096)
	require.True(t, ok)
	require.EqualValues(t, 2*heapAlign, at)
	free.give(extent{0, 4096})
	require.Equal(t, extents{{0, 4096}, {12288, heapAlign - 12288}, {windowSize, 8192}}, free)
}
