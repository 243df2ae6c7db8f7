//go:build linux && !portable

package shm

import (
	"cmp"
	"slices"
)

// windowSize is what peers map of a heap at a time: few mappings for much
// memory, and no page table before a page is touched.
const windowSize = 1 << 30

// extents are the free parts of a heap, in ascending order, of which no two
// touch. They are in private memory: no peer can spoil them.
//
//	offset 0 ┌──────┬─free──┬──────┬─free─────────────────┐ size
//	         │ used │ 0: at │ used │ 1: at, n             │
//	         └──────┴───────┴──────┴──────────────────────┘
type extents []extent

// extent is n bytes from an offset on.
type extent struct{ at, n int64 }

func (x extent) end() int64 { return x.at + x.n }

// take cuts n bytes out of the first free extent that has them: from a multiple
// of align on, and so that they lie in one window, or begin with one.
func (f *extents) take(n, align int64) (at int64, ok bool) {
	if n > windowSize {
		align = max(align, windowSize)
	}
	for i, x := range *f {
		at = roundUp(x.at, align)
		if at%windowSize+n > windowSize && n <= windowSize {
			at = roundUp(at, windowSize)
		}
		if at > x.end()-n {
			continue
		}
		before, after := extent{x.at, at - x.at}, extent{at + n, x.end() - at - n}
		switch {
		case before.n > 0 && after.n > 0:
			(*f)[i] = before
			*f = slices.Insert(*f, i+1, after)
		case before.n > 0:
			(*f)[i] = before
		case after.n > 0:
			(*f)[i] = after
		default:
			*f = slices.Delete(*f, i, i+1)
		}
		return at, true
	}
	return 0, false
}

// give puts back what take cut out.
func (f *extents) give(x extent) {
	i, _ := slices.BinarySearchFunc(*f, x.at, func(y extent, at int64) int { return cmp.Compare(y.at, at) })
	if i > 0 && (*f)[i-1].end() == x.at {
		i--
		x = extent{(*f)[i].at, (*f)[i].n + x.n}
		*f = slices.Delete(*f, i, i+1)
	}
	if i < len(*f) && (*f)[i].at == x.end() {
		(*f)[i] = extent{x.at, x.n + (*f)[i].n}
		return
	}
	*f = slices.Insert(*f, i, x)
}

// roundUp is the first multiple of a power of two that is not below n.
func roundUp(n, to int64) int64 { return (n + to - 1) &^ (to - 1) }
