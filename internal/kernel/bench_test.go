package kernel

import (
	"fmt"
	"testing"
)

// BenchmarkKernel reports the bytes that a kernel writes per second. For each byte that it writes,
// a kernel reads two bytes, and the benchmark copy reads one. The name of a kernel's benchmark is
// the variant, the operation, the type, and the number of bytes. The benchmarks cover the most
// frequent and the slowest kernels.
func BenchmarkKernel(b *testing.B) {
	lengths := []int{8, 4 << 10, 64 << 10, 1 << 20, 16 << 20}
	dst, left, right := make([]byte, 16<<20), make([]byte, 16<<20), make([]byte, 16<<20)
	run := func(name string, f func(dst, left, right []byte)) {
		for _, n := range lengths {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f(dst[:n], left[:n], right[:n])
				}
			})
		}
	}
	run("copy", func(dst, left, _ []byte) { copy(dst, left) })
	for _, v := range variants() {
		kernels := v.build()
		for _, k := range []struct {
			op  Op
			typ Type
		}{
			{Sum, Float64}, {Sum, Float32}, {Sum, Int32}, {Prod, Int64}, {Prod, Complex128}, {Prod, Complex64},
			{Min, Float64}, {Max, Int8}, {Bxor, Uint8}, {Land, Int32}, {MinLoc, Float64},
		} {
			run(v.name+"/"+opNames[k.op]+"/"+typeNames[k.typ], kernels[k.op][k.typ].Reduce3)
		}
	}
}
