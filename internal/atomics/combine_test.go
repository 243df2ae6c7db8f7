package atomics

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/internal/kernel"
	"github.com/weft-hpc/weft/transport"
)

var (
	kernelTypes = map[transport.Datatype]kernel.Type{
		transport.Int32: kernel.Int32, transport.Uint32: kernel.Uint32, transport.Int64: kernel.Int64, transport.Uint64: kernel.Uint64,
		transport.Float32: kernel.Float32, transport.Float64: kernel.Float64, transport.Complex64: kernel.Complex64,
	}
	kernelOps = map[transport.AtomicOp]kernel.Op{
		transport.AtomicMin: kernel.Min, transport.AtomicMax: kernel.Max, transport.AtomicSum: kernel.Sum, transport.AtomicProd: kernel.Prod,
		transport.AtomicLor: kernel.Lor, transport.AtomicLand: kernel.Land, transport.AtomicLxor: kernel.Lxor,
		transport.AtomicBor: kernel.Bor, transport.AtomicBand: kernel.Band, transport.AtomicBxor: kernel.Bxor,
	}
)

// extremes are special values, whose low 4 bytes are special values of the types of 4 bytes too:
// zeros, ones, the least and greatest integers, zeros and infinities of both signs, NaNs with and
// without payload, and the smallest numbers.
var extremes = []uint64{
	0, 1, 0x0001000100010001, 0xffffffffffffffff, 0x7fffffffffffffff, 0x8000000000000000, 0x8000000080000000, 0x7fffffff80808080,
	0x3ff0000000000000, 0xbff00000bf800000, 0x7ff0000000000000, 0xfff00000ff800000, 0x7ff800007fc00000, 0xfff0000000000123,
	0x7f8000007f800000, 0xff8000017f800001, 0x7fefffff7f7fffff, 0x0000000100000001,
}

// bitsOf returns the bits of a random element, often a special value.
func bitsOf(r *rand.Rand) uint64 {
	switch r.IntN(3) {
	case 0:
		return extremes[r.IntN(len(extremes))]
	case 1:
		return uint64(r.IntN(5)) - 2 // near zero, so that operands are often equal
	}
	return r.Uint64()
}

// TestAgainstKernels checks that atomic operations yield the same bits as the kernels, and that
// every kernel has an atomic operation.
func TestAgainstKernels(t *testing.T) {
	const n = 8
	r := rand.New(rand.NewPCG(1, 2))
	for _, typ := range wordTypes {
		size := typ.Size()
		for op, kernelOp := range kernelOps {
			k, ok := kernel.For(kernelOp, kernelTypes[typ])
			if !ok {
				continue // for example logical operations on floats: see TestTruthOfFloats
			}
			require.True(t, Combines(op, typ), "operation %d on type %d", op, typ)
			for range 200 {
				mem, data, want, fetch := words(n*size), words(n*size), words(n*size), words(n*size)
				for i := 0; i < len(mem); i += size {
					putElement(mem[i:], size, bitsOf(r))
					putElement(data[i:], size, bitsOf(r))
				}
				was := append([]byte(nil), mem...)
				copy(want, mem)
				k.Reduce2(want, data)
				apply(op, typ, mem, data, nil, fetch)
				require.Equal(t, want, mem, "operation %d on type %d: % x and % x", op, typ, was, data)
				require.Equal(t, was, fetch, "operation %d on type %d", op, typ)
			}
		}
	}
}

// TestTruthOfFloats checks logical operations on floats: a float is true unless it is a zero, of
// either sign.
func TestTruthOfFloats(t *testing.T) {
	for typ, x := range map[transport.Datatype]struct{ one, minusZero, nan uint64 }{
		transport.Float32: {bits32(1), 1 << 31, 0x7f800001},
		transport.Float64: {bits64(1), 1 << 63, 0x7ff0000000000001},
	} {
		for _, c := range []struct{ a, b, or, and, xor uint64 }{
			{0, x.minusZero, 0, 0, 0},
			{x.minusZero, x.one, x.one, 0, x.one},
			{1, 0, x.one, 0, x.one}, // the smallest number
			{x.nan, x.one, x.one, x.one, 0},
		} {
			for op, want := range map[transport.AtomicOp]uint64{
				transport.AtomicLor: c.or, transport.AtomicLand: c.and, transport.AtomicLxor: c.xor,
			} {
				mem, data := words(typ.Size()), words(typ.Size())
				putElement(mem, typ.Size(), c.a)
				putElement(data, typ.Size(), c.b)
				apply(op, typ, mem, data, nil, nil)
				require.Equal(t, want, element(mem, typ.Size()), "operation %d of %x and %x", op, c.a, c.b)
			}
		}
	}
}

func TestCombines(t *testing.T) {
	for typ := range transport.Datatypes + 1 {
		for op := range transport.AtomicOps + 1 {
			var want bool
			switch op {
			case transport.AtomicSum, transport.AtomicProd:
				want = typ <= transport.Complex64
			case transport.AtomicMin, transport.AtomicMax, transport.AtomicLor, transport.AtomicLand, transport.AtomicLxor:
				want = typ <= transport.Float64
			case transport.AtomicBor, transport.AtomicBand, transport.AtomicBxor:
				want = typ < transport.Float32
			default: // reads, writes, swaps, and values beyond the last operation
			}
			want = want && slices.Contains(wordTypes, typ)
			require.Equal(t, want, Combines(op, typ), "operation %d on type %d", op, typ)
		}
	}
}
