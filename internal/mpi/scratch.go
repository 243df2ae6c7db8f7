package mpi

import (
	"math/bits"
	"sync"

	"github.com/weft-hpc/weft/internal/elem"
)

// Scratch memory of collectives. Each [link] keeps its slices of at most scratchKept bytes. Larger
// slices are in pools that all communicators use. If no call uses a pooled slice for two cycles of
// the garbage collector, the collector frees it. So the process does not keep the memory of its
// largest collective.

// scratchKept is the maximum length in bytes of a scratch slice that a link keeps.
const scratchKept = 64 << 10

// largeScratch holds pools of slices, by size class. All slices of a class have the same length.
// There are four classes per power of two, so a slice is at most a quarter longer than requested.
var largeScratch [4 * bits.UintSize]sync.Pool

// largeClass returns the size in bytes of the slices that serve a request of n bytes, and the index
// of their pool in largeScratch.
func largeClass(n int) (size, class int) {
	width := bits.Len(uint(n - 1))
	step := 1 << (width - 3)
	size = (n + step - 1) / step * step
	return size, 4*(width-1) + (n-1)/step - 4
}

// takeLarge returns a slice of at least n bytes, from a pool or newly allocated. n is larger than
// scratchKept. The caller returns the slice to its pool by giveLarge.
func takeLarge(n int) *[]byte {
	size, class := largeClass(n)
	if b, ok := largeScratch[class].Get().(*[]byte); ok {
		return b
	}
	b := elem.AlignedBytes(size)
	return &b
}

func giveLarge(b *[]byte) {
	_, class := largeClass(len(*b))
	largeScratch[class].Put(b)
}
