//go:build linux && !portable

package shm

import (
	"cmp"
	"slices"
)

// windowSize is the size, in bytes, of the parts (windows) in which peers map a heap. Large parts
// need few mappings, and the kernel makes page tables only for pages that are touched.
const windowSize = 1 << 30

// extents is the list of the free parts of a heap, in ascending order; no two of them are
// adjacent. The list is in private memory, where no peer can change it.
//
//	offset 0 ┌──────┬─free──┬──────┬─free─────────────────┐ size
//	         │ used │ 0: at │ used │ 1: at, n             │
//	         └──────┴───────┴──────┴──────────────────────┘
type extents []extent

// extent is a range of n bytes from offset at.
type extent struct{ at, n int64 }

func (x extent) end() int64 { return x.at + x.n }

// take removes n bytes from the first free extent that has room for them, and returns their offset,
// a multiple of align, which is a power of two. The bytes lie within one window; if n is greater
// than windowSize, they begin at the start of a window. If no extent has room, ok is false.
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

// give returns x, which take removed, to the free extents.
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

// roundUp rounds n up to a multiple of to, a power of two.
func roundUp(n, to int64) int64 { return (n + to - 1) &^ (to - 1) }
