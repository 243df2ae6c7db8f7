package mpi

import (
	"math/bits"
	"sync"

	"github.com/weft-hpc/weft/internal/elem"
)

// Scratch memory of collectives. Each link keeps its small slices. All communicators share the
// large slices, in pools. If no call uses a large slice for two cycles of the garbage collector, the
// collector frees it. So the process does not keep the memory of its largest collective.

// scratchKept is the largest scratch slice that a link keeps.
const scratchKept = 64 << 10

// largeScratch holds slices by size class: there are four classes per power of two.
var largeScratch [4 * bits.UintSize]sync.Pool

// largeClass returns the size of the slices that serve n bytes, and their index in
// largeScratch.
func largeClass(n int) (size, class int) {
	width := bits.Len(uint(n - 1))
	step := 1 << (width - 3)
	size = (n + step - 1) / step * step
	return size, 4*(width-1) + (n-1)/step - 4
}

// takeLarge returns a slice of at least n bytes, n > scratchKept. The caller gives it back by
// giveLarge.
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
