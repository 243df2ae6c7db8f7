package atomics

import (
	"encoding/binary"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weft-hpc/weft/transport"
)

// words returns n zeroed bytes, aligned to 8 bytes.
func words(n int) []byte {
	b := make([]byte, n+7)
	for !Aligned(b, 8) {
		b = b[1:]
	}
	return b[:n:n]
}

func TestAligned(t *testing.T) {
	b := words(8)
	for at, largest := range []int{8, 1, 2, 1, 4, 1, 2, 1} {
		for n := 1; n <= 8; n *= 2 {
			require.Equal(t, n <= largest, Aligned(b[at:], n), "%d at %d", n, at)
		}
	}
	require.Panics(t, func() { Word64(b[:7]) })
	require.Panics(t, func() { Word32(b[:3]) })
}

// TestReadsWritesSwaps checks reads, writes and swaps, which are the same for all types, and that
// they do not change neighbouring bytes.
func TestReadsWritesSwaps(t *testing.T) {
	for typ := range transport.Complex128 {
		size := typ.Size()
		mem, fetch := words(32), make([]byte, size)
		at := mem[8+8-size : 16] // the end of a word
		one, two, clean := element([]byte("12345678"), size), element([]byte("abcdefgh"), size), append([]byte(nil), mem...)
		bytes := func(bits uint64) []byte {
			b := words(size)
			putElement(b, size, bits)
			return b
		}
		for i, x := range []struct {
			op            transport.AtomicOp
			data, compare []byte
			before, after uint64
		}{
			{transport.AtomicWrite, bytes(one), nil, 0, one},
			{transport.AtomicRead, nil, nil, one, one},
			{transport.AtomicCswap, bytes(two), bytes(two), one, one},
			{transport.AtomicCswap, bytes(two), bytes(one), one, two},
			{transport.AtomicRead, bytes(one), nil, two, two},
			{transport.AtomicWrite, bytes(one), nil, two, one},
		} {
			Apply(x.op, typ, at, x.data, x.compare, fetch)
			require.Equal(t, x.before, element(fetch, size), "type %d, step %d", typ, i)
			require.Equal(t, x.after, element(at, size), "type %d, step %d", typ, i)
			copy(clean[16-size:16], at)
			require.Equal(t, clean, mem, "type %d, step %d: the bytes beside", typ, i)
		}
		Apply(transport.AtomicWrite, typ, at, bytes(two), nil, nil)
		require.Equal(t, two, element(at, size))
	}
}

// TestElementsBesideEachOther changes elements of 1 and 2 bytes at every offset in a word.
func TestElementsBesideEachOther(t *testing.T) {
	mem := words(8)
	data := []byte{1, 2, 3, 4, 5, 6, 7, 250}
	old := make([]byte, 8)
	Apply(transport.AtomicSum, transport.Uint8, mem, data, nil, old)
	Apply(transport.AtomicSum, transport.Uint8, mem, data, nil, old)
	require.Equal(t, data, old)
	require.Equal(t, []byte{2, 4, 6, 8, 10, 12, 14, 244}, mem)
	Apply(transport.AtomicMin, transport.Int8, mem[3:7], []byte{200, 1, 11, 15}, nil, nil)
	require.Equal(t, []byte{2, 4, 6, 200, 1, 11, 14, 244}, mem)
	half := make([]byte, 2)
	binary.NativeEndian.PutUint16(half, 0xabcd)
	Apply(transport.AtomicWrite, transport.Uint16, mem[2:4], half, nil, nil)
	require.Equal(t, half, mem[2:4])
	require.Equal(t, []byte{2, 4, 1, 11, 14, 244}, append(mem[:2:2], mem[4:]...))
}

// TestTogether runs goroutines that change neighbouring elements of all sizes at the same time. No
// update may be lost.
func TestTogether(t *testing.T) {
	const workers, rounds = 4, 500
	mem := words(32)
	type place struct {
		typ transport.Datatype
		at  int
	}
	places := []place{
		{transport.Uint8, 0}, {transport.Int8, 1}, {transport.Uint16, 2},
		{transport.Float32, 4}, {transport.Int64, 8}, {transport.Float64, 16}, {transport.Uint32, 24}, {transport.Int16, 28},
	}
	ones := make([][]byte, len(places))
	for i, p := range places {
		ones[i] = words(p.typ.Size())
		switch p.typ {
		case transport.Float32:
			putElement(ones[i], 4, bits32(1))
		case transport.Float64:
			putElement(ones[i], 8, bits64(1))
		default:
			putElement(ones[i], p.typ.Size(), 1)
		}
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { // ends after its rounds
			for range rounds {
				for i, p := range places {
					Apply(transport.AtomicSum, p.typ, mem[p.at:p.at+p.typ.Size()], ones[i], nil, nil)
				}
			}
		})
	}
	wg.Wait()
	for _, p := range places {
		got, size := element(mem[p.at:], p.typ.Size()), p.typ.Size()
		switch p.typ {
		case transport.Float32:
			require.Equal(t, bits32(workers*rounds), got)
		case transport.Float64:
			require.Equal(t, bits64(workers*rounds), got)
		default:
			require.Equal(t, uint64(workers*rounds)&(1<<(8*size)-1), got, "%+v", p)
		}
	}
	require.Equal(t, []byte{0, 0}, mem[30:], "bytes that belong to no element")
}

// TestCompareSwapGuards uses AtomicCswap as a spin lock, and checks that the lock excludes
// goroutines, also in the view of the race detector.
func TestCompareSwapGuards(t *testing.T) {
	const workers, rounds = 4, 200
	for size := range map[int]bool{1: true, 2: true, 4: true, 8: true} {
		typ := map[int]transport.Datatype{1: transport.Uint8, 2: transport.Uint16, 4: transport.Uint32, 8: transport.Uint64}[size]
		lock, counter := words(8)[:size], 0
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() { // ends after its rounds
				free, taken, was := words(size), words(size), words(size)
				taken[0] = 1
				for range rounds {
					for was[0] = 1; was[0] != 0; {
						Apply(transport.AtomicCswap, typ, lock, taken, free, was)
					}
					counter++
					Apply(transport.AtomicWrite, typ, lock, free, nil, nil)
				}
			})
		}
		wg.Wait()
		require.Equal(t, workers*rounds, counter)
	}
}

func TestAllocations(t *testing.T) {
	mem, data, fetch := words(64), words(64), words(64)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		for typ := range transport.Complex128 {
			for op := range transport.AtomicOps {
				switch {
				case op == transport.AtomicCswap:
					Apply(op, typ, mem, data, data, fetch)
				case op == transport.AtomicRead || op == transport.AtomicWrite || Combines(op, typ):
					Apply(op, typ, mem, data, nil, fetch)
				}
			}
		}
	}))
}

// TestNaNs checks that an operation with a NaN operand, including Min and Max, yields the one NaN
// of package kernel.
func TestNaNs(t *testing.T) {
	for _, op := range []transport.AtomicOp{transport.AtomicMin, transport.AtomicMax, transport.AtomicSum, transport.AtomicProd} {
		mem, data := words(8), words(8)
		binary.NativeEndian.PutUint64(mem, math.Float64bits(1))
		binary.NativeEndian.PutUint64(data, 0xfff8000000000123)
		Apply(op, transport.Float64, mem, data, nil, nil)
		require.EqualValues(t, 0x7ff8000000000000, binary.NativeEndian.Uint64(mem))
	}
}
