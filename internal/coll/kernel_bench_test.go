package coll

import (
	"fmt"
	"testing"
)

// BenchmarkKernel reports the bytes of inout that are combined per second; each
// of them is loaded twice and stored once. copy is there for comparison.
func BenchmarkKernel(b *testing.B) {
	for _, n := range []int{4 << 10, 256 << 10, 16 << 20} {
		x, y := view[byte](make([]byte, n)), make([]byte, n)
		b.Run(fmt.Sprintf("copy/%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				copy(x, y)
			}
		})
		for _, k := range []struct {
			name string
			op   OpKind
			t    Type
		}{
			{"sum/float64", OpSum, TypeFloat64}, {"sum/float32", OpSum, TypeFloat32},
			{"sum/int64", OpSum, TypeInt64}, {"sum/int32", OpSum, TypeInt32}, {"sum/int8", OpSum, TypeInt8},
			{"sum/complex128", OpSum, TypeComplex128}, {"prod/float64", OpProd, TypeFloat64},
			{"prod/complex128", OpProd, TypeComplex128},
			{"min/float64", OpMin, TypeFloat64}, {"max/int64", OpMax, TypeInt64}, {"max/int8", OpMax, TypeInt8},
			{"bxor/uint8", OpBxor, TypeUint8}, {"land/int32", OpLand, TypeInt32}, {"minloc/float64", OpMinLoc, TypeFloat64},
		} {
			op, _ := Kernel(k.op, k.t)
			b.Run(fmt.Sprintf("%s/%d", k.name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					op.Combine(x, y)
				}
			})
		}
	}
}
