package layout

import (
	"fmt"
	"testing"
)

// BenchmarkPack packs 1 MiB in blocks with gaps of their length, and compares with the loop that a
// program would write.
func BenchmarkPack(b *testing.B) {
	const total = 1 << 20
	for _, block := range []int{4, 8, 16, 24, 64, 512, 4096} {
		count, stride := total/block, 2*block
		l := HVector(count, 1, stride, Bytes(block))
		src, dst := make([]byte, count*stride), make([]byte, count*block)
		b.Run(fmt.Sprintf("layout/%d", block), func(b *testing.B) {
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				l.Pack(dst, src, 0, 0)
			}
		})
		b.Run(fmt.Sprintf("loop/%d", block), func(b *testing.B) {
			b.SetBytes(int64(len(dst)))
			for b.Loop() {
				for i := range count {
					copy(dst[i*block:(i+1)*block], src[i*stride:])
				}
			}
		})
	}
	b.Run("copy", func(b *testing.B) {
		src, dst := make([]byte, total), make([]byte, total)
		b.SetBytes(total)
		for b.Loop() {
			copy(dst, src)
		}
	})
}

// BenchmarkBefore converts an offset to a position, in a loop over a list of n blocks.
func BenchmarkBefore(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		lengths, offs := make([]int, n), make([]int, n)
		for i := range offs {
			lengths[i], offs[i] = 1+i%3, 5*i
		}
		l := Repeat(3, HIndexed(lengths, offs, Bytes(1)))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				l.Before(l.Extent() / 2)
			}
		})
	}
}
