package bufcheck

import (
	"github.com/weft-hpc/weft/internal/elem"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRanges adds and removes ranges in random order, and compares each result of find with that of
// a search through all ranges.
func TestRanges(t *testing.T) {
	const size = 4000
	memory := make([]byte, size)
	random := rand.New(rand.NewPCG(1, 2))
	var set ranges
	held := map[*memRange][]byte{}
	for range 20000 {
		at := random.IntN(size)
		b := memory[at:][:random.IntN(min(size-at, 1+random.IntN(30)))]
		overlaps := func() (some bool) {
			for _, other := range held {
				some = some || elem.Overlap(b, other)
			}
			return some
		}
		found := set.find(b)
		require.Equal(t, overlaps(), found != nil)
		if found != nil {
			require.True(t, elem.Overlap(b, held[found]))
		}
		if random.IntN(3) == 0 {
			for r := range held {
				set.remove(r)
				delete(held, r)
				break
			}
			continue
		}
		owner := &Operation{}
		if r := set.add(b, owner); len(b) > 0 {
			require.Same(t, owner, r.owner)
			held[r] = b
		} else {
			require.Nil(t, r)
		}
		if len(held) > 300 {
			for r := range held {
				set.remove(r)
				delete(held, r)
			}
			require.Nil(t, set.root)
		}
	}
}

// TestRangesAreFlat adds many ranges in ascending or descending order, or the same range many
// times. The height of the tree must stay small, so that a search visits few nodes.
func TestRangesAreFlat(t *testing.T) {
	const n = 1 << 16
	memory := make([]byte, n)
	for name, at := range map[string]func(i int) []byte{
		"ascending":  func(i int) []byte { return memory[i : i+1] },
		"descending": func(i int) []byte { return memory[n-1-i : n-i] },
		"the same":   func(int) []byte { return memory },
	} {
		t.Run(name, func(t *testing.T) {
			var set ranges
			for i := range n {
				set.add(at(i), nil)
			}
			require.Less(t, height(set.root), 100)
		})
	}
}

func height(n *memRange) int {
	if n == nil {
		return 0
	}
	return 1 + max(height(n.left), height(n.right))
}
