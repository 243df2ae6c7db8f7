package kernel

import (
	"fmt"
	"testing"
)

// BenchmarkKernel reports the bytes of dst that are written per second; for
// each of them two are read, and by copy one. A name is the operation, the
// type, the variant and the bytes of dst.
func BenchmarkKernel(b *testing.B) {
	lengths := []int{8, 64, 4 << 10, 64 << 10, 1 << 20, 16 << 20}
	dst, left, right := make([]byte, 16<<20), make([]byte, 16<<20), make([]byte, 16<<20)
	run := func(n int, name string, f func(dst, left, right []byte)) {
		b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				f(dst[:n], left[:n], right[:n])
			}
		})
	}
	for _, n := range lengths {
		run(n, "copy", func(dst, left, _ []byte) { copy(dst, left) })
	}
	for _, s := range subjects() {
		for _, v := range variants() {
			for _, n := range lengths {
				run(n, s.String()+"/"+v.name, v.build()[s.op][s.typ].Into)
			}
		}
	}
}
